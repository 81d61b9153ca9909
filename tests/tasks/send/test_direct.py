"""``direct_resource_load`` sentence by sentence (document 3 §7)."""

from __future__ import annotations

import itertools
import json
import re
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.send.direct import LoadBounds
from tasks.send.load_account import RefusedResourcesError
from tasks.send.order import patient_of
from tasks.shared.errors import TerminalError
from tasks.shared.fhir.bundle import cut
from tests.peers.data import bundle, resource
from tests.peers.fhir import (
    DirectLoadJob,
    FakeFhir,
    FhirReply,
    blaze_missing,
    hapi_missing,
    observation,
    outcome,
    patient_line,
    serving,
)


@pytest.fixture
def job(tmp_path: Path) -> DirectLoadJob:
    return DirectLoadJob(tmp_path)


def integrity(server: list[FakeFhir], manners: str = "hapi") -> Any:
    """Return a script that refuses references to what is neither stored nor in the same transaction."""

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        own = {entry["request"]["url"] for entry in content["entry"]}
        for entry in content["entry"]:
            for target in re.findall(r'"reference": "([^"]+)"', json.dumps(entry["resource"])):
                if target not in own and target not in server[0].stored:
                    return hapi_missing(target) if manners == "hapi" else blaze_missing(target)
        return None

    return script


def refusing(*keys: str, status: int = 422, code: str = "invariant") -> Any:
    """Return a script that refuses every transaction with one of these in it, quoting data as servers do."""

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        if {entry["request"]["url"] for entry in content["entry"]}.isdisjoint(keys):
            return None
        return FhirReply(status, outcome(code, "value canary-diagnostics is wrong"), apply=False)

    return script


def test_transactions_are_posted_to_url_fhir_asking_for_a_minimal_answer(job: DirectLoadJob) -> None:
    job.write("a.ndjson", observation("o"))
    with serving() as server:
        job.send(server.url)
    assert [seen.target for seen in server.seen] == ["/fhir"]
    headers = server.seen[0].headers
    assert headers["prefer"] == "return=minimal"
    assert headers["content-type"] == "application/fhir+json"
    assert server.bundles[0]["type"] == "transaction"


def test_core_is_answered_before_any_other_file_starts(job: DirectLoadJob) -> None:
    job.write("a.ndjson", *[patient_line(n, 10) for n in range(20)])
    job.write("core.ndjson", *[resource("Organization", f"org{n}") for n in range(30)])
    with serving() as server:
        job.send(server.url, batch_size=10, max_concurrent_requests=4)
    kinds = [{key.split("/")[0] for key in keys} for keys in server.sent]
    assert kinds[:3] == [{"Organization"}] * 3
    assert all("Organization" not in kind for kind in kinds[3:])
    assert max(end for _, end in server.spans[:3]) <= min(start for start, _ in server.spans[3:])


def test_lines_that_are_envelopes_are_unwrapped_and_documents_are_resources(job: DirectLoadJob) -> None:
    document = {"resourceType": "Bundle", "id": "doc", "type": "document", "entry": [{"resource": observation("in")}]}
    job.write(
        "a.ndjson", bundle(observation("o1"), kind="collection"), document, bundle(observation("o2"), kind="batch")
    )
    with serving() as server:
        result = job.send(server.url)
    assert sorted(server.stored) == ["Bundle/doc", "Observation/o1", "Observation/o2"]
    assert result.resources_in == result.resources_out == 3


@pytest.mark.parametrize(("batch_size", "expected"), [(100, 100), (7, 7), (1, 1), (0, 100), (1000, 250)])
def test_at_most_batch_size_resources_travel_together_and_zero_means_100(
    job: DirectLoadJob, batch_size: int, expected: int
) -> None:
    job.write("a.ndjson", bundle(*[observation(f"o{n}") for n in range(250)]))
    with serving() as server:
        job.send(server.url, batch_size=batch_size)
    assert max(len(keys) for keys in server.sent) == expected
    assert sorted(key for keys in server.sent for key in keys) == sorted(f"Observation/o{n}" for n in range(250))


@pytest.mark.slow
def test_at_most_five_mib_travel_together_unless_a_single_resource_is_larger(job: DirectLoadJob) -> None:
    large = [observation(f"l{n}", note="x" * 2_000_000) for n in range(5)]
    job.write("a.ndjson", bundle(*large), observation("huge", note="x" * 6_000_000), observation("small"))
    with serving() as server:
        job.send(server.url)
    assert [len(keys) for keys in server.sent] == [2, 2, 1, 1, 1]
    assert [size > 5 * 1024 * 1024 for size in server.sizes] == [False, False, False, True, False]


