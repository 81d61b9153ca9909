"""A job reads its own copy of the CRTDL."""

from __future__ import annotations

import json
from pathlib import Path

from config import PipelineConfig
from flows.job.inputs import JobInputs
from tests.peers.extraction import crtdl

STEPS = ("extractor", "flattening", "send")


def test_a_job_keeps_its_copy_when_the_original_changes_or_vanishes(tmp_path: Path) -> None:
    given, job = tmp_path / "query.json", tmp_path / "job"
    job.mkdir()
    given.write_text(json.dumps(crtdl()))
    config = PipelineConfig.model_validate({"pipeline": {"enabled_steps": ["extractor"]}})
    inputs = JobInputs(config="c", crtdl=str(given))
    copy, _ = inputs.effective_crtdl(config, job)
    assert copy == job / "crtdl.json"
    content = copy.read_bytes()
    for change in (lambda: given.write_text("{}"), given.unlink):
        change()
        assert inputs.effective_crtdl(config, job) == (copy, ())
        assert copy.read_bytes() == content
