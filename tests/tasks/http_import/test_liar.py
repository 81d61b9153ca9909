"""A web server that lies about a file to import, in one way at a time (document 3 §8): what becomes of each lie.

The lies are those about the files of an extraction, whose downloader this is; what is told here is another only where a
person named the URL, and no manifest says what it holds. ``docs/lies.md`` is made from this table.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from config import PipelineConfig
from tasks.http_import.importer import run
from tasks.shared.errors import SluiceError
from tests.peers import job
from tests.peers.lies import Lie
from tests.peers.server import Raw, Reply, SeenRequest, loopback
from tests.tasks.extractor import test_liar as extraction
from tests.tasks.extractor.test_liar import CANARY, FILE, NDJSON, PAGE, Told

_NAMED = "a person named the URL; whatever resources it holds are the data"
OTHER = bytes(FILE.splitlines(keepends=True)[0])
"""What the other, honest file holds."""


def _here(name: str, lie: Lie) -> Lie:
    if name == "an OperationOutcome":
        return replace(lie, reference=None, because="gives a warning: how many")
    if lie.reference == "resource-type-differs":
        # A resourceType that is none is one for nobody.
        no_name = name == "a resourceType that is no name"
        return replace(lie, reference="not-a-resource") if no_name else replace(lie, reference=None, because=_NAMED)
    return lie


LIES: dict[str, Lie] = {
    **{name: _here(name, lie) for name, lie in extraction.FILES.items()},
    **extraction.PARTS,
    "a redirect to another host": Lie(
        lambda told: Reply(302, headers={"Location": told.url.replace("127.0.0.1", "localhost") + "/other.ndjson"}),
        "redirect-cross-origin",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_a_url_to_import(name: str, tmp_path: Path) -> None:
    lie = extraction.broken(LIES[name]) if name in extraction.PARTS else LIES[name]

    def answer(seen: SeenRequest) -> Reply | Raw:
        if seen.target == "/other.ndjson":
            return Reply(200, OTHER, NDJSON)
        if seen.target == "/login":
            return Reply(200, PAGE.encode(), {"Content-Type": "text/html"})
        said = lie.tell(Told(seen, Reply(200, FILE, NDJSON), server.url, ""))
        return said if isinstance(said, Reply | Raw) else lie.reply(said)

    with loopback(answer) as server:
        urls = [f"{server.url}/b1.ndjson?sig={CANARY}", f"{server.url}/other.ndjson"]
        config = PipelineConfig.model_validate({
            "compression": {"enabled": False},
            "limits": {"max_resource_mb": 1},
            "services": {"http_import": {"urls": urls}},
            "retry": {"max_attempts": 2, "initial_backoff_ms": 0, "max_backoff_ms": 0},
        })  # fmt: skip
        context = job.context(tmp_path, "http_import", config, position=0)
        if lie.reference is None:
            done = run(context)
            assert done.files == 2
            assert bool(done.warnings) == lie.because.startswith("gives a warning")
            return
        with pytest.raises(SluiceError) as caught:
            run(context)
    assert caught.value.reference == lie.reference
    assert f"{server.url}/b1.ndjson" in (caught.value.context or "") or "/login" in (caught.value.context or "")
    assert CANARY not in caught.value.render()
    imported = {path.name: path.read_bytes() for path in (tmp_path / "import").iterdir()}
    assert imported in ({}, {"other.ndjson": OTHER})