def test_decimals_keep_their_spelling_on_the_way_to_the_server(job: DirectLoadJob) -> None:
    raw = (
        '{"resourceType":"Observation","id":"o","v":[1.50,1E2,-0.0,0.10000000000000000000001], "t":"ä\\u00e4"}'.encode()
    )
    job.write("a.ndjson", raw)
    with serving() as server:
        job.send(server.url)
    assert server.stored["Observation/o"] == raw


def test_a_repeated_send_changes_nothing_also_without_ids(tmp_path: Path) -> None:
    line = bundle({"resourceType": "Observation", "v": 1}, {"resourceType": "Observation", "v": 1})
    with serving() as server:
        first = DirectLoadJob(tmp_path / "1")
        first.write("a.ndjson", line)
        result = first.send(server.url)
        stored = dict(server.stored)
        again = DirectLoadJob(tmp_path / "2")
        again.write("a.ndjson", line)
        again.send(server.url)
    assert len(stored) == 2
    assert server.stored == stored
    assert result.details["derived_ids"] == 2
    assert any("resources without an id: " in warning for warning in result.warnings)


def test_the_last_of_the_same_resource_in_one_transaction_wins_with_a_warning(job: DirectLoadJob) -> None:
    job.write("a.ndjson", observation("o", v=1), observation("x"), observation("o", v=2))
    with serving() as server:
        result = job.send(server.url)
    assert server.sent == [["Observation/x", "Observation/o"]]
    assert json.loads(server.stored["Observation/o"])["v"] == 2
    assert (result.resources_in, result.resources_out, result.details["collapsed"]) == (3, 2, 1)
    assert any(warning.startswith("resources replaced by") for warning in result.warnings)


def test_entries_without_a_resource_are_skipped_with_a_warning(job: DirectLoadJob) -> None:
    line = {"resourceType": "Bundle", "type": "batch", "entry": [{"request": {"method": "DELETE", "url": "Patient/1"}}]}
    job.write("a.ndjson", line, observation("o"))
    with serving() as server:
        result = job.send(server.url)
    assert list(server.stored) == ["Observation/o"]
    assert result.details["skipped_entries"] == 1
    assert result.warnings


def test_lines_of_different_patients_are_sent_in_parallel_up_to_the_limit(job: DirectLoadJob) -> None:
    job.write("a.ndjson", *[patient_line(n, 6) for n in range(12)])
    job.write("b.ndjson", *[patient_line(n, 6) for n in range(12, 24)])

    together = threading.Barrier(3, timeout=60)

    def script(number: int, content: dict[str, Any]) -> FhirReply | None:
        if number < 3:
            together.wait()  # passes only when three are under way
        time.sleep(0.01)  # time for a fourth, if it could
        return None

    with serving(script) as server:
        job.send(server.url, batch_size=6, max_concurrent_requests=3)
    moments = sorted([(start, 1) for start, _ in server.spans] + [(end, -1) for _, end in server.spans])
    level = most = 0
    for _, step in moments:
        level += step
        most = max(most, level)
    assert most == 3


def test_the_resources_of_one_patient_are_sent_in_one_sequence(job: DirectLoadJob) -> None:
    job.write("a.ndjson", *[patient_line(n, 40) for n in range(4)])
    job.write("b.ndjson", bundle(resource("Patient", "p1", v=2), observation("p1-late")))

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        time.sleep(0.005)
        return None

    with serving(script) as server:
        job.send(server.url, batch_size=10, max_concurrent_requests=4)
    for patient in range(4):
        own = [n for n, keys in enumerate(server.sent) if any(f"/p{patient}" in f"{key}-" for key in keys)]
        spans = sorted(server.spans[n] for n in own)
        order = [key for n in sorted(own, key=lambda n: server.spans[n]) for key in server.entries(n)]
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans)), spans
        numbers = [int(key.split("-o")[1]) for key in order if key.startswith(f"Observation/p{patient}-o")]
        assert numbers == sorted(numbers)
    assert json.loads(server.stored["Patient/p1"])["v"] == 2


def of(patient: int, number: int, **more: Any) -> dict[str, Any]:
    return observation(f"p{patient}-o{number}", subject={"reference": f"Patient/p{patient}"}, **more)


def test_of_two_plain_lines_of_one_resource_the_last_wins_whomever_they_concern(job: DirectLoadJob) -> None:
    twice = [of(patient, 0, v=patient) | {"id": "twice"} for patient in range(6)]
    job.write("a.ndjson", *twice)

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        time.sleep(0.005 * (6 - int(content["entry"][0]["resource"]["v"])))  # the first takes longest
        return None

    with serving(script) as server:
        job.send(server.url, batch_size=1, max_concurrent_requests=4)
    assert json.loads(server.stored["Observation/twice"])["v"] == 5


