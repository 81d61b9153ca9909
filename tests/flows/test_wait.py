"""Corrected files that cannot be used: the job fails, the approval stays, continue goes on (4-product.md §4, Wait)."""

import json

LINE = json.dumps({"resourceType": "Patient", "id": "only-this"}) + "\n"


def test_after_a_corrected_file_is_mended_continue_goes_on_without_asking_again(sluice, project, fhir):
    job = sluice("pipeline", "start", "config.yaml").job
    directory = project / "jobs" / job / "import_wait"
    (directory / "fixed.json").write_text(LINE)
    foreign = sluice("pipeline", "continue", "config.yaml", job, "--approve")
    assert foreign.code == 1
    assert "error[wait-foreign-files]" in foreign.err
    assert "fixed.json" in foreign.err
    (directory / "fixed.json").rename(directory / "fixed.ndjson")
    (directory / "fixed.ndjson").write_text(LINE + '{"family": Canaryperson}\n')
    bad = sluice("pipeline", "continue", "config.yaml", job)
    assert bad.code == 1
    assert "error[not-json]" in bad.err
    assert "fixed.ndjson:2" in bad.err
    assert "Canaryperson" not in bad.out + bad.err
    assert fhir.total() == 0
    (directory / "fixed.ndjson").write_text(LINE)
    assert sluice("pipeline", "continue", "config.yaml", job).code == 0
    assert fhir.total() == 1
