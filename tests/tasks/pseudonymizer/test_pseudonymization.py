"""The step ``pseudonymizer`` (document 1 "services.pseudonymizer", document 3 §4)."""

from __future__ import annotations

import json
import logging
import stat
import threading
import time
from pathlib import Path

import pytest

from tasks.pseudonymizer.pseudonymization import PseudonymizerBounds
from tasks.shared.errors import DataError, InputError, ReconciliationError
from tests.conftest import wait_until
from tests.peers.data import identified as bundle
from tests.peers.data import observation, patient, patient_bundle
from tests.peers.pseudonymization import REMOVING, RULES, PseudonymizationRequest, PseudonymizerJob, serving
from tests.peers.server import Reply
from tests.peers.services import pseudonyms


@pytest.fixture
def job(tmp_path: Path) -> PseudonymizerJob:
    return PseudonymizerJob(tmp_path)


def test_without_anonymization_config_the_body_is_the_resource(job: PseudonymizerJob) -> None:
    line = b'{"resourceType":"Patient","id":"p","multipleBirthInteger": 1.50}'
    job.write("a.ndjson", line)
    with serving() as service:
        job.run(service.url)
    (request,) = service.requests
    assert request.target == "/fhir/$de-identify"
    assert request.headers["content-type"] == "application/fhir+json"
    assert request.body == line
    assert job.lines("a.ndjson") == [line]


def test_with_it_the_body_is_parameters_with_the_file_s_bytes_and_the_resource(job: PseudonymizerJob) -> None:
    line = b'{"resourceType":"Patient","id":"p","multipleBirthInteger": 1E2}'
    job.write("a.ndjson", line, line)
    rules = RULES + b"# \xc3\xbc\r\n"
    with serving() as service:
        job.run(service.url, rules=rules)
    assert [(request.config, request.resource) for request in service.requests] == [(rules, line)] * 2
    assert job.lines("a.ndjson") == [line, line]


@pytest.mark.parametrize("content", [b"", b"a: ["])
def test_an_anonymization_file_that_cannot_be_used_stops_before_any_request(
    job: PseudonymizerJob, content: bytes
) -> None:
    job.write("a.ndjson", patient("p"))
    with serving() as service, pytest.raises(InputError):
        job.run(service.url, rules=content)
    assert service.requests == []


def test_a_file_without_the_keys_its_rules_need_gets_a_warning(job: PseudonymizerJob) -> None:
    job.write("a.ndjson", patient("p"))
    rules = b"fhirPathRules:\n  - {path: x, method: dateShift}\n  - {path: y, method: encrypt}\n"
    with serving(pseudonyms) as service:
        result = job.run(service.url, rules=rules)
    assert ["dateShift" in warning for warning in result.warnings] == [True, False]
    assert ["encrypt" in warning for warning in result.warnings] == [False, True]


def test_the_output_has_the_base_names_of_the_input_in_the_configured_form(job: PseudonymizerJob) -> None:
    job.write("core.ndjson", patient("c"))
    job.write("b.NDJSON", patient("b"))
    with serving(pseudonyms) as service:
        result = job.run(service.url, compression=True)
    assert sorted(path.name for path in job.output.iterdir()) == ["b.ndjson.zst", "core.ndjson.zst"]
    assert result.output == "pseudonymized"
    assert stat.S_IMODE(job.output.stat().st_mode) == 0o700
    for path in [*job.output.iterdir(), job.ledger]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_core_is_first_and_alone(job: PseudonymizerJob) -> None:
    job.write("core.ndjson", *[patient(f"core{n}") for n in range(6)])
    job.write("a.ndjson", *[patient(f"a{n}") for n in range(6)])
    begun: list[int] = []

    def script(number: int, request: PseudonymizationRequest) -> Reply | None:
        if b'"core' in request.resource:
            time.sleep(0.05)  # time for others to begin, if they could
            begun.append(len(service.requests))
        return None

    with serving(script=script) as service:
        job.run(service.url, max_concurrent_requests=4)
        ids = [json.loads(request.resource)["id"] for request in service.requests]
    assert set(ids[:6]) == {f"core{n}" for n in range(6)}
    assert max(begun) == 6