@pytest.mark.parametrize(
    ("more", "patient"),
    [
        ({"subject": {"reference": "Patient/p"}}, "p"),
        ({"patient": {"reference": "http://h/fhir/Patient/p/_history/2"}}, "p"),
        ({"beneficiary": {"reference": "Patient/p"}}, "p"),
        ({"subject": {"reference": "Group/g"}, "patient": {"reference": "Patient/p"}}, "p"),
        ({"subject": {"reference": "Group/g"}}, None),
        ({"subject": [{"reference": "Patient/p"}]}, None),
        ({"subject": {"reference": 7}}, None),
        ({"subject": {"reference": "urn:uuid:1"}}, None),
        ({}, None),
    ],
)
def test_whom_a_plain_line_concerns(more: dict[str, Any], patient: str | None) -> None:
    (one,) = cut(json.dumps(observation("o", **more)).encode(), file="a.ndjson", number=1).resources
    assert patient_of(one) == patient
    (self,) = cut(json.dumps(resource("Patient", "me")).encode(), file="a.ndjson", number=1).resources
    assert patient_of(self) == "me"


@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_a_resource_with_a_missing_target_is_deferred_and_sent_last(job: DirectLoadJob, manners: str) -> None:
    # Of unknown type, so it is not sorted before what refers to it.
    job.write("a.ndjson", *[resource("Basic", f"b{n}", x={"reference": f"Zzz/z{n}"}) for n in range(5)])
    job.write("b.ndjson", resource("Basic", "free"), *[resource("Zzz", f"z{n}") for n in range(5)])
    server_box: list[FakeFhir] = []
    with serving(integrity(server_box, manners)) as server:
        server_box.append(server)
        result = job.send(server.url, batch_size=3)
    assert len(server.stored) == result.resources_out == 11
    assert result.details["deferred"] == 5
    assert server.history[-5:] == [f"Basic/b{n}" for n in range(5)]


@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_circles_of_references_across_files_get_in_together(job: DirectLoadJob, manners: str) -> None:
    count = 30
    job.write(
        "Encounter.ndjson",
        *[resource("Encounter", f"e{n}", diagnosis={"reference": f"Condition/c{n}"}) for n in range(count)],
    )
    job.write(
        "Condition.ndjson",
        *[resource("Condition", f"c{n}", encounter={"reference": f"Encounter/e{n}"}) for n in range(count)],
    )
    server_box: list[FakeFhir] = []
    with serving(integrity(server_box, manners)) as server:
        server_box.append(server)
        result = job.send(server.url, batch_size=7)
    assert result.resources_out == len(server.stored) == 2 * count
    assert max(map(len, server.sent)) <= 7


def test_a_chain_of_references_against_the_order_of_the_input_is_loaded(job: DirectLoadJob) -> None:
    count = 60
    lines = [observation(f"o{n}", derivedFrom={"reference": f"Observation/o{n + 1}"}) for n in range(count)]
    job.write("a.ndjson", *lines, observation(f"o{count}"))
    server_box: list[FakeFhir] = []
    with serving(integrity(server_box)) as server:
        server_box.append(server)
        result = job.send(server.url, batch_size=4)
    assert result.resources_out == len(server.stored) == count + 1


@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_a_target_that_never_arrives_is_terminal_only_for_resources_that_need_it(
    job: DirectLoadJob, manners: str
) -> None:
    lost = observation("lost", subject={"reference": "Patient/nowhere"})
    dependent = observation("dependent", derivedFrom={"reference": "Observation/lost"})
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(20)], lost, dependent)
    server_box: list[FakeFhir] = []
    with serving(integrity(server_box, manners)) as server:
        server_box.append(server)
        with pytest.raises(TerminalError) as caught:
            job.send(server.url, batch_size=8)
    assert len(server.stored) == 20
    assert caught.value.reference == "send-refused"
    assert sorted(record["resource"] for record in job.failed()) == ["Observation/dependent", "Observation/lost"]
    assert all(record["answer"]["resourceType"] == "OperationOutcome" for record in job.failed())


