"""The step shared by several processes does what one does (``services.pseudonymizer.processes``)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import ServiceError
from tests.tasks.pseudonymizer.support import (
    REMOVING,
    RULES,
    FakeService,
    Job,
    Reply,
    Request,
    bundle,
    observation,
    patient,
    patient_bundle,
    pseudonyms,
    serving,
)

CANARY = "CANARY-Mustermann"


@pytest.fixture
def service() -> Iterator[FakeService]:
    with serving(pseudonyms) as service:
        yield service


def fill(job: Job) -> None:
    job.write("core.ndjson", patient("core"))
    job.write("a.ndjson", *[patient_bundle(n, 2 + n % 4, 300) for n in range(40)])
    job.write("b.ndjson", patient("b"), patient_bundle(900, 30, 90_000), patient("c"))


@pytest.mark.parametrize("compression", [False, True])
def test_the_output_and_the_result_are_those_of_one_process(
    tmp_path: Path, service: FakeService, compression: bool
) -> None:
    outputs, results = [], []
    for processes in (1, 2):
        job = Job(tmp_path / str(processes))
        fill(job)
        service.requests.clear()
        settings: dict[str, Any] = {
            "processes": processes,
            "bundle_split_threshold_mb": 1,
            "max_concurrent_requests": 3,
        }
        result = job.run(service.url, rules=RULES, compression=compression, **settings)
        outputs.append({path.name: path.read_bytes() for path in job.output.iterdir()})
        results.append(result.result())
        assert result.details["requests"] == 1 + len(service.requests)
    assert outputs[0] == outputs[1]
    assert results[0] == results[1]
    assert len(service.requests) == 1 + 40 + 2 + 3
    assert service.busiest <= 3


def test_failures_are_repeated_logged_and_kept_without_data_in_the_log(
    tmp_path: Path, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    def script(number: int, request: Request) -> Reply | None:
        if number == 5:
            return Reply(503, CANARY.encode(), {"Retry-After": "0"})
        if b'"bad-' in request.resource:
            return Reply(422, CANARY.encode() + request.resource)
        return None

    service.script = script
    job = Job(tmp_path)
    # Done before the other file begins, whose first error ends what waits to be repeated.
    job.write("core.ndjson", *[patient(f"p{n}", name=CANARY) for n in range(12)])
    job.write("b.ndjson", *[observation(f"bad-{n}") for n in range(9)])
    with caplog.at_level(logging.DEBUG, "sluice"), pytest.raises(ServiceError) as refused:
        job.run(service.url, processes=2, max_concurrent_requests=4)
    error = refused.value
    assert error.reference == "service-refused"
    assert error.context is not None
    assert re.match(r"b\.ndjson:\d Observation", error.context)
    kept = job.failed()
    assert kept
    for path in kept:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_bytes().startswith(CANARY.encode())
    assert any(path.name in (error.hint or "") for path in kept)
    assert job.context is not None
    assert job.context.stats.retries == 1
    retries = [record for record in caplog.records if record.name == "sluice.http"]
    assert [record.args[:3] for record in retries if isinstance(record.args, tuple)] == [
        ("pseudonymizer", "$de-identify", "status 503")
    ]
    assert CANARY not in caplog.text + error.render()
    assert len(job.lines("core.ndjson")) == 12


def test_what_is_refused_as_too_large_is_halved_in_the_other_processes_too(
    tmp_path: Path, service: FakeService
) -> None:
    service.body_limit = 4_000
    job = Job(tmp_path)
    job.write("a.ndjson", *[patient_bundle(n, 8, 500) for n in range(6)], bundle("last", patient("z")))
    result = job.run(service.url, rules=REMOVING, processes=2)
    assert result.resources_in == result.resources_out == 6 * 8 + 1
    assert len(job.lines("a.ndjson")) == 7
