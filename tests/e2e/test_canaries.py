"""Nothing secret and nothing of a payload outside the data files.

Canaries are planted in configuration, environment, data and the error bodies of a service; everything a run leaves is
scanned: Prefect's database, logs, results, labels, artifacts, the job directory, stdout and stderr.
"""

import json
import sqlite3

import pytest

PASSWORD = "canary-password-7f3a"
API_KEY = "canary-apikey-91bc"
PERSON = "Canaryperson"
LEAK = "canary-diagnostics-55d2"


@pytest.fixture
def planted(project, fhir):
    config = (project / "config.yaml").read_text()
    config = config.replace(
        f'url: "{fhir.url}"}}',
        f'url: "{fhir.url}", auth: {{username: loader, password: "${{LOADER_PASSWORD}}", api_key: {API_KEY}}}}}',
    )
    # With release reports: the one of data that identify names where, and never what.
    (project / "config.yaml").write_text(config.replace("report: {enabled: false}", "report: {k: 3}"))
    for file in (project / "data").glob("batch-*.ndjson"):
        file.write_text(file.read_text().replace("Umläut", PERSON))
    return project


def everywhere(project, job, *outputs):
    """Yield every text of a run by place, without data files and failed requests that the user chose to keep."""
    yield from (("output", output.encode()) for output in outputs)
    data = {"data", "fhir-state"}
    for path in project.rglob("*"):
        parts = path.relative_to(project).parts
        if not path.is_file() or parts[0] in data or path.name == "config.yaml":
            continue
        if parts[:2] == ("jobs", job) and len(parts) > 3 and parts[2] in {"import", "import_wait"}:
            continue
        if "failed" in parts:  # the full answers of a service, kept for the user, mode 0600
            continue
        if path.name == "pending.db":  # resources to be sent, and such answers
            assert PASSWORD.encode() not in path.read_bytes()
            continue
        yield str(path), path.read_bytes()


def databases(project):
    """Every value of every table of the embedded server's database, as text."""
    with sqlite3.connect(project / "jobs/.prefect/prefect.db") as connection:
        tables = [row[0] for row in connection.execute("select name from sqlite_master where type='table'")]
        for table in tables:
            for row in connection.execute(f'select * from "{table}"'):
                yield f"table {table}", repr(row).encode()
    connection.close()


def test_a_run_leaves_no_secret_and_no_payload_outside_its_data_files(sluice_alone, planted, fhir):
    env = {"LOADER_PASSWORD": PASSWORD, "APP_SERVICES_SEND_AUTH_PASSWORD": ""}
    started = sluice_alone("pipeline", "start", "config.yaml", env=env)
    assert started.code == 0, started.err
    job = started.job
    outcome = {
        "resourceType": "OperationOutcome",
        "issue": [{"severity": "error", "code": "processing", "diagnostics": f"{LEAK} {PERSON} {PASSWORD}"}],
    }
    fault = {
        "action": "status", "status": 422, "body": json.dumps(outcome), "path": "/fhir*", "method": "POST",
        "contains": f"{PERSON}", "times": None,
    }  # fmt: skip
    fhir.faults(fault)
    failed = sluice_alone("pipeline", "continue", "config.yaml", job, "--approve", "--comment", "made up", env=env)
    assert failed.code == 1, failed.out + failed.err
    shown = sluice_alone("config", "show", "config.yaml", env=env)
    status = sluice_alone("pipeline", "status", "config.yaml", job, "--json", env=env)
    outputs = [text for ran in (started, failed, shown, status) for text in (ran.out, ran.err)]
    found = [
        (place, canary)
        for place, content in (*everywhere(planted, job, *outputs), *databases(planted))
        for canary in (PASSWORD, API_KEY, PERSON, LEAK)
        if canary.encode() in content
    ]
    assert found == []
    assert list((planted / "jobs" / job / "report").rglob("release-report.html"))
    # The canaries were really there to be leaked.
    kept = b"".join(p.read_bytes() for p in (planted / "jobs" / job / "send" / "failed").rglob("*") if p.is_file())
    assert LEAK.encode() in kept