def test_lines_keep_their_order_with_many_requests_under_way_across_files(job: PseudonymizerJob) -> None:
    names = [f"f{n:02}" for n in range(12)]
    for name in names:
        job.write(f"{name}.ndjson", *[patient(f"{name}-{n}") for n in range(3)])
    barrier = threading.Barrier(8, timeout=60)

    def script(number: int, request: PseudonymizationRequest) -> Reply | None:
        if 0 <= number < 8:
            barrier.wait()  # eight requests at once, of more than two files
        return None

    with serving(script=script) as service:
        job.run(service.url, max_concurrent_requests=8)
    assert service.busiest == 8
    for name in names:
        assert [json.loads(line)["id"] for line in job.lines(f"{name}.ndjson")] == [f"{name}-{n}" for n in range(3)]


@pytest.mark.slow
def test_a_slow_first_line_does_not_make_the_others_pile_up(job: PseudonymizerJob) -> None:
    job.write("a.ndjson", *[patient(f"p{n}") for n in range(200)])
    begun: list[int] = []

    def script(number: int, request: PseudonymizationRequest) -> Reply | None:
        if b'"p0"' in request.resource:
            wait_until(lambda: len(service.requests) >= 16)
            time.sleep(0.2)  # time for more, if they could
            begun.append(len(service.requests))
        return None

    with serving(script=script) as service:
        job.run(service.url, max_concurrent_requests=2)
    assert begun == [16]
    assert [json.loads(line)["id"] for line in job.lines("a.ndjson")] == [f"p{n}" for n in range(200)]


def test_only_a_bundle_above_the_threshold_is_split_and_every_chunk_keeps_its_id(job: PseudonymizerJob) -> None:
    small, large = patient_bundle(1, 9, 100_000), patient_bundle(2, 12, 100_000)
    job.write("a.ndjson", small, large)
    with serving(pseudonyms) as service:
        split = job.run(service.url, bundle_split_threshold_mb=1)
        ids = [json.loads(request.resource)["id"] for request in service.requests]
        assert sorted(ids) == ["b1", "b2", "b2"]
        lines = job.lines("a.ndjson")
        service.requests.clear()
        again = PseudonymizerJob(job.directory / "unsplit")
        again.write("a.ndjson", small, large)
        unsplit = again.run(service.url, bundle_split_threshold_mb=10)
        assert len(service.requests) == 2
    assert lines == again.lines("a.ndjson")
    assert (split.resources_in, split.resources_out) == (unsplit.resources_in, unsplit.resources_out) == (21, 21)
    assert (split.lines_in, split.lines_out) == (2, 2)
    assert split.bytes_in == unsplit.bytes_in == (job.input / "a.ndjson").stat().st_size
    assert split.bytes_out == sum(len(line) + 1 for line in lines)
    assert split.details["split_bundles"] == 1


def test_an_entry_and_a_plain_line_above_the_threshold_travel_alone_with_a_warning(
    job: PseudonymizerJob, caplog: pytest.LogCaptureFixture
) -> None:
    huge = observation("CANARY", text="x" * 1_200_000)
    job.write("a.ndjson", bundle("b", patient("p"), huge, patient("q")), huge)
    with caplog.at_level(logging.WARNING), serving(pseudonyms) as service:
        result = job.run(service.url, bundle_split_threshold_mb=1)
    assert len(service.requests) == 4
    assert any(warning.startswith("resources larger than 1 MiB") for warning in result.warnings)
    assert "a.ndjson:1 from entry 1" in caplog.text
    assert "a.ndjson:2" in caplog.text
    assert "CANARY" not in caplog.text


def test_a_body_limit_is_met_by_halving(job: PseudonymizerJob) -> None:
    job.write("a.ndjson", patient_bundle(1, 40, 1000), patient_bundle(2, 40, 1000))
    with serving(pseudonyms) as service:
        service.limit = 10_000
        result = job.run(service.url)
    assert result.resources_out == 80
    expected = [pseudonyms(json.dumps(patient_bundle(n, 40, 1000), separators=(",", ":")).encode()) for n in (1, 2)]
    assert job.lines("a.ndjson") == expected


def test_a_pretty_printed_answer_becomes_one_line(job: PseudonymizerJob) -> None:
    job.write("a.ndjson", bundle("b", patient("p", note="a\nb")))

    def pretty(resource: bytes) -> bytes:
        return json.dumps(json.loads(resource), indent=2).replace("\n", "\r\n").encode()

    with serving(pretty) as service:
        job.run(service.url)
    (line,) = job.lines("a.ndjson")
    assert json.loads(line) == bundle("b", patient("p", note="a\nb"))
    assert line.startswith(b'{  "resourceType": "Bundle"')