def test_a_resource_that_waited_does_not_overwrite_a_later_one(job: DirectLoadJob) -> None:
    early = observation("o", v=1, subject={"reference": "Patient/p"})
    job.write("a.ndjson", early)
    job.write("b.ndjson", observation("o", v=2), resource("Patient", "p"))
    server_box: list[FakeFhir] = []
    with serving(integrity(server_box)) as server:
        server_box.append(server)
        result = job.send(server.url, batch_size=1)
        assert json.loads(server.stored["Observation/o"])["v"] == 2
        again = job.send(server.url)
    assert (result.resources_in, result.resources_out, result.details["collapsed"]) == (3, 2, 1)
    assert (again.resources_in, again.resources_out) == (3, 2)


@pytest.mark.slow
def test_too_large_halves_until_it_fits_and_later_transactions_are_smaller(job: DirectLoadJob) -> None:
    limit = 300_000

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        if len(json.dumps(content)) > limit:
            return FhirReply(413, b"<html>too large</html>", apply=False)
        return None

    job.write("a.ndjson", *[observation(f"o{n}", note="x" * 20_000) for n in range(200)])
    with serving(script) as server:
        result = job.send(server.url)
    assert result.resources_out == len(server.stored) == 200
    assert sum(1 for size in server.sizes if size > limit) < 10


def test_too_large_alone_is_terminal_for_that_resource(job: DirectLoadJob) -> None:
    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        large = any(len(entry["resource"].get("note", "")) > 1000 for entry in content["entry"])
        return FhirReply(413, b"", apply=False) if large else None

    job.write("a.ndjson", observation("o1"), observation("big", note="x" * 2000), observation("o2"))
    with serving(script) as server, pytest.raises(TerminalError) as caught:
        job.send(server.url)
    assert sorted(server.stored) == ["Observation/o1", "Observation/o2"]
    assert "1 × 413" in caught.value.message
    assert caught.value.context == "a.ndjson:2 Observation"


@pytest.mark.parametrize("status", [400, 412, 422])
def test_a_batch_is_halved_until_the_faulty_resource_is_found_and_the_rest_sent(
    job: DirectLoadJob, status: int
) -> None:
    job.write("a.ndjson", *[bundle(*[observation(f"o{line}-{n}") for n in range(20)]) for line in range(5)])
    guilty = {"Observation/o0-0", "Observation/o3-7", "Observation/o3-8"}
    with serving(refusing(*guilty, status=status)) as server, pytest.raises(TerminalError) as caught:
        job.send(server.url)
    assert len(server.stored) == 97
    error = caught.value
    assert error.reference == "send-refused"
    assert not error.transient
    assert error.message == f"send: 3 of 100 resources did not get in: 3 × {status} (invariant)"
    assert error.context == "a.ndjson:1 Observation, a.ndjson:4 Observation, a.ndjson:4 Observation"
    assert len(server.bundles) < 45


def test_failed_entries_and_the_answer_are_kept_private_with_file_line_and_type_id(job: DirectLoadJob) -> None:
    job.write("core.ndjson", observation("fine"))
    job.write("a.ndjson", observation("o1"), bundle(observation("o2"), observation("bad", v=1)))
    with serving(refusing("Observation/bad")) as server, pytest.raises(TerminalError):
        job.send(server.url)
    folder = job.directory / "send" / "failed"
    (record,) = job.failed()
    assert record == {
        "file": "a.ndjson",
        "line": 2,
        "entry": 1,
        "resource": "Observation/bad",
        "status": 422,
        "reason": "422 (invariant)",
        "request": observation("bad", v=1),
        "answer": json.loads(outcome("invariant", "value canary-diagnostics is wrong")),
    }
    assert (folder / "summary.csv").read_text().splitlines() == [
        "number,file,line,entry,resource,status,reason",
        "1,a.ndjson,2,1,Observation/bad,422,422 (invariant)",
    ]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in (job.directory / "send").rglob("*"):
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_no_cell_of_the_list_of_refused_resources_is_a_formula(job: DirectLoadJob) -> None:
    job.write("=a.ndjson", observation("bad", v=1))
    with serving(refusing("Observation/bad")) as server, pytest.raises(TerminalError):
        job.send(server.url)
    listed = (job.directory / "send" / "failed" / "summary.csv").read_text().splitlines()
    assert listed[1] == "1,'=a.ndjson,1,,Observation/bad,422,422 (invariant)"


def test_what_cannot_be_sent_is_named_and_does_not_stop_the_others(job: DirectLoadJob) -> None:
    job.write("a.ndjson", observation("o1"), b'{"resourceType":"Patient","id":"a b"}', b"no json", observation("o2"))
    with serving() as server, pytest.raises(TerminalError) as caught:
        job.send(server.url)
    assert sorted(server.stored) == ["Observation/o1", "Observation/o2"]
    assert caught.value.context == "a.ndjson:2 Patient, a.ndjson:3"
    assert [(record["reason"], record["request"]) for record in job.failed()] == [
        ("invalid-id", {"resourceType": "Patient", "id": "a b"}),
        ("not-json", "no json"),
    ]


