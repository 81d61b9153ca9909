"""The validation step as a whole: document 3 §6, document 1 services.validation, ``4-product.md`` §4."""

from __future__ import annotations

import json
import logging
import stat
import threading
from pathlib import Path

import pytest
import zstandard

from tasks.shared.blanked import SECRETS
from tasks.shared.errors import DataError, InputError
from tasks.validation.client import endpoint
from tests.peers.data import CANARY, bundle
from tests.peers.server import Reply
from tests.peers.services import issue, outcome
from tests.peers.validation import ValidationJob, patient, patient_line, resource, serving


@pytest.fixture
def job(tmp_path: Path) -> ValidationJob:
    return ValidationJob(tmp_path)


def test_the_body_is_a_collection_bundle_posted_to_validate_resource(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1"), bundle(patient("p2"), resource("Observation", "o1")))
    with serving() as server:
        job.validate(server.url)
    assert [seen.target for seen in server.seen] == ["/validateResource"]
    assert server.seen[0].headers["content-type"] == "application/fhir+json"
    assert server.seen[0].headers["accept"] == "application/fhir+json"
    assert "authorization" not in server.seen[0].headers
    body = json.loads(server.bodies[0])
    assert (body["resourceType"], body["type"]) == ("Bundle", "collection")
    assert [entry["fullUrl"] for entry in body["entry"]] == [
        "https://sluice.invalid/fhir/Patient/p1",
        "http://old.example/fhir/Patient/p2",
        "http://old.example/fhir/Observation/o1",
    ]
    assert not any("request" in entry for entry in body["entry"])


def test_reports_and_summary_keep_no_credential_and_count_what_the_service_said(job: ValidationJob) -> None:
    SECRETS.text("structure-secret")

    def echo(_number: int, _body: bytes) -> Reply:
        said = issue(entry=0, details={"text": "Authorization: Bearer structure-secret"})
        return Reply(200, outcome(said, issue("warning", entry=0, diagnostics="structure-secret")))

    job.write("a.ndjson", patient("p1"))
    with serving(echo) as server:
        result = job.validate(server.url)
    assert result.details["severities"] == {"error": 1, "warning": 1}
    kept = b"".join(path.read_bytes() for path in job.directory.rglob("*") if path.is_file())
    assert b"Authorization: Bearer [blanked]" in kept
    assert b"structure-secret" not in kept


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://v.example", "http://v.example/validateResource"),
        ("http://v.example/a", "http://v.example/a/validateResource"),
        ("http://v.example/validateResource", "http://v.example/validateResource"),
        ("http://v.example/fhir/$validate", "http://v.example/fhir/$validate"),
    ],
)
def test_a_url_that_names_the_operation_is_used_as_given(url: str, expected: str) -> None:
    assert endpoint(url) == expected


def test_valid_data_completes_without_findings_and_is_passed_through(job: ValidationJob) -> None:
    job.write("core.ndjson", resource("Organization", "org"))
    job.write("a.ndjson", *[patient_line(n, 3) for n in range(4)])
    with serving() as server:
        result = job.validate(server.url)
    assert result.output is None
    assert (result.files, result.resources_in, result.resources_out, result.lines_in) == (2, 13, 13, 5)
    assert result.bytes_in == sum(path.stat().st_size for path in job.input.iterdir())
    assert result.findings == result.details["findings"] == result.details["resources_with_findings"] == 0
    assert "no findings" in result.summary()
    assert result.details["severities"] == {"information": 2}
    assert result.details["reports"] == "validation"
    assert [row["file"] for row in job.summary()] == ["core.ndjson", "a.ndjson"]


def test_findings_do_not_fail_the_step_and_are_counted_by_severity_type_and_code(job: ValidationJob) -> None:
    job.write(
        "a.ndjson", patient("p0"), patient("p1", bad=2), bundle(patient("p2"), resource("Observation", "o1", bad=1))
    )
    with serving() as server:
        result = job.validate(server.url)
    details = result.details
    assert (details["findings"], details["resources_with_findings"], details["issues"]) == (3, 2, 4)
    assert result.findings == 3
    assert "3 findings" in result.summary()
    assert details["severities"] == {"error": 3, "information": 1}
    assert details["types"] == {"Patient": 2, "Observation": 1}
    assert details["codes"] == {"structure Made_Up_0": 2, "structure Made_Up_1": 1}
    assert CANARY not in json.dumps(result.result())


