"""One resource above ``limits.max_resource_mb`` ends each step that reads lines (document 3 §1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from config.model import LimitsConfig
from tasks.send.transfer.archive import survey
from tasks.shared.errors import DataError
from tests.peers.scenes import KINDS, playing

LIMIT = 1 << 20
LARGE = {"resourceType": "Observation", "id": "large", "status": "final", "note": [{"text": "x" * (LIMIT + 500_000)}]}
LINES = {
    "a resource": LARGE,
    "an entry": {"resourceType": "Bundle", "type": "transaction", "entry": [{"resource": LARGE}]},
    "what is around entries": {"resourceType": "Bundle", "type": "transaction", "entry": [], "meta": LARGE},
    "a document": {"resourceType": "Bundle", "type": "document", "entry": [{"resource": LARGE}]},
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", KINDS)
def test_a_resource_above_the_limit_ends_the_step(
    name: str, line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitsConfig, "largest_resource", property(lambda _: LIMIT))
    with playing(name, tmp_path, caplog) as scene:
        scene.job.write("c.ndjson", {"resourceType": "Patient", "id": "last"}, LINES[line])
        packed = scene.job.input / "c.ndjson.zst"
        packed.write_bytes(zstandard.compress((scene.job.input / "c.ndjson").read_bytes()))
        (scene.job.input / "c.ndjson").unlink()
        error = scene.fails(DataError)
        assert error.reference == "resource-too-large"
        assert "c.ndjson.zst:2" in (error.context or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_long_line_of_small_entries_is_read(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitsConfig, "largest_resource", property(lambda _: 500_000))
    made = []
    for limited in (True, False):
        directory = tmp_path / str(limited)
        with playing(name, directory, caplog) as scene:
            first = scene.job.input / "a.ndjson"
            line = json.loads(first.read_bytes().splitlines()[0])
            entries = line["entry"] if line["resourceType"] == "Bundle" else [{"resource": line}]
            long = {"resourceType": "Bundle", "type": "transaction", "entry": entries + _many(5_000)}
            scene.job.write("long.ndjson", long)
            if not limited:
                monkeypatch.undo()
            report = scene.run()
            made.append((report.lines_in, report.resources_in, report.resources_out))
    assert made[0] == made[1]


def _many(count: int) -> list[dict[str, object]]:
    return [
        {"resource": {"resourceType": "Basic", "id": f"n{number}", "code": {"text": "x" * 50}}}
        for number in range(count)
    ]


def test_the_survey_before_a_transfer_reads_with_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text(json.dumps(LARGE))
    assert survey(tmp_path).lines == 1
    with pytest.raises(DataError) as caught:
        survey(tmp_path, largest=LIMIT)
    assert (caught.value.reference, caught.value.context) == ("resource-too-large", "a.ndjson:1")
