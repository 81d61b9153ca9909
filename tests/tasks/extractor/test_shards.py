"""The downloads of an extraction that are divided among child runs give what they give undivided (6-scale-out.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.shared.blanked import SECRETS
from tasks.shared.errors import ServiceBusyError
from tasks.shared.files.intake import FileLedger
from tasks.shared.import_directory import ImportDirectory
from tasks.shared.shards import load_division
from tests.peers.extraction import (
    BASE,
    BUNDLE,
    JOB,
    OTHER_JOB,
    ExtractorJob,
    MockExtraction,
    configuration,
    manifest,
    task,
)
from tests.peers.shards import KilledError, kill_at_call
from tests.tasks.extractor.test_extraction import job

URLS = [f"{BASE}/out/{JOB}/{name}?sig=SIGNED" for name in ("core.ndjson", "a.ndjson", "x/b.ndjson", "y/b.ndjson")]
FILES = {url.partition("?")[0]: BUNDLE * (number + 1) for number, url in enumerate(URLS)}
CONSENT = f"{BASE}/out/{JOB}/p_consent.ndjson"


def extraction(directory: Path, **more: Any) -> ExtractorJob:
    """Return a job whose result has files, a warning, and a consent audit file."""
    about = {"url": "https://x/extractor-job-diagnostics-summary", "valueObject": {"Num-Final-Patients": 1}}
    made = job(directory, manifest(*URLS, extension=[about]), FILES | {CONSENT: BUNDLE}, **more)
    output = {"type": {"text": "Consent audit NDJSON"}, "valueUrl": CONSENT}
    made.server.tasks[JOB] = task(status="COMPLETED", output=[output])
    return made


def figures(report: Any) -> dict[str, Any]:
    return report.result() | {"content": None}


def state_files(made: ExtractorJob) -> set[str]:
    return {path.name for path in (made.path / "extraction").rglob("*") if path.is_file()}


@pytest.mark.parametrize("shards", [2, 3, 9])
def test_files_report_and_downloads_are_those_of_an_undivided_run(tmp_path: Path, shards: int) -> None:
    (tmp_path / "undivided").mkdir()
    expected = extraction(tmp_path / "undivided")
    report = expected.run()
    made = extraction(tmp_path)
    assert figures(made.run(shards)) == figures(report)
    assert report.details["consent_files"] == 1
    assert (made.imported(), state_files(made)) == (expected.imported(), state_files(expected))
    assert sorted(made.server.downloads("/out/")) == sorted(expected.server.downloads("/out/"))
    assert len(made.server.submissions) == 1
    kept = "".join(path.read_text() for path in (made.path / ".results").rglob("*") if path.is_file())
    assert "SIGNED" not in kept
    division = load_division(made.path, 1)
    assert division is not None
    assert division.names == {"a", "b", "b-2", "core"}


@pytest.mark.parametrize(
    ("where", "name", "call"), [(ImportDirectory, "add", 2), (FileLedger, "adopt", 1), (ImportDirectory, "result", 2)]
)
def test_killed_anywhere_no_finished_file_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: type, name: str, call: int
) -> None:
    (tmp_path / "undivided").mkdir()
    expected = extraction(tmp_path / "undivided")
    report = expected.run()
    made = extraction(tmp_path)
    kill_at_call(monkeypatch, where, name, call)
    with pytest.raises(KilledError):
        made.run(2)
    assert figures(made.run(2)) == figures(report)
    assert made.imported() == expected.imported()
    assert len(made.server.downloads("/out/")) == len(expected.server.downloads("/out/"))
    assert len(made.server.submissions) == 1


def test_a_continued_job_downloads_from_the_urls_of_its_last_poll(tmp_path: Path) -> None:
    made = extraction(tmp_path)
    made.server.file = lambda request: httpx.Response(403) if "/y/b" in request.url.path else None
    with pytest.raises(ServiceBusyError):
        made.run(2)
    fresh = [url.replace("SIGNED", "FRESH") for url in URLS]
    made.server.polls = [manifest(*fresh)]
    made.server.file = lambda request: httpx.Response(403) if "SIGNED" in str(request.url) else None
    assert made.run(2).files == 4


def test_a_fresh_extraction_after_a_dead_handle_is_downloaded_as_a_whole(tmp_path: Path) -> None:
    made = extraction(tmp_path)
    made.run(2)
    other = [f"{BASE}/out/{OTHER_JOB}/{name}" for name in ("core.ndjson", "a.ndjson", "new.ndjson")]
    made.server.files |= dict.fromkeys(other, BUNDLE * 7)
    made.server.locations = [f"{BASE}/fhir/__status/{OTHER_JOB}"]
    made.server.results = {JOB: httpx.Response(404), OTHER_JOB: manifest(*other)}
    report = made.run(2)
    assert made.imported() == {f"{name}.ndjson": BUNDLE * 7 for name in ("a", "core", "new")}
    assert report.lines_out == 21
    assert any("was submitted afresh" in warning for warning in report.warnings)


def test_a_url_with_a_secret_of_the_configuration_is_not_divided(tmp_path: Path) -> None:
    config = configuration(auth={"api_key": "SECRET-KEY", "api_key_header": "X-Key"})
    url = f"{BASE}/out/a.ndjson?key=SECRET-KEY"
    SECRETS.config(config)
    server = MockExtraction(polls=[manifest(url, URLS[0])], files=FILES | {f"{BASE}/out/a.ndjson": BUNDLE})
    made = ExtractorJob(tmp_path / "job", server, config=config)
    with pytest.raises(AssertionError, match="fewer than two files"):
        made.run(2)
    assert load_division(made.path, 1) is None
    assert made.run().files == 2