def test_the_summary_maps_an_issue_to_file_line_and_resource(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1", bad=1), b"", bundle(patient("p2"), resource("Observation", "o1", bad=1)))
    with serving() as server:
        job.validate(server.url)
    whole, first, second = job.summary()
    assert whole == {
        "file": "a.ndjson",
        "line": "1-3",
        "entry": "",
        "resource": "",
        "severity": "information",
        "code": "informational",
        "message_id": "",
        "location": "",
        "message": f"about {CANARY}",
    }
    assert (first["line"], first["entry"], first["resource"], first["location"]) == (
        "1",
        "",
        "Patient/p1",
        "Patient.name",
    )
    assert (second["line"], second["entry"], second["resource"]) == ("3", "1", "Observation/o1")
    assert (first["severity"], first["code"], first["message_id"]) == ("error", "structure", "Made_Up_0")


@pytest.mark.parametrize("begins", ["=", "+", "-", "@"])
def test_no_cell_of_the_summary_is_a_formula(job: ValidationJob, begins: str) -> None:
    formula = f"{begins}1+cmd|' /C calc'!A0"

    def answer_with_formula(_number: int, _body: bytes) -> Reply:
        coding = {"coding": [{"system": "http://s.example", "code": formula}], "text": f"  {formula}"}
        return Reply(200, outcome(issue(code=formula, entry=0, details=coding, diagnostics=f" \t{formula}")))

    job.write(f"{begins}a.ndjson", patient("p1"))
    with serving(answer_with_formula) as server:
        job.validate(server.url)
    (row,) = job.summary()
    assert row["file"] == f"'{begins}a.ndjson"
    assert row["message"].startswith(f"'{begins}")
    assert not [cell for cell in row.values() if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_the_report_has_one_outcome_per_chunk_in_order_unchanged_and_on_one_line(job: ValidationJob) -> None:
    job.write("a.ndjson", *[patient(f"p{n}", x="y" * 600) for n in range(6)])

    def pretty(number: int, body: bytes) -> Reply:
        about = json.loads(body)["entry"][0]["resource"]["id"]
        issues = '"issue": [{"severity": "success"}]'
        text = f'{{\r\n  "resourceType": "OperationOutcome",\n  "value" : 1.50,\n "id":"{about}", {issues}\n}}\n'
        return Reply(200, text.encode(), seconds=0.05 if number == 0 else 0)

    with serving(pretty) as server:
        job.validate(server.url, chunk_bytes=1000)
    assert len(server.bodies) == 6
    lines = (job.output / "a.validation.ndjson").read_bytes().splitlines()
    assert lines == [
        b'{  "resourceType": "OperationOutcome",  "value" : 1.50, "id":"p%d", "issue": [{"severity": "success"}]}' % n
        for n in range(6)
    ]


def test_reports_are_plain_and_named_after_the_base_of_the_file(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1"))
    (job.input / "b.ndjson.zst").write_bytes(zstandard.compress(json.dumps(patient("p2", bad=1)).encode()))
    with serving() as server:
        result = job.validate(server.url)
    assert sorted(job.reports()) == ["a.validation.ndjson", "b.validation.ndjson"]
    assert result.details["findings"] == 1


def test_everything_written_is_private(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1", bad=1))
    with serving() as server:
        job.validate(server.url)
    paths = [job.output, *job.output.rglob("*")]
    assert len(paths) >= 6
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert not list(job.output.rglob("*.part"))


def test_an_empty_file_has_an_empty_report(job: ValidationJob) -> None:
    job.write("a.ndjson")
    with serving() as server:
        result = job.validate(server.url)
    assert job.files()["a.validation.ndjson"] == b""
    assert (result.files, result.resources_in) == (1, 0)


def test_an_issue_about_several_entries_has_a_row_for_each_and_counts_once(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1"), patient("p2"))
    both = issue(expression=["Bundle.entry[0].resource/*Patient/p1*/.name", "Bundle.entry[1].resource/*Patient/p2*/"])
    with serving(lambda *_: Reply(200, outcome(both, issue()))) as server:
        result = job.validate(server.url)
    assert (result.details["findings"], result.details["resources_with_findings"]) == (2, 2)
    assert result.details["types"] == {"Patient": 1, "unplaced": 1}
    assert [(row["line"], row["resource"], row["location"]) for row in job.summary()] == [
        ("1", "Patient/p1", "Patient.name"),
        ("2", "Patient/p2", "Patient"),
        ("1-2", "", ""),
    ]


@pytest.mark.parametrize("requests", [1, 3])
def test_never_more_requests_in_flight_than_max_concurrent_requests_across_files(
    job: ValidationJob, requests: int
) -> None:
    for name in "abcd":
        job.write(f"{name}.ndjson", *[patient(f"{name}{n}", x="y" * 600) for n in range(6)])
    together = threading.Barrier(requests, timeout=60)

    def script(number: int, _: bytes) -> Reply:
        if number < requests:
            together.wait()  # passes only when so many are under way
        return Reply(seconds=0.01)  # time for one more, if it could

    with serving(script) as server:
        job.validate(server.url, chunk_bytes=1000, max_concurrent_requests=requests)
    assert len(server.bodies) == 24
    assert server.busiest == requests


def test_core_is_validated_first(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1"))
    job.write("core.ndjson", resource("Organization", "org"))
    with serving() as server:
        job.validate(server.url, max_concurrent_requests=1)
    assert server.validated == ["Organization/org", "Patient/p1"]


def test_413_halves_the_chunk_until_it_fits_and_maps_its_issues(job: ValidationJob) -> None:
    job.write("a.ndjson", *[patient(f"p{n}", bad=n % 2, x="y" * 300) for n in range(16)])
    with serving(limit=2000) as server:
        result = job.validate(server.url, max_concurrent_requests=1)
    assert server.validated == [f"Patient/p{n}" for n in range(16)]
    assert all(len(body) <= 2000 for body in server.accepted)
    assert result.details["findings"] == 8
    rows = [(row["line"], row["resource"]) for row in job.summary() if row["severity"] == "error"]
    assert rows == [(str(n + 1), f"Patient/p{n}") for n in range(1, 16, 2)]


def test_what_is_as_large_as_a_refused_chunk_is_not_sent_again(job: ValidationJob) -> None:
    job.write("a.ndjson", *[patient(f"p{n:02}", x="y" * 400) for n in range(40)])
    with serving(limit=3000) as server:
        job.validate(server.url, chunk_bytes=5000, max_concurrent_requests=1)
    assert len(server.bodies) - len(server.accepted) == 1
    assert server.validated == [f"Patient/p{n:02}" for n in range(40)]


def test_an_answer_that_is_too_large_is_asked_for_in_halves(
    job: ValidationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.validation.client.MAX_ANSWER", 1500)
    job.write("a.ndjson", *[patient(f"p{n}", bad=1) for n in range(8)])
    with serving() as server:
        result = job.validate(server.url, max_concurrent_requests=1)
    assert result.details["findings"] == 8
    assert [row["resource"] for row in job.summary() if row["resource"]] == [f"Patient/p{n}" for n in range(8)]


def test_a_second_validation_step_has_a_directory_of_its_own(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1", bad=1))
    steps = ["local_import", "validation", "wait", "validation"]
    with serving() as server:
        first = job.validate(server.url, steps=steps)
        second = job.validate(server.url, steps=steps, more={"position": 4})
    assert (first.details["reports"], second.details["reports"]) == ("validation", "validation-4")
    assert (job.directory / "validation" / "summary.csv").exists()
    assert (job.directory / "validation-4" / "summary.csv").exists()
    assert len(server.bodies) == 2


def test_files_that_differ_in_compression_only_have_two_reports(job: ValidationJob) -> None:
    job.write("a.ndjson", patient("p1"))
    (job.input / "a.ndjson.zst").write_bytes(zstandard.compress(json.dumps(patient("p2")).encode()))
    with serving() as server:
        result = job.validate(server.url)
    assert sorted(job.reports()) == ["a.ndjson.zst.validation.ndjson", "a.validation.ndjson"]
    assert result.details["report_files"] == 2


def test_entries_without_a_resource_are_told_of(job: ValidationJob) -> None:
    line = bundle(patient("p1"))
    line["entry"].append({"request": {"method": "DELETE", "url": "Patient/p9"}})
    job.write("a.ndjson", line)
    with serving() as server:
        result = job.validate(server.url)
    assert result.details["skipped_entries"] == 1
    assert result.warnings[0].startswith("Bundle entries with nothing to validate")


def test_no_payload_is_logged(job: ValidationJob, caplog: pytest.LogCaptureFixture) -> None:
    job.write("a.ndjson", *[patient(f"{CANARY}-{n}", bad=1) for n in range(5)])
    with caplog.at_level(logging.DEBUG), serving(limit=1000) as server:
        job.validate(server.url)
    assert "a.ndjson has 5 findings" in caplog.text
    assert CANARY not in caplog.text


def test_progress_is_of_files_resources_and_the_fraction_done(job: ValidationJob) -> None:
    job.write("a.ndjson", *[patient(f"p{n}") for n in range(5)])
    job.write("b.ndjson", patient("x"))
    with serving() as server:
        job.validate(server.url)
    snapshot = job.context.meter.snapshot()
    assert (snapshot.files, snapshot.files_total, snapshot.resources, snapshot.fraction) == (2, 2, 6, 1.0)


def test_nothing_to_validate_and_no_service_are_errors(job: ValidationJob) -> None:
    with pytest.raises(DataError) as nothing:
        job.validate("http://127.0.0.1:9")
    assert nothing.value.reference == "validation-no-input"
    job.write("a.ndjson", patient("p1"))
    with pytest.raises(InputError) as nobody:
        job.validate(None)  # type: ignore[arg-type]
    assert (nobody.value.reference, nobody.value.exit_code) == ("validation-url", 2)
