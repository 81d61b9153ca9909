"""The step against a scripted service: chunks, what is an answer, places of findings, reports, the gate, the probe.

What all steps do (faults, kills, resumption, memory) is in the tables beside this directory.
"""

from __future__ import annotations

import csv
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from config import PipelineConfig
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError
from tasks.shared.report import StepReport
from tasks.validation.step import STEP, gate
from tests.peers import job
from tests.peers.data import CANARY, bundle, observation, patient, resource, write
from tests.peers.server import Raw, Reply, ScriptedServer, SeenRequest
from tests.peers.services import JSON, issue, outcome

Json = dict[str, Any]
Script = Callable[[SeenRequest], Reply | Raw | None]
MIB = 1 << 20


def keys(seen: SeenRequest) -> list[str]:
    return [f"{one['resource']['resourceType']}/{one['resource'].get('id')}" for one in json.loads(seen.body)["entry"]]


def judged(seen: SeenRequest) -> Reply:
    """Return an error for every ``bad`` of a resource, and a remark about the whole."""
    entries = [entry["resource"] for entry in json.loads(seen.body)["entry"]]
    bad = [issue(entry=number, code="value") for number, one in enumerate(entries) for _ in range(one.get("bad", 0))]
    return Reply(200, outcome(issue("information", "informational"), *bad), JSON)


