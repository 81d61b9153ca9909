"""An interrupted load continues where it stopped (document 3 §7 "A ledger …", 4-product.md §4 "Continue")."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.shared.errors import ServiceError
from tests.peers.fhir import (
    DirectLoadJob,
    FakeFhir,
    FhirReply,
    hapi_missing,
    observation,
    patient_line,
    resource,
    serving,
)
from tests.peers.job import in_process, printed

# A process of its own, so that it can be killed: directory, URL, batch size.
CLIENT = """
import sys
from pathlib import Path
from tests.peers.fhir import DirectLoadJob

result = DirectLoadJob(Path(sys.argv[1])).send(sys.argv[2], batch_size=int(sys.argv[3]))
print(result.resources_in, result.resources_out)
"""


def fill(job: DirectLoadJob) -> dict[str, Any]:
    """Input of all kinds; what must be on the server in the end, by ``Type/id``."""
    organizations = [resource("Organization", f"org{n}") for n in range(5)]
    early = resource("Basic", "early", subject={"reference": "Patient/p3"})
    plain = [observation(f"plain{n}", v=n) for n in range(15)]
    patients = [patient_line(n, 4) for n in range(6)]
    job.write("core.ndjson", *organizations)
    job.write("early.ndjson", early)
    job.write("plain.ndjson", *plain, observation("plain3", v="later"))
    job.write("a.ndjson", *patients[:3])
    job.write("b.ndjson", *patients[3:])
    everything = [*organizations, early, *plain]
    everything += [entry["resource"] for line in patients for entry in line["entry"]]
    expected = {f"{one['resourceType']}/{one['id']}": one for one in everything}
    expected["Observation/plain3"] = observation("plain3", v="later")
    return expected


def integrity(box: list[FakeFhir]) -> Any:
    def script(_: int, content: dict[str, Any]) -> FhirReply | None:
        own = {entry["request"]["url"] for entry in content["entry"]} | set(box[0].stored)
        if "Basic/early" in own - set(box[0].stored) and "Patient/p3" not in own:
            return hapi_missing("Patient/p3")
        return None

    return script


def stored(server: FakeFhir) -> dict[str, Any]:
    return {key: json.loads(raw) for key, raw in server.stored.items()}


def test_a_second_run_over_a_finished_load_sends_nothing_and_reports_the_same(tmp_path: Path) -> None:
    job = DirectLoadJob(tmp_path)
    expected = fill(job)
    box: list[FakeFhir] = []
    with serving(integrity(box)) as server:
        box.append(server)
        first = job.send(server.url, batch_size=4)
        assert stored(server) == expected
        count = len(server.bundles)
        second = job.send(server.url, batch_size=9)
        assert len(server.bundles) == count
    assert (second.resources_in, second.resources_out) == (first.resources_in, first.resources_out)
    assert second.resources_in == len(expected) + 1
    assert second.details["types"] == first.details["types"]
    assert second.details["collapsed"] == first.details["collapsed"]


@pytest.mark.slow
def test_a_truncated_ledger_leads_to_the_same_data_and_repeats_nothing_recorded(
    tmp_path: Path,
) -> None:
    job = DirectLoadJob(tmp_path)
    expected = fill(job)
    box: list[FakeFhir] = []
    with serving(integrity(box)) as server:
        box.append(server)
        job.send(server.url, batch_size=4, max_concurrent_requests=1)
        complete = job.ledger.read_bytes()
        after_full = stored(server)
        for size in range(0, len(complete), 37):  # every state a crash can leave, up to some bytes
            job.ledger.write_bytes(complete[:size])
            known = [json.loads(line) for line in complete[:size].splitlines(keepends=True) if line.endswith(b"\n")]
            done = sum(entry.get("counts", {}).get("sent", 0) for entry in known)
            server.history.clear()
            result = job.send(server.url, batch_size=3 + size % 5)
            assert stored(server) == expected == after_full
            assert len(server.history) <= 1 + len(expected) + 1 - done
            assert result.resources_in == result.resources_out + result.details["collapsed"] == len(expected) + 1


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=4))
def test_failing_again_and_again_with_other_batch_sizes_loses_and_repeats_nothing(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[int, int]]
) -> None:
    job = DirectLoadJob(tmp_path_factory.mktemp("job"))
    expected = fill(job)
    with serving() as server:
        for good, batch_size in rounds:
            until = len(server.bundles) + good
            server.script = lambda number, _, until=until: FhirReply(403, apply=False) if number >= until else None
            with suppress(ServiceError):
                job.send(server.url, batch_size=batch_size, max_concurrent_requests=1 + batch_size % 2)
        server.script = None
        job.send(server.url)
        assert stored(server) == expected
        # Two versions of one resource may go out both; everything else exactly once.
        assert len(server.history) - len(expected) in {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 7, 11])
@pytest.mark.parametrize("applied", [False, True])
def test_kill_9_at_a_transaction_loses_nothing_and_repeats_only_open_requests(
    tmp_path: Path, at: int, applied: bool
) -> None:
    job = DirectLoadJob(tmp_path)
    expected = fill(job)
    with serving() as server:
        server.kill_at(at, lambda: in_process(CLIENT, tmp_path, server.url, 4), FhirReply(reset=True, apply=applied))
        # What was under way has come in, and is stored or not.
        known = sum(json.loads(line).get("counts", {}).get("sent", 0) for line in job.ledger.read_text().splitlines())
        before = len(server.history)
        assert printed(CLIENT, tmp_path, server.url, 5).split()[0] == str(len(expected) + 1)
        assert stored(server) == expected
        # Two transactions may have been under way, and two more stored but not yet noted.
        assert before - known <= 4 * 4
        # Two that were under way may be stored after they were counted above, if the server took them up that late.
        assert len(server.history) - before <= len(expected) + 1 - known + 2 * 4


def test_changed_input_is_sent_anew(tmp_path: Path) -> None:
    job = DirectLoadJob(tmp_path)
    job.write("a.ndjson", observation("o1"), observation("o2"))
    job.write("b.ndjson", observation("o3"))
    with serving() as server:
        job.send(server.url)
        server.history.clear()
        job.write("a.ndjson", observation("o1"), observation("o9"))
        result = job.send(server.url)
    assert server.history == ["Observation/o1", "Observation/o9"]
    assert result.resources_out == 3
