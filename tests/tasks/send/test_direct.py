"""``direct_resource_load`` over a FHIR server (docs/services.md)."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import DataError, DiskFullError, ServiceBusyError, ServiceError, SluiceError, TerminalError
from tests.peers.data import bundle, patient_bundle, resource, write
from tests.peers.server import Reply
from tests.peers.services import JSON
from tests.tasks.send.place import MISSING, Fhir, SendJob, observation, refusal, serving, to


@pytest.fixture
def job(tmp_path: Path) -> SendJob:
    return SendJob(tmp_path)


# What is sent


def test_transactions_are_posted_to_url_fhir_asking_for_a_minimal_answer(job: SendJob) -> None:
    job.write("a.ndjson", bundle(observation("o")))
    with serving(Fhir()) as server:
        job.load(server.url + "/")
    (seen,) = server.seen
    assert (seen.target, seen.headers["prefer"]) == ("/fhir", "return=minimal")
    assert seen.headers["content-type"] == seen.headers["accept"] == "application/fhir+json"
    assert json.loads(seen.body) == {
        "resourceType": "Bundle",
        "type": "transaction",
        "entry": [
            {
                "fullUrl": f"{server.url}/fhir/Observation/o",
                "resource": observation("o"),
                "request": {"method": "PUT", "url": "Observation/o"},
            }
        ],
    }


@pytest.mark.parametrize("name", ["core.ndjson", "CORE.ndjson", "Core.ndjson.zst"])
def test_core_is_sent_first_and_alone(job: SendJob, name: str) -> None:
    fhir = Fhir()
    for number in range(4):
        job.write(f"A{number}.ndjson", *[patient_bundle(10 * number + n, 5) for n in range(4)])
    write(job.input / name, *[resource("Organization", f"org{n}") for n in range(30)])
    with serving(fhir) as server:
        job.load(server.url, batch_size=10, max_concurrent_requests=4)
    kinds = [{key.split("/")[0] for key in keys} for keys in fhir.sent]
    assert kinds[:3] == [{"Organization"}] * 3
    assert all("Organization" not in kind for kind in kinds[3:])


def test_envelopes_are_unwrapped_and_documents_are_resources(job: SendJob) -> None:
    document = {"resourceType": "Bundle", "id": "doc", "type": "document", "entry": [{"resource": observation("in")}]}
    entry = {"request": {"method": "DELETE", "url": "Patient/1"}, "resource": observation("no")}
    deleting = {"resourceType": "Bundle", "type": "batch", "entry": [entry, {"resource": observation("o2")}]}
    job.write("a.ndjson", bundle(observation("o1"), kind="collection"), document, deleting)
    fhir = Fhir()
    with serving(fhir) as server:
        result = job.load(server.url)
    assert sorted(fhir.resources) == ["Bundle/doc", "Observation/o1", "Observation/o2"]
    assert (result.lines_in, result.resources_in, result.resources_out) == (3, 3, 3)


@pytest.mark.parametrize(("batch_size", "expected"), [(100, 100), (7, 7), (1, 1), (0, 100), (1000, 250)])
def test_at_most_batch_size_resources_travel_together(job: SendJob, batch_size: int, expected: int) -> None:
    job.write("a.ndjson", bundle(*[observation(f"o{n}") for n in range(250)]))
    fhir = Fhir()
    with serving(fhir) as server:
        job.load(server.url, batch_size=batch_size)
    assert max(map(len, fhir.sent)) == expected
    assert [key for keys in fhir.sent for key in keys] == [f"Observation/o{n}" for n in range(250)]


def test_a_line_that_fits_into_a_transaction_is_not_divided(job: SendJob) -> None:
    job.write("a.ndjson", *[patient_bundle(number, 4) for number in range(5)])
    fhir = Fhir()
    with serving(fhir) as server:
        job.load(server.url, batch_size=10)
    assert [len(keys) for keys in fhir.sent] == [8, 8, 4]


@pytest.mark.slow
def test_at_most_five_mib_travel_together_unless_a_single_resource_is_larger(job: SendJob) -> None:
    large = [observation(f"l{n}", note="x" * 2_000_000) for n in range(5)]
    job.write("a.ndjson", bundle(*large), observation("huge", note="x" * 6_000_000), observation("small"))
    fhir = Fhir()
    with serving(fhir) as server:
        job.load(server.url)
    assert [len(keys) for keys in fhir.sent] == [2, 2, 1, 1, 1]
    assert [len(seen.body) > 5 << 20 for seen in server.seen] == [False, False, False, True, False]


def test_the_bytes_of_a_resource_are_not_changed(job: SendJob) -> None:
    raw = '{"resourceType":"Observation","id":"o","v":[1.50,1E2,-0.0,0.10000000000000000001], "t":"ä\\u00e4"}'.encode()
    job.write("a.ndjson", raw)
    fhir = Fhir()
    with serving(fhir) as server:
        job.load(server.url)
    assert fhir.resources == {"Observation/o": raw}


def test_resources_without_an_id_get_the_same_one_in_every_send(tmp_path: Path) -> None:
    line = bundle({"resourceType": "Observation", "v": 1}, {"resourceType": "Observation", "v": 1})
    stored = []
    for name in ("a", "b"):
        job, fhir = SendJob(tmp_path / name), Fhir()
        job.write("a.ndjson", line)
        with serving(fhir) as server:
            result = job.load(server.url)
        stored.append(fhir.resources)
    assert len(stored[0]) == 2
    assert stored[0] == stored[1]
    assert result.details["derived_ids"] == 2
    assert any("resources without an id: 2" in warning for warning in result.warnings)


def test_urn_references_lead_to_the_entry_of_the_same_bundle(job: SendJob) -> None:
    person = {"fullUrl": "urn:uuid:p", "resource": resource("Patient", "p")}
    one = {"fullUrl": "urn:uuid:o", "resource": observation("o", subject=to("urn:uuid:p"), focus=[to("urn:uuid:x")])}
    job.write("a.ndjson", {"resourceType": "Bundle", "type": "transaction", "entry": [one, person]})
    fhir = Fhir()
    with serving(fhir) as server:
        job.load(server.url)
    stored = fhir.value("Observation/o")
    assert (stored["subject"], stored["focus"]) == (to("Patient/p"), [to("urn:uuid:x")])


def test_the_last_of_the_same_resource_in_one_transaction_wins_with_a_warning(job: SendJob) -> None:
    job.write("a.ndjson", observation("o", v=1), observation("x"), observation("o", v=2))
    fhir = Fhir()
    with serving(fhir) as server:
        result = job.load(server.url)
    assert fhir.sent == [["Observation/x", "Observation/o"]]
    assert fhir.value("Observation/o")["v"] == 2
    assert (result.resources_in, result.resources_out, result.details["replaced"]) == (3, 2, 1)
    assert any(warning.startswith("resources replaced by") for warning in result.warnings)


def test_files_are_sent_in_parallel_and_each_in_its_order(job: SendJob) -> None:
    for number in range(6):
        job.write(f"{number}.ndjson", *[observation(f"{number}-{n:02}") for n in range(20)])
    fhir = Fhir()
    with serving(fhir) as server:
        job.load(server.url, batch_size=3, max_concurrent_requests=3)
    assert server.connections == 3
    keys = [key for sent in fhir.sent for key in sent]
    for number in range(6):
        own = [key for key in keys if key.startswith(f"Observation/{number}-")]
        assert own == sorted(own)


def test_counts_types_and_bytes_are_reported(job: SendJob) -> None:
    job.write("core.ndjson", resource("Organization", "org"))
    job.write("a.ndjson", patient_bundle(1, 4), patient_bundle(2, 4))
    with serving(Fhir()) as server:
        result = job.load(server.url)
    assert (result.files, result.lines_in, result.resources_in, result.resources_out) == (2, 3, 9, 9)
    assert result.bytes_in == sum(path.stat().st_size for path in job.input.iterdir())
    assert result.bytes_out == sum(len(seen.body) for seen in server.seen)
    assert (result.output, result.warnings) == (None, ())
    assert result.details["types"] == {"Observation": 6, "Organization": 1, "Patient": 2}
    snapshot = job.context.meter.snapshot()
    assert (snapshot.files, snapshot.files_total, snapshot.resources, snapshot.fraction) == (2, 2, 9, 1.0)


# What waits


MANNERS = pytest.mark.parametrize("manners", MISSING)


@MANNERS
def test_a_resource_waits_until_the_target_of_its_reference_is_there(job: SendJob, manners: str) -> None:
    job.write("a.ndjson", *[resource("Basic", f"b{n}", x=to(f"Zzz/z{n}")) for n in range(5)])
    job.write("b.ndjson", resource("Basic", "free"), *[resource("Zzz", f"z{n}") for n in range(5)])
    fhir = Fhir(manners)
    with serving(fhir) as server:
        result = job.load(server.url, batch_size=3, max_concurrent_requests=1)
    assert len(fhir.resources) == result.resources_out == 11
    assert result.details["deferred"] == 5
    assert not job.pending.exists()


@MANNERS
@pytest.mark.parametrize(("count", "batch_size", "most"), [(12, 7, 500), (1, 4, 12)], ids=["wide", "one of a patient"])
def test_circles_of_references_across_files_get_in_together(
    job: SendJob, manners: str, count: int, batch_size: int, most: int
) -> None:
    people = range(5)
    encounters, conditions = [], []
    for person, number in ((p, n) for p in people for n in range(count)):
        name, subject = f"{person}-{number}", to(f"Patient/{person}")
        encounters.append(
            resource("Encounter", name, subject=subject, diagnosis=[{"condition": to(f"Condition/{name}")}])
        )
        conditions.append(resource("Condition", name, subject=subject, encounter=to(f"Encounter/{name}")))
    job.write("Condition.ndjson", *conditions)
    job.write("Encounter.ndjson", *encounters)
    job.write("Patient.ndjson", *[resource("Patient", str(person)) for person in people])
    fhir = Fhir(manners)
    with serving(fhir) as server:
        result = job.load(server.url, batch_size=batch_size)
    assert result.resources_out == len(fhir.resources) == 5 + 2 * 5 * count
    assert max(map(len, fhir.sent)) <= batch_size
    assert len(fhir.sent) <= most  # packed by patient, a circle of few is one transaction


def test_a_chain_of_references_against_the_order_of_the_input_is_loaded(job: SendJob) -> None:
    count = 60
    lines = [observation(f"o{n}", derivedFrom=to(f"Observation/o{n + 1}")) for n in range(count)]
    job.write("a.ndjson", *lines, observation(f"o{count}"))
    fhir = Fhir("hapi")
    with serving(fhir) as server:
        result = job.load(server.url, batch_size=4, max_concurrent_requests=1)
    assert result.resources_out == len(fhir.resources) == count + 1
    assert len(fhir.sent) < 200


def test_of_what_waits_together_the_last_one_wins(job: SendJob) -> None:
    job.write("a.ndjson", observation("o", v=1, subject=to("Patient/p")))
    job.write("b.ndjson", observation("o", v=2, subject=to("Patient/p")))
    job.write("c.ndjson", resource("Patient", "p"))
    fhir = Fhir("hapi")
    with serving(fhir) as server:
        result = job.load(server.url, max_concurrent_requests=1)
    assert fhir.value("Observation/o")["v"] == 2
    assert (result.resources_in, result.resources_out, result.details["replaced"]) == (3, 2, 1)


# What is refused


@MANNERS
def test_a_target_that_never_arrives_is_an_error_only_for_resources_that_need_it(job: SendJob, manners: str) -> None:
    lost = observation("lost", subject=to("Patient/nowhere"))
    dependent = observation("dependent", derivedFrom=to("Observation/lost"))
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(20)], lost, dependent)
    fhir = Fhir(manners)
    with serving(fhir) as server, pytest.raises(TerminalError) as caught:
        job.load(server.url, batch_size=8)
    assert len(fhir.resources) == 20
    assert caught.value.reference == "send-refused"
    assert sorted(one["resource"] for one in job.kept()) == ["Observation/dependent", "Observation/lost"]


STAYING = [
    (400, "invalid", "x"),
    (404, "not-found", "no match for the search reference"),
    (409, "conflict", "Block C"),
    (409, "processing", "unit conversion failed"),
    (412, "business-rule", "conversion of a version that is locked"),
    (422, "invariant", "x"),
    (500, "exception", "x"),
]
"""Refusals that stay while other transactions succeed; no word of theirs counts."""


@pytest.mark.parametrize(("status", "code", "text"), STAYING)
def test_one_resource_never_ends_a_load(job: SendJob, status: int, code: str, text: str) -> None:
    job.write("a.ndjson", *[bundle(*[observation(f"o{line}-{n}") for n in range(20)]) for line in range(5)])
    fhir = Fhir()
    for key in ("Observation/o0-0", "Observation/o3-7", "Observation/o3-8"):
        fhir.refused[key] = refusal(status, code, text)
    with serving(fhir) as server:
        with pytest.raises(TerminalError) as caught:
            job.load(server.url, batch_size=30)
        error = caught.value
        assert (error.reference, error.exit_code, len(fhir.resources)) == ("send-refused", 1, 97)
        assert error.message == f"send: 3 of 100 resources were not accepted: 3 × {status} ({code})"
        assert error.context == "a.ndjson:1 Observation, a.ndjson:4 Observation, a.ndjson:4 Observation"
        assert text not in error.render() or text == "x"
        fhir.refused.clear()
        fhir.sent.clear()
        result = job.load(server.url)
    assert sorted(key for keys in fhir.sent for key in keys) == [
        "Observation/o0-0",
        "Observation/o3-7",
        "Observation/o3-8",
    ]
    assert (result.resources_in, result.resources_out, len(fhir.resources)) == (100, 100, 100)
    assert not job.pending.exists()
    assert (job.kept(), job.summary()) == ([], [])


@pytest.mark.parametrize("answer", [refusal(401), refusal(403), refusal(407), Reply(409), Reply(412), Reply(500)])
def test_a_refused_caller_and_a_failure_without_a_reason_end_the_step(job: SendJob, answer: Reply) -> None:
    job.write("a.ndjson", observation("o1"), observation("o2"))
    fhir = Fhir()
    fhir.refused["Observation/o2"] = answer
    with serving(fhir) as server, pytest.raises(SluiceError) as caught:
        job.load(server.url, batch_size=1)
    assert (caught.value.status, caught.value.reference == "send-refused") == (answer.status, False)
    assert job.waiting() == []


@MANNERS
def test_a_bad_resource_does_not_keep_a_circle_of_its_encounter_out(job: SendJob, manners: str) -> None:
    subject = to("Patient/p")
    encounter = resource("Encounter", "e", subject=subject, diagnosis=[{"condition": to("Condition/c")}])
    condition = resource("Condition", "c", subject=subject, encounter=to("Encounter/e"))
    bad = observation("bad", subject=subject, encounter=to("Encounter/e"))
    job.write("a.ndjson", bundle(bad, condition, encounter, resource("Patient", "p")))
    fhir = Fhir(manners)
    fhir.refused["Observation/bad"] = refusal()
    with serving(fhir) as server, pytest.raises(TerminalError):
        job.load(server.url)
    assert sorted(fhir.resources) == ["Condition/c", "Encounter/e", "Patient/p"]
    assert [one["resource"] for one in job.kept()] == ["Observation/bad"]


def test_refused_resources_and_answers_are_kept_private_with_file_line_and_type_id(job: SendJob) -> None:
    job.write("core.ndjson", observation("fine"))
    job.write("=a.ndjson", observation("o1"), bundle(observation("o2"), observation("bad", v=1)))
    fhir = Fhir()
    fhir.refused["Observation/bad"] = refusal()
    with serving(fhir) as server, pytest.raises(TerminalError):
        job.load(server.url)
    (record,) = job.kept()
    assert record == {
        "file": "=a.ndjson",
        "line": 2,
        "entry": 1,
        "resource": "Observation/bad",
        "status": 422,
        "reason": "422 (invariant)",
        "request": '{"resourceType":"Observation","id":"bad","v":1}',
        "answer": (refusal().body or b"").decode(),
    }
    assert job.summary() == [
        "file,line,entry,resource,status,reason",
        "'=a.ndjson,2,1,Observation/bad,422,422 (invariant)",
    ]
    assert job.waiting() == [("=a.ndjson", 2)]
    for path in (job.directory / "send").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_what_waits_of_a_finished_file_is_durable_before_another_file_begins(job: SendJob) -> None:
    job.write("core.ndjson", observation("bad"))
    job.write("a.ndjson", observation("later"))
    fhir = Fhir()
    fhir.refused["Observation/bad"] = refusal()
    seen_by_others: list[list[tuple[str, int]]] = []
    with serving(fhir) as server:
        server.script = lambda seen: seen_by_others.append(job.waiting()) if b"later" in seen.body else None
        with pytest.raises(TerminalError):
            job.load(server.url)
    assert seen_by_others == [[("core.ndjson", 1)]]


def test_a_disk_without_room_for_what_waits_ends_the_step_for_now_and_it_goes_on_later(
    job: SendJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write(
        "a.ndjson", *(observation(f"o{n}", subject=to("Patient/p"), note=[{"text": "x" * 9000}]) for n in range(9))
    )
    job.write("b.ndjson", resource("Patient", "p"))
    connect = sqlite3.connect

    def limited(*arguments: Any, **more: Any) -> sqlite3.Connection:
        database = connect(*arguments, **more)
        database.execute("PRAGMA max_page_count = 10")
        return database

    fhir = Fhir("hapi")
    with serving(fhir) as server:
        monkeypatch.setattr("sqlite3.connect", limited)
        with pytest.raises(DiskFullError) as caught:
            job.load(server.url, max_concurrent_requests=1)
        monkeypatch.undo()
        assert caught.value.context == str(job.pending)
        assert job.load(server.url, max_concurrent_requests=1).resources_out == 10
    assert len(fhir.resources) == 10


def test_what_cannot_be_sent_is_named_and_does_not_stop_the_others(job: SendJob) -> None:
    history = {"resourceType": "Bundle", "type": "history", "entry": []}
    odd = {"resourceType": "Bundle", "type": "batch", "entry": [{"resource": {"resourceType": "x"}}]}
    lines = [observation("o1"), b'{"resourceType":"Patient","id":"a b"}', b"no json", history, odd, observation("o2")]
    job.write("a.ndjson", *lines)
    fhir = Fhir()
    with serving(fhir) as server, pytest.raises(TerminalError) as caught:
        job.load(server.url)
    assert sorted(fhir.resources) == ["Observation/o1", "Observation/o2"]
    assert "4 of 6 resources" in caught.value.message
    reasons = [(one["line"], one["entry"], one["reason"]) for one in job.kept()]
    assert reasons == [
        (2, None, "invalid-id"),
        (3, None, "not-a-resource"),
        (4, None, "bundle-type"),
        (5, 0, "not-a-resource"),
    ]


@pytest.mark.slow
def test_too_large_halves_until_it_fits_and_later_transactions_are_smaller(job: SendJob) -> None:
    limit = 300_000
    job.write("a.ndjson", *[observation(f"o{n}", note="x" * 20_000) for n in range(200)])
    fhir = Fhir()
    with serving(fhir) as server:
        server.script = lambda seen: Reply(413, b"<html>too large</html>") if len(seen.body) > limit else None
        result = job.load(server.url)
    assert result.resources_out == len(fhir.resources) == 200
    assert sum(len(seen.body) > limit for seen in server.seen) < 10


def test_too_large_alone_is_refused(job: SendJob) -> None:
    job.write("a.ndjson", observation("o1"), observation("big", note="x" * 2000), observation("o2"))
    fhir = Fhir()
    with serving(fhir) as server:
        server.script = lambda seen: Reply(413) if len(seen.body) > 1500 else None
        with pytest.raises(TerminalError) as caught:
            job.load(server.url)
    assert sorted(fhir.resources) == ["Observation/o1", "Observation/o2"]
    assert "1 × 413" in caught.value.message
    assert caught.value.context == "a.ndjson:2 Observation"


def test_after_a_thousand_refusals_the_load_gives_up(job: SendJob) -> None:
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(1500)])
    fhir = Fhir()
    with serving(fhir) as server:
        server.script = lambda _: refusal(400, "invalid")
        with pytest.raises(TerminalError) as caught:
            job.load(server.url)
    assert "1,000 of 1,500 resources were not accepted: 1,000 × 400 (invalid); 500 more wait" in caught.value.message
    assert len(job.summary()) == 1001
    assert len(server.seen) < 4000


# What ends a load


def test_a_server_that_fails_all_the_time_is_busy_and_nobody_is_blamed(job: SendJob) -> None:
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(50)])
    with serving(Fhir()) as server:
        server.script = lambda _: refusal(500, "exception")
        with pytest.raises(ServiceBusyError) as caught:
            job.load(server.url, batch_size=10)
    assert (caught.value.exit_code, caught.value.status) == (3, 500)
    assert job.summary() == []


@pytest.mark.parametrize("works", [True, False])
def test_a_page_in_place_of_the_server_is_a_wrong_url_unless_it_has_worked(job: SendJob, works: bool) -> None:
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(4)])
    with serving(Fhir()) as server:
        first = iter([None] if works else [])
        server.script = lambda seen: next(first, Reply(404, b"<html>canary</html>")) if seen.body else None
        with pytest.raises(ServiceError if not works else TerminalError) as caught:
            job.load(server.url, batch_size=1)
    assert caught.value.reference == ("send-refused" if works else "service-not-found")
    assert works or "services.send" in (caught.value.hint or "")


Answer = dict[str, Any]


def last(**changes: Any) -> Callable[[Answer], Answer]:
    """The response of the last entry is another one."""
    return lambda right: (
        right | {"entry": [*right["entry"][:-1], {"response": right["entry"][-1]["response"] | changes}]}
    )


WRONG: dict[str, Callable[[Answer], Any]] = {
    "a login page": lambda _: b"<html>canary</html>",
    "nothing": lambda _: b"",
    "half of the JSON": lambda right: json.dumps(right).encode()[:-20],
    "an OperationOutcome": lambda _: {"resourceType": "OperationOutcome", "issue": []},
    "a batch-response": lambda right: right | {"type": "batch-response"},
    "an entry is missing": lambda right: right | {"entry": right["entry"][1:]},
    "an entry too many": lambda right: right | {"entry": right["entry"] * 2},
    "no entries": lambda right: {key: right[key] for key in right if key != "entry"},
    "a status that is none": last(status="2000"),
    "a refusal under 200": last(status="422 Unprocessable Entity"),
    "the location of another resource": last(location="Observation/o0-0/_history/1"),
    "the location of another type": last(location="Patient/o3-2/_history/1"),
}


@pytest.mark.parametrize("name", [*WRONG, "a promise", "HTML by its header"])
def test_nothing_of_a_transaction_counts_whose_answer_is_wrong(job: SendJob, name: str) -> None:
    job.write("a.ndjson", *[observation(f"o{line}-{n}") for line in range(8) for n in range(3)])
    fhir = Fhir()
    with serving(fhir) as server:

        def script(seen: Any) -> Reply | None:
            if b"Observation/o3-0" not in seen.body:
                return None
            right = {"resourceType": "Bundle", "type": "transaction-response"}
            places = [f"Observation/o3-{n}/_history/1" for n in range(3)]
            right |= {"entry": [{"response": {"status": "201 Created", "location": place}} for place in places]}
            wrong = WRONG[name](right) if name in WRONG else right
            body = wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()
            html = {"Content-Type": "text/html"}
            return Reply(202 if name == "a promise" else 200, body, html if name.startswith("HTML") else JSON)

        server.script = script
        with pytest.raises(ServiceError) as caught:
            job.load(server.url, batch_size=3, max_concurrent_requests=1)
        assert (caught.value.reference, caught.value.context) == ("send-answer", "a.ndjson:10 Observation and 2 more")
        assert "canary" not in caught.value.render()
        server.script = None
        result = job.load(server.url)
    assert result.resources_out == len(fhir.resources) == 24


@pytest.mark.parametrize("location", ["Observation/o/_history/1", "http://localhost:8080/fhir/Observation/o", None])
def test_a_location_may_be_relative_absolute_or_missing(job: SendJob, location: str | None) -> None:
    job.write("a.ndjson", observation("o"))
    response = {"status": "200"} | ({} if location is None else {"location": location})
    body = {"resourceType": "Bundle", "type": "transaction-response", "entry": [{"response": response}]}
    with serving(Fhir()) as server:
        server.script = lambda _: Reply(200, json.dumps(body).encode(), JSON)
        assert job.load(server.url).resources_out == 1


# Another run


def test_with_another_url_everything_is_sent_again_with_a_warning(job: SendJob) -> None:
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(5)])
    with serving(Fhir()) as server, serving(Fhir()) as other:
        job.load(server.url)
        result = job.load(other.url)
        assert len(other.seen) == 1
    assert any("sent again" in warning for warning in result.warnings)


def test_a_changed_file_is_sent_again_and_nothing_of_it_waits_twice(job: SendJob) -> None:
    job.write("a.ndjson", observation("a"), observation("bad", v=1))
    job.write("b.ndjson", observation("b"))
    fhir = Fhir()
    fhir.refused["Observation/bad"] = refusal()
    with serving(fhir) as server:
        with pytest.raises(TerminalError):
            job.load(server.url)
        job.write("a.ndjson", observation("a"), observation("good"))
        fhir.sent.clear()
        result = job.load(server.url)
    assert fhir.sent == [["Observation/a", "Observation/good"]]
    assert (result.resources_in, result.resources_out) == (3, 3)


def test_nothing_to_send_is_an_error(job: SendJob) -> None:
    job.put(".notes.txt", b"x")
    with serving(Fhir()) as server, pytest.raises(DataError) as caught:
        job.load(server.url)
    assert caught.value.reference == "send-no-input"
    assert server.seen == []
