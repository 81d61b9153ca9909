"""Choice between a job's own CRTDL and the given one, and number of times a document is parsed (document 1,
procedure 1; 4-product.md §4, "Continue")."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config import EnrichmentRule, load_config
from flows.job.inputs import JobInputs, gather
from flows.job.preflight import preflight
from tasks.shared.fhir import crtdl as documents
from tasks.shared.fhir.crtdl import load_crtdl
from tasks.shared.fhir.crtdl_preprocessing import write_effective
from tests.peers.extraction import crtdl

STEPS = ("extractor", "flattening", "send")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    directory = tmp_path / "job"
    (directory / ".results").mkdir(parents=True)
    (directory / "extraction").mkdir()
    (directory / "crtdl.json").write_text("{}")
    (tmp_path / "query.json").write_text("{}")
    return directory


def own(job: Path, *, attached: bool = False, reset: int | None = None) -> bool:
    inputs = JobInputs(config="c", crtdl=str(job.parent / "query.json"))
    return inputs.own_crtdl(job, STEPS, attached=attached, reset=reset) == job / "crtdl.json"


def test_until_something_rests_on_it_the_given_one_is_read(job: Path) -> None:
    assert not own(job)
    (job / ".results" / "1-files.ndjson").touch()
    assert not own(job)


def test_a_complete_step_a_submission_and_a_handle_rest_on_it(job: Path) -> None:
    assert own(job, attached=True)
    (job / "extraction" / "submission.json").touch()
    assert own(job)
    (job / "extraction" / "submission.json").unlink()
    (job / ".results" / "1-extractor.json").touch()
    assert own(job)


def test_what_is_about_to_be_forgotten_does_not_count(job: Path) -> None:
    (job / "extraction" / "submission.json").touch()
    (job / ".results" / "1-extractor.json").touch()
    (job / ".results" / "2-flattening.json").touch()
    assert own(job, reset=2)
    assert not own(job, reset=1)
    assert own(job, reset=1, attached=True)  # the extraction is attached to again


def test_one_that_vanished_is_replaced_by_the_copy_if_there_is_one(job: Path) -> None:
    (job.parent / "query.json").unlink()
    assert own(job)
    (job / "crtdl.json").unlink()
    assert not own(job)


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