class Place:
    """A job directory with input, and a service that judges."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reports = directory / "validation"
        self.seen: list[SeenRequest] = []
        self.context: Any = None

    def put(self, name: str, *lines: bytes | Json) -> None:
        write(self.directory / "import" / name, *lines)

    @contextmanager
    def service(self, script: Script | None = None) -> Iterator[str]:
        def scripted(seen: SeenRequest) -> Reply | Raw | None:
            self.seen.append(seen)
            return script(seen) if script is not None else None

        with ScriptedServer(judged, scripted) as server:
            yield server.url

    def run(self, url: str, *, position: int = 2, **keys: Any) -> StepReport:
        steps = {"enabled_steps": ["local_import", "validation", "wait", "validation"]}
        retry = {"max_attempts": 2, "initial_backoff_ms": 1, "max_backoff_ms": 1}
        services = {"validation": {"url": url, "bundle_chunk_size_mb": 1} | keys}
        config = PipelineConfig.model_validate({"services": services, "retry": retry, "pipeline": steps})
        more = {"position": position, "source": self.directory / "import"}
        self.context = job.context(self.directory, "validation", config, **more)
        return STEP.run(self.context)

    def judge(self, script: Script | None = None, **options: Any) -> StepReport:
        with self.service(script) as url:
            return self.run(url, **options)

    def fails(self, kind: type[SluiceError], script: Script | None = None, **options: Any) -> SluiceError:
        with pytest.raises(kind) as caught:
            self.judge(script, **options)
        assert CANARY not in caught.value.render()
        assert not list(self.reports.glob("*.ndjson*"))
        return caught.value

    @property
    def chunks(self) -> list[list[str]]:
        return [keys(seen) for seen in self.seen if b"sluiceProbe" not in seen.body]

    def rows(self, directory: str = "validation") -> list[dict[str, str]]:
        with (self.directory / directory / "summary.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def findings(self) -> list[tuple[str, str, str, str]]:
        """Return file, line, entry and resource of each error."""
        bad = [row for row in self.rows() if row["severity"] == "error"]
        return [(row["file"], row["line"], row["entry"], row["resource"]) for row in bad]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def large(kind: str, identifier: str, size: int = 400_000, **more: Any) -> Json:
    return resource(kind, identifier, text=CANARY + "x" * size, **more)


# Chunks


def test_lines_are_packed_up_to_the_limit_and_none_is_torn(place: Place) -> None:
    place.put("a.ndjson", *[bundle(large("Patient", f"p{n}"), observation(f"o{n}")) for n in range(5)])
    report = place.judge(max_concurrent_requests=1)
    assert place.chunks == [["Patient/p0", "Observation/o0", "Patient/p1", "Observation/o1"],
                            ["Patient/p2", "Observation/o2", "Patient/p3", "Observation/o3"],
                            ["Patient/p4", "Observation/o4"]]  # fmt: skip
    assert all(len(seen.body) <= MIB for seen in place.seen)
    assert (report.files, report.lines_in, report.resources_in, report.resources_out) == (1, 5, 10, 10)


def test_a_line_above_the_limit_is_torn_and_a_larger_resource_travels_alone(place: Place) -> None:
    many = [large("Observation", f"o{n}") for n in range(3)]
    place.put("a.ndjson", patient("p"), bundle(*many), large("Binary", "b", 2 * MIB), patient("q"))
    place.judge(max_concurrent_requests=1)
    assert place.chunks == [
        ["Patient/p", "Observation/o0", "Observation/o1"], ["Observation/o2"], ["Binary/b"], ["Patient/q"],
    ]  # fmt: skip


def test_every_entry_has_a_full_url_its_own_or_a_stable_one(place: Place) -> None:
    nameless = {"resourceType": "Basic"}
    place.put("a.ndjson", bundle(patient("p")), observation("o"), nameless, nameless, {**nameless, "id": "not an id"})
    place.judge()
    place.judge()
    first, second = (json.loads(seen.body) for seen in place.seen)
    assert first == second
    assert (first["resourceType"], first["type"]) == ("Bundle", "collection")
    own, synthetic, *random = [entry["fullUrl"] for entry in first["entry"]]
    assert own == "http://old.example/fhir/Patient/p"
    assert synthetic.endswith("/Observation/o")
    assert len({uuid.UUID(url.removeprefix("urn:uuid:")) for url in random}) == 3
    assert place.seen[0].headers["content-type"] == place.seen[0].headers["accept"] == "application/fhir+json"


def test_the_same_full_url_begins_the_next_chunk(place: Place) -> None:
    place.put("a.ndjson", patient("p"), observation("o"), patient("p", gender="male"), observation("q"))
    place.judge(max_concurrent_requests=1)
    assert place.chunks == [["Patient/p", "Observation/o"], ["Patient/p", "Observation/q"]]


def test_envelopes_are_unwrapped_and_documents_are_resources(place: Place) -> None:
    for kind in ("collection", "searchset", "transaction", "batch"):
        place.put(f"{kind}.ndjson", bundle(patient("p"), observation("o"), kind=kind))
    for kind in ("document", "message"):
        place.put(f"{kind}.ndjson", bundle(patient("p"), kind=kind, id=kind))
    gone = {"request": {"method": "DELETE", "url": "Patient/x"}}
    warned = {"resource": resource("OperationOutcome", "w"), "search": {"mode": "outcome"}}
    place.put(
        "some.ndjson", {"resourceType": "Bundle", "type": "batch", "entry": [gone, warned, {"resource": patient("r")}]}
    )
    report = place.judge(max_concurrent_requests=1)
    one = ["Patient/p", "Observation/o"]
    assert place.chunks == [one, one, ["Bundle/document"], ["Bundle/message"], one, ["Patient/r"], one]
    assert report.warnings == ("Bundle entries with nothing to validate (no resource, DELETE, search outcome): 2",)


def test_bytes_of_a_resource_are_never_changed(place: Place) -> None:
    spelled = b'{"resourceType":"Observation","id":"o", "valueQuantity":{"value":1.50,"unit":"\\u00b5g"},"x":1E2}'
    place.put("a.ndjson", spelled, b'{"resourceType":"Bundle","type":"batch","entry":[{"resource":%b}]}' % spelled)
    place.judge()
    assert sum(seen.body.count(spelled) for seen in place.seen) == 2


def test_requests_are_never_more_than_configured_and_reports_keep_the_order(place: Place) -> None:
    place.put("CORE.ndjson.zst", resource("Organization", "x", bad=1))
    place.put("a.ndjson", *[large("Patient", f"p{n}", 700_000, bad=n % 2) for n in range(9)])
    under_way: set[int] = set()
    most: list[int] = []

    def slow(seen: SeenRequest) -> Reply:
        under_way.add(id(seen))
        most.append(len(under_way))
        time.sleep(0.05 if "Patient/p0" in keys(seen) else 0.01)
        under_way.discard(id(seen))
        return judged(seen)

    place.judge(slow, max_concurrent_requests=3)
    assert 2 <= max(most) <= 3
    assert ["Organization/x"] in place.chunks[:3]
    assert [line for _, line, _, _ in place.findings()] == ["1", "2", "4", "6", "8"]
    assert len((place.reports / "a.validation.ndjson").read_bytes().splitlines()) == 9
    assert {path.name for path in place.reports.glob("*.*")} >= {"CORE.validation.ndjson", "summary.csv"}


# What is an answer


@pytest.mark.parametrize(
    ("status", "base", "target"),
    [(200, "/v", "/v/validateResource"), (412, "/fhir/$validate", ""), (422, "/validateResource", "")],
)
def test_an_outcome_is_the_answer_whatever_status_says_that_there_are_errors(
    place: Place, status: int, base: str, target: str
) -> None:
    place.put("a.ndjson", patient("p", bad=1), observation("o", bad=2))
    with place.service(lambda seen: Reply(status, judged(seen).body, JSON)) as url:
        assert place.run(url + base).findings == 3
    assert [seen.target for seen in place.seen] == [target or base]


WRONG = "validation-answer"


@pytest.mark.parametrize(
    ("reply", "reference"),
    [
        (Reply(200, outcome(), JSON), WRONG), (Reply(412, outcome(), JSON), WRONG), (Reply(200, b"[]", JSON), WRONG),
        (Reply(200, b'{"resourceType":"Bundle","type":"collection"}', JSON), WRONG), (Reply(200, b"", JSON), WRONG),
        (Reply(200, b'{"issue":[{"severity":"error"}]}', JSON), WRONG), (Reply(200, outcome(issue())), WRONG),
        (Reply(422, b"<html>", {"Content-Type": "text/html"}), WRONG), (Reply(202, outcome(issue()), JSON), WRONG),
        (Reply(200, outcome(issue("severe")), JSON), WRONG), (Reply(200, outcome(issue(entry=2)), JSON), WRONG),
        (Reply(200, b'{"resourceType":"OperationOutcome","issue":{}}', JSON), WRONG),
        (Reply(400, outcome(issue()), JSON), "service-refused"), (Reply(501, outcome(issue()), JSON), "service-failed"),
    ],
)  # fmt: skip
def test_a_wrong_answer_is_no_clean_bill(place: Place, reply: Reply, reference: str) -> None:
    place.put("a.ndjson", bundle(patient("p"), observation("o")))
    error = place.fails(ServiceError, lambda _: reply)
    assert (error.reference, error.exit_code, str(error.context).split()[0]) == (reference, 1, "a.ndjson:1")
    assert len(place.seen) == 1


def small(most: int) -> Script:
    return lambda seen: None if len(keys(seen)) <= most else Reply(413)


def test_413_halves_the_chunk_between_lines_and_a_single_resource_is_named(place: Place) -> None:
    place.put("a.ndjson", bundle(patient("p"), observation("o"), observation("r", bad=1)), patient("q"))
    report = place.judge(small(3), max_concurrent_requests=1)
    assert place.chunks[1:] == [["Patient/p", "Observation/o", "Observation/r"], ["Patient/q"]]
    assert place.findings() == [("a.ndjson", "1", "2", "Observation/r")]
    assert report.findings == 1
    place.put("a.ndjson", bundle(patient("p"), observation("o")))
    with pytest.raises(ServiceError) as caught:
        place.judge(small(0), max_concurrent_requests=1)
    assert caught.value.reference == "validation-too-large"
    assert str(caught.value.context) == "a.ndjson:1 entry 0 Patient"


def test_a_resource_that_the_service_fails_on_is_a_finding_with_its_place(place: Place) -> None:
    reply = Reply(500, outcome(issue("fatal")), JSON)
    place.put("a.ndjson", patient("p", bad=1), bundle(observation("o"), observation("poison"), patient("q", bad=1)))
    report = place.judge(lambda seen: reply if b"poison" in seen.body else None)
    found = [("1", "", "Patient/p"), ("2", "1", "Observation/poison"), ("2", "2", "Patient/q")]
    assert place.findings() == [("a.ndjson", *one) for one in found]
    assert (report.findings, report.details["types"]) == (3, {"Patient": 2, "Observation": 1})
    (row,) = [row for row in place.rows() if "poison" in row["resource"]]
    assert (row["code"], f"status {reply.status}" in row["message"]) == ("exception", True)


@pytest.mark.parametrize("reply", [Reply(500, outcome(issue()), JSON), Reply(500, b"java.lang"), Reply(503)])
def test_a_service_that_fails_on_everything_is_no_finding(place: Place, reply: Reply) -> None:
    place.put("a.ndjson", patient("p"), observation("o"))
    error = place.fails(ServiceBusyError, lambda _: reply)
    assert (error.exit_code, error.status) == (3, reply.status)
    assert "a.ndjson:1-2" in str(error.context)
    place.fails(NetworkError, lambda _: Reply(reset=True))


# Reports


def test_places_are_found_however_they_are_spelled(place: Place) -> None:
    at = [
        {"expression": ["Bundle.entry[1].resource.ofType(Patient).name[0]"]},
        {"location": ["Bundle.entry[1].resource/*Patient/p*/.name[0]"]},
        {"location": ["/f:Bundle/f:entry[2]/f:resource/f:Patient/f:name"]}, {"expression": ["Bundle"], "location": []},
        {"expression": ["Patient.name"], "location": ["Bundle.entry[1].name"]},
    ]  # fmt: skip
    place.put("a.ndjson", observation("o"), b"", bundle(patient("p")))
    printed = json.dumps(json.loads(outcome(*[issue() | one for one in at])), indent=2).replace("\n", "\r\n").encode()
    report = place.judge(lambda _: Reply(200, printed, JSON))
    found = [(row["line"], row["entry"], row["resource"], row["location"]) for row in place.rows()]
    assert found == [
        ("3", "0", "Patient/p", "Patient.name[0]"), ("3", "0", "Patient/p", "Patient.name[0]"),
        ("3", "0", "Patient/p", "Patient/f:name"), ("1-3", "", "", "Bundle"), ("3", "0", "Patient/p", "Patient.name"),
    ]  # fmt: skip
    assert (report.details["resources_with_findings"], report.details["types"]) == (1, {"Patient": 4, "unplaced": 1})
    assert json.loads((place.reports / "a.validation.ndjson").read_bytes().rstrip(b"\n")) == json.loads(printed)


def test_the_summary_has_every_issue_and_no_formula(place: Place) -> None:
    coded = issue("warning", "synthetic", entry=0, details={"coding": [{"code": "Rule_1"}]}, diagnostics="=cmd()\n  @x")
    place.put("a.ndjson", patient("p"))
    report = place.judge(lambda _: Reply(200, outcome(coded, issue("fatal", "value", entry=0)), JSON))
    header, *_ = (place.reports / "summary.csv").read_text().splitlines()
    assert header == "file,line,entry,resource,severity,code,message_id,location,message"
    first, second = place.rows()
    assert first == {
        "file": "a.ndjson", "line": "1", "entry": "", "resource": "Patient/p", "severity": "warning", "code": "other",
        "message_id": "Rule_1", "location": "Patient.name", "message": "'=cmd() @x",
    }  # fmt: skip
    assert (second["severity"], second["message"]) == ("fatal", f"about {CANARY}")
    assert report.details["codes"] == {"value": 1}
    assert report.details["severities"] == {"fatal": 1, "warning": 1}
    assert (report.findings, CANARY in report.model_dump_json()) == (1, False)
    for path in place.reports.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_second_validation_has_its_own_directory_and_records(place: Place) -> None:
    place.put("a.ndjson", patient("p", bad=1))
    place.judge()
    place.put("a.ndjson", patient("p"))
    report = place.judge(position=4)
    assert (report.findings, report.details["reports"]) == (0, "validation-4")
    assert [row["severity"] for row in place.rows("validation-4")] == ["information"]
    assert len(place.findings()) == 1


def test_findings_of_finished_files_still_count_and_those_of_files_that_left_do_not(place: Place) -> None:
    for name in "abc":
        place.put(f"{name}.ndjson", patient(name, bad=1))
    broken = ["Patient/c"]
    with place.service(lambda seen: Reply(403) if keys(seen) == broken else None) as url:
        with pytest.raises(ServiceError):
            place.run(url, max_concurrent_requests=1)
        broken.clear()
        place.seen.clear()
        assert place.run(url).findings == 3
        assert place.chunks == [["Patient/c"]]
        (place.directory / "import/b.ndjson").unlink()
        place.seen.clear()
        assert place.run(url).findings == 2
        assert not place.seen
    assert [file for file, *_ in place.findings()] == ["a.ndjson", "c.ndjson"]


# The gate and the probe


@pytest.mark.parametrize(("bad", "fail", "closed"), [(2, True, True), (2, False, False), (0, True, False)])
def test_the_gate_is_judged_from_the_report_and_the_configuration_of_now(
    place: Place, bad: int, fail: bool, closed: bool
) -> None:
    place.put("a.ndjson", patient("p", bad=bad))
    report = place.judge(fail_on_error=fail)
    stored = StepReport.model_validate_json(report.model_dump_json())
    for one in (report, stored):  # also when the step is skipped because it is complete
        error = gate(place.context, one)
        assert (error is not None) is closed
        if error is not None:
            assert (error.reference, error.exit_code) == ("validation-findings", 5)
            assert "2 errors in 1 resource" in error.message
            assert error.context == str(place.reports / "summary.csv")
            assert "fail_on_error: false" in str(error.hint)


OTHER = ("wrong-service", 2)
PROBES: dict[str, tuple[Reply, tuple[str, int] | None]] = {
    "findings": (Reply(200, outcome(issue()), JSON), None), "412": (Reply(412, outcome(issue()), JSON), None),
    "422": (Reply(422, outcome(issue("fatal")), JSON), None), "not found": (Reply(404), OTHER),
    "finds nothing wrong": (Reply(200, outcome(issue("information"), issue("warning")), JSON), OTHER),
    "no issue": (Reply(200, outcome(), JSON), OTHER), "page": (Reply(200, b"<html>"), OTHER),
    "gives it back": (Reply(200, b'{"resourceType":"Bundle"}', JSON), OTHER),
    "refused": (Reply(403), ("service-forbidden", 1)), "busy": (Reply(503), ("service-busy", 3)),
}  # fmt: skip


@pytest.mark.parametrize("row", PROBES)
def test_a_made_up_patient_tells_whether_it_validates(row: str) -> None:
    reply, reference = PROBES[row]
    with ScriptedServer(lambda _: reply) as server:
        config = job.configuration({"validation": {"url": server.url}}, attempts=1)
        found = job.probed(*STEP.services(config), config)
        assert [(one.reference, one.exit_code) for one in found] == ([reference] if reference else [])
        (seen,) = server.seen
    wrong = json.loads(seen.body)["entry"][0]["resource"]
    assert (seen.target, wrong["resourceType"]) == ("/validateResource", "Patient")
