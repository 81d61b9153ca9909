"""Which mode runs (document 1, services.send.send_as)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config import PipelineConfig
from tasks.send.send import run
from tasks.shared.errors import SluiceError, TerminalError
from tasks.shared.step import StepContext
from tests.tasks.send.support import Job, observation, serving


def context(directory: Path, send: dict[str, Any]) -> StepContext:
    config = PipelineConfig.model_validate({"services": {"send": send}})
    return StepContext(
        config=config, job_id="j", job_dir=directory, position=1, name="send", source=directory / "import"
    )


@pytest.mark.parametrize("mode", ["transfer_load", "s3_upload"])
def test_the_other_modes_say_clearly_that_they_are_not_available_yet(tmp_path: Path, mode: str) -> None:
    with pytest.raises(TerminalError) as caught:
        run(context(tmp_path, {"send_as": mode}))
    assert caught.value.reference == "mode-not-available"
    assert mode in caught.value.message
    assert "not available yet" in caught.value.message


def test_direct_resource_load_sends(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.write("a.ndjson", observation("o"))
    with serving() as server:
        result = run(context(tmp_path, {"send_as": "direct_resource_load", "url": server.url}))
    assert result.resources_out == 1
    assert list(server.stored) == ["Observation/o"]


@pytest.mark.parametrize(
    ("send", "reference"),
    [({}, "send-mode"), ({"send_as": "direct_resource_load"}, "send-url")],
)
def test_a_missing_mode_or_url_is_an_error_of_the_configuration(
    tmp_path: Path, send: dict[str, Any], reference: str
) -> None:
    with pytest.raises(SluiceError) as caught:
        run(context(tmp_path, send))
    assert caught.value.reference == reference
    assert caught.value.exit_code == 2
