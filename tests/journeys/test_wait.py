"""Corrected files at a wait: named until they can be used, shown before they are approved, then sent."""

import json

LINE = json.dumps({"resourceType": "Patient", "id": "only-this"}) + "\n"


def test_corrections_are_repaired_shown_and_sent(sluice, project, fhir):
    job = sluice("pipeline", "start", "config.yaml").job
    corrected = project / "jobs" / job / "import_wait"

    def approve(code):
        ran = sluice("pipeline", "continue", "config.yaml", job, "--approve")
        assert ran.code == code, ran.out + ran.err
        return ran

    (corrected / "fixed.json").write_text(LINE)
    for _ in range(2):
        approve(5)
        assert "that would not be read" in sluice.status(job)["waiting"]["reason"]

    (corrected / "fixed.json").rename(corrected / "fixed.ndjson")
    (corrected / "fixed.ndjson").write_text(LINE + '{"family": Canaryperson}\n')
    assert "import_wait/fixed.json" in approve(5).out
    bad = approve(1)
    assert "error[not-json]" in bad.err
    assert "fixed.ndjson:2" in bad.err
    assert "Canaryperson" not in bad.out + bad.err

    (corrected / "fixed.ndjson").write_text(LINE)
    once_more = sluice("pipeline", "continue", "config.yaml", job)
    assert once_more.code == 0, once_more.err
    assert "changed: import_wait/fixed.ndjson" in once_more.out
    assert fhir.total() == 0
    approve(0)
    assert fhir.total() == 1


def test_corrections_changed_after_their_approval_are_asked_about_where_nothing_reads_them(sluice, project):
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("wait, send", "wait"))
    job = sluice("pipeline", "start", "config.yaml").job
    corrected = project / "jobs" / job / "import_wait" / "fixed.ndjson"
    corrected.write_text(LINE + "{\n")
    approve = ("pipeline", "continue", "config.yaml", job, "--approve")
    assert [sluice(*approve).code for _ in range(2)] == [5, 1]
    corrected.write_text(LINE)
    assert sluice("pipeline", "continue", "config.yaml", job).code == 0
    status = sluice.status(job)
    assert (status["state"], status["error"]) == ("waiting", None)
    assert "changed: import_wait/fixed.ndjson" in status["waiting"]["reason"]
    assert sluice(*approve).code == 0
    assert sluice.status(job)["state"] == "completed"