@pytest.mark.parametrize("rules", [None, RULES])
def test_entries_that_are_missing_are_an_error_that_names_file_line_and_type(
    job: PseudonymizerJob, rules: bytes | None
) -> None:
    job.write("a.ndjson", patient("p"), bundle("b", patient("CANARY"), patient("q")))

    def loses(resource: bytes) -> bytes:
        document = json.loads(resource)
        document.get("entry", [0])[1:] = []
        return json.dumps(document).encode()

    with serving(loses) as service, pytest.raises(ReconciliationError) as caught:
        job.run(service.url, rules=rules)
    assert caught.value.reference == "pseudonymizer-entries"
    assert "1 entries for the 2 that were sent" in caught.value.message
    assert caught.value.context == "a.ndjson:2 Bundle"
    assert "CANARY" not in caught.value.render()
    assert [b"CANARY" in path.read_bytes() for path in job.failed()] == [True]


@pytest.mark.parametrize(("more", "fine"), [(-1, True), (1, False)])
def test_with_a_remove_rule_entries_may_become_fewer_but_not_more(job: PseudonymizerJob, more: int, fine: bool) -> None:
    job.write("a.ndjson", bundle("b", observation("p"), observation("q")))

    def changes(resource: bytes) -> bytes:
        document = json.loads(resource)
        document["entry"] = document["entry"] * 2
        document["entry"] = document["entry"][: 2 + more]
        return json.dumps(document).encode()

    with serving(changes) as service:
        if fine:
            result = job.run(service.url, rules=REMOVING)
            assert (result.resources_in, result.resources_out) == (2, 1)
        else:
            with pytest.raises(ReconciliationError):
                job.run(service.url, rules=REMOVING)


def test_an_entry_without_a_resource_is_sent_and_counts_as_none(job: PseudonymizerJob) -> None:
    delete = {"request": {"method": "DELETE", "url": "Patient/gone"}}
    given = bundle("b", patient("p"), patient("q"))
    given["entry"] += [delete, delete | {"resource": None}]
    job.write("a.ndjson", given)
    with serving() as service:
        result = job.run(service.url)
    assert (result.resources_in, result.resources_out) == (2, 2)
    assert len(json.loads(job.lines("a.ndjson")[0])["entry"]) == 4


def test_original_ids_that_survive_are_counted_in_a_warning(job: PseudonymizerJob) -> None:
    job.write("a.ndjson", patient_bundle(1, 3), patient("CANARY"))
    with serving() as service:
        result = job.run(service.url)
    assert result.details["surviving_ids"] == {"id": 5, "fullUrl": 3, "request.url": 3, "reference": 2}
    (warning,) = result.warnings
    assert warning.startswith("original ids are still in the result (id 5, fullUrl 3, ")
    assert "CANARY" not in json.dumps(result.result())


def test_an_empty_file_stays_an_empty_file(job: PseudonymizerJob) -> None:
    for form in (False, True):
        job.write("empty.ndjson")
        job.write("a.ndjson", patient("p"))
        with serving() as service:
            result = job.run(service.url, compression=form, bounds=PseudonymizerBounds(cut_every=10))
        name = "empty.ndjson.zst" if form else "empty.ndjson"
        assert job.lines(name) == []
        assert (result.files, result.lines_out) == (2, 1)
        job = PseudonymizerJob(job.directory / "zst")


def test_no_input_no_url_and_two_files_of_one_name_are_errors(job: PseudonymizerJob) -> None:
    with pytest.raises(DataError) as caught:
        job.run("http://127.0.0.1:9")
    assert caught.value.reference == "pseudonymizer-no-input"
    job.write("a.ndjson", patient("p"))
    with pytest.raises(InputError) as missing:
        job.run(None)  # type: ignore[arg-type]
    assert missing.value.reference == "pseudonymizer-url"
    job.write("a.NDJSON", patient("p"))
    with pytest.raises(DataError) as clash:
        job.run("http://127.0.0.1:9")
    assert clash.value.reference == "pseudonymizer-name-clash"


def test_progress_counts_files_bytes_and_resources(job: PseudonymizerJob) -> None:
    job.write("a.ndjson", patient_bundle(1, 4), patient("p"))
    job.write("b.ndjson", patient("q"))
    with serving() as service:
        result = job.run(service.url)
    seen = job.context.meter.snapshot()
    assert (seen.files, seen.files_total, seen.fraction) == (2, 2, 1.0)
    assert (seen.bytes, seen.resources) == (result.bytes_in, result.resources_in) == (result.bytes_in, 6)
