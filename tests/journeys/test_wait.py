"""Unusable corrected files: reported before the decision or in the step; once repaired, they need a new decision."""

import json

import pytest

LINE = json.dumps({"resourceType": "Patient", "id": "only-this"}) + "\n"


@pytest.mark.slow
def test_a_repaired_correction_makes_the_job_wait_for_a_new_decision(sluice, project, fhir):
    job = sluice("pipeline", "start", "config.yaml").job
    directory = project / "jobs" / job / "import_wait"
    (directory / "fixed.json").write_text(LINE)
    foreign = sluice("pipeline", "continue", "config.yaml", job, "--approve")
    assert foreign.code == 1
    assert "error[wait-foreign-files]" in foreign.err
    assert "fixed.json" in foreign.err
    assert sluice.status(job)["state"] == "waiting"

    (directory / "fixed.json").rename(directory / "fixed.ndjson")
    (directory / "fixed.ndjson").write_text(LINE + '{"family": Canaryperson}\n')
    bad = sluice("pipeline", "continue", "config.yaml", job, "--approve")
    assert bad.code == 1
    assert "error[not-json]" in bad.err
    assert "fixed.ndjson:2" in bad.err
    assert "Canaryperson" not in bad.out + bad.err

    (directory / "fixed.ndjson").write_text(LINE)
    once_more = sluice("pipeline", "continue", "config.yaml", job)
    assert once_more.code == 0, once_more.err
    assert "changed: import_wait/fixed.ndjson" in once_more.out
    assert fhir.total() == 0
    assert sluice("pipeline", "continue", "config.yaml", job, "--approve").code == 0
    assert fhir.total() == 1