def test_the_failures_are_counted_by_code_for_the_artifact(job: DirectLoadJob) -> None:
    job.write(
        "a.ndjson", *[observation(f"o{n}") for n in range(6)], b'{"resourceType":"Patient","id":"a b"}', b"no json"
    )

    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        names = {entry["request"]["url"] for entry in content["entry"]}
        for name, status, code in (("o1", 422, "invariant"), ("o2", 422, "invariant"), ("o3", 400, "value")):
            if f"Observation/{name}" in names:
                return FhirReply(status, outcome(code, "canary"), apply=False)
        return None

    with serving(script) as server, pytest.raises(RefusedResourcesError) as caught:
        job.send(server.url)
    counts = {"422 (invariant)": 2, "400 (value)": 1, "invalid-id": 1, "not-json": 1}
    assert caught.value.details == {"failed": counts}
    assert next(iter(caught.value.details["failed"])) == "422 (invariant)"
    assert len(server.stored) == 3


def test_continuing_after_a_correction_sends_only_what_failed(job: DirectLoadJob) -> None:
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(30)])
    with serving(refusing("Observation/o7")) as server:
        with pytest.raises(TerminalError):
            job.send(server.url)
        server.script = None
        before = len(server.bundles)
        result = job.send(server.url, batch_size=3)
    assert server.sent[before:] == [["Observation/o7"]]
    assert (result.resources_in, result.resources_out) == (30, 30)
    assert job.failed() == []


def test_after_a_thousand_failures_the_load_gives_up(job: DirectLoadJob) -> None:
    job.write("a.ndjson", *[observation(f"o{n}") for n in range(400)])
    with (
        serving(lambda *_: FhirReply(400, outcome("invalid"), apply=False)) as server,
        pytest.raises(TerminalError) as caught,
    ):
        job.send(server.url, batch_size=10, bounds=LoadBounds(max_failures=25))
    assert "gave up" in caught.value.message
    # 20 were known when a batch was handed out, four batches were under way then, one more begins as the first ends.
    assert 25 <= len(job.failed()) <= 70
    assert len(server.bundles) < 150


def test_counts_types_and_bytes_are_reported(job: DirectLoadJob) -> None:
    job.write("core.ndjson", resource("Organization", "org"))
    job.write("a.ndjson", patient_line(1, 4), patient_line(2, 4))
    with serving() as server:
        result = job.send(server.url)
    assert result.files == 2
    assert result.resources_in == result.resources_out == 9
    assert result.bytes_in == sum(path.stat().st_size for path in job.input.iterdir())
    assert result.bytes_out == sum(server.sizes)
    assert result.output is None
    assert result.details["types"] == {"Observation": 6, "Organization": 1, "Patient": 2}
    assert result.details["requests"] == 2
    snapshot = job.context.meter.snapshot()
    assert (snapshot.files, snapshot.files_total, snapshot.resources, snapshot.fraction) == (2, 2, 9, 1.0)


def test_a_long_bundle_is_sent_in_parts_as_if_it_were_read_whole(tmp_path: Path) -> None:
    """References to ``urn:`` entries of other parts are resolved, and resources without an id get the same one."""
    entries: list[dict[str, Any]] = []
    for number in range(60):
        one = observation(f"o{number}", subject={"reference": "urn:uuid:p"}, text="x" * 200)
        other = {"resourceType": "Basic", "text": "y" * 200} if number % 3 else observation(f"o{number}-b")
        entries += [{"fullUrl": f"urn:uuid:{number}", "resource": one}, {"resource": other}]
    entries.append({"fullUrl": "urn:uuid:p", "resource": resource("Patient", "p")})
    entries.append({"request": {"method": "DELETE", "url": "Patient/q"}})
    line = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
    made = []
    for name, limit in (("whole", 8 << 20), ("parts", 100)):
        job = DirectLoadJob(tmp_path / name)
        job.write("a.ndjson", observation("first"), line, observation("last"))
        with pytest.MonkeyPatch.context() as patch, serving() as server:
            patch.setattr("tasks.send.batches._LINE", limit)
            patch.setattr("tasks.send.batches._PART", 2_000)
            report = job.send(server.url)
            again = job.send(server.url)
            facts = report.model_dump(include={"lines_in", "resources_in", "resources_out", "warnings"})
            made.append((server.stored, facts))
        assert again.resources_out == report.resources_out == 123
    assert made[0] == made[1]
    assert "urn:uuid" not in repr(made)
