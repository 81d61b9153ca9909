"""Which mode runs (document 1, services.send.send_as)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.send.step import run
from tasks.shared.errors import SluiceError
from tasks.shared.step import StepContext
from tests.peers import job
from tests.peers.fhir import Job, observation, serving


def context(directory: Path, send: dict[str, Any]) -> StepContext:
    return job.context(directory, "send", {"services": {"send": send}}, source=directory / "import")


def test_direct_resource_load_sends(tmp_path: Path) -> None:
    given = Job(tmp_path)
    given.write("a.ndjson", observation("o"))
    with serving() as server:
        result = run(context(tmp_path, {"send_as": "direct_resource_load", "url": server.url}))
    assert result.resources_out == 1
    assert list(server.stored) == ["Observation/o"]


@pytest.mark.parametrize(("send", "reference"), [({}, "send-mode"), ({"send_as": "direct_resource_load"}, "send-url")])
def test_a_missing_mode_or_url_is_an_error_of_the_configuration(
    tmp_path: Path, send: dict[str, Any], reference: str
) -> None:
    with pytest.raises(SluiceError) as caught:
        run(context(tmp_path, send))
    assert caught.value.reference == reference
    assert caught.value.exit_code == 2


def test_what_is_no_data_is_named_once_and_not_sent(tmp_path: Path) -> None:
    given = Job(tmp_path)
    given.write("a.ndjson", observation("o"))
    (given.input / "NOTES.txt").write_text("call Mrs. Canaryperson")
    with serving() as server:
        result = run(context(tmp_path, {"send_as": "direct_resource_load", "url": server.url}))
    assert result.warnings[0] == "left alone in import/, because it is no data: NOTES.txt"
