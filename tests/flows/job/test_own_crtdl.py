"""A job reads its own copy of the CRTDL; how often a document is parsed (document 1,
procedure 1; 4-product.md §4, "Continue")."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config import EnrichmentRule, PipelineConfig, load_config
from flows.job.inputs import JobInputs, gather
from flows.job.preflight import preflight
from tasks.shared.fhir import crtdl as documents
from tasks.shared.fhir.crtdl import load_crtdl
from tasks.shared.fhir.crtdl_preprocessing import write_effective
from tests.peers.extraction import crtdl

STEPS = ("extractor", "flattening", "send")


@pytest.mark.parametrize("rules", [(), (EnrichmentRule(group_reference="https://example.org/none"),)])
def test_a_run_parses_what_is_given_and_what_is_made_of_it_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: tuple[EnrichmentRule, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("query.json").write_text(json.dumps(crtdl()))
    Path("config.yaml").write_text(
        "services: {extractor: {base_url: 'http://127.0.0.1:9'}}\npipeline: {enabled_steps: [extractor]}\n"
    )
    documents._parsed.cache_clear()
    inputs = gather("config.yaml", ["query.json"])
    preflight(load_config(Path("config.yaml")), inputs)
    effective, _ = write_effective(Path("query.json"), tmp_path, rules)
    assert load_crtdl(effective) == load_crtdl(effective)
    assert documents._parsed.cache_info().misses == (2 if rules else 1)


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
