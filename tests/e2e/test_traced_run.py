"""Traces of whole runs, as a collector gets them from real processes with OpenTelemetry's SDK (observability page)."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Commands, ask_prefect, wait_until
from tests.e2e.machines import Worker, deployment
from tests.peers.project import Fhir
from tests.peers.server import Loopback, Reply, Seen, loopback

pytestmark = pytest.mark.e2e

PERSON = "Canaryperson"
PASSWORD = "canary-password-7f3a"
SLACK = 0.005
"""Seconds: events have milliseconds, spans nanoseconds."""


class Collector(Loopback):
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        super().__init__(self._take)

    def _take(self, seen: Seen) -> Reply:
        packed = seen.headers.get("content-encoding") == "gzip"
        self.bodies.append(gzip.decompress(seen.body) if packed else seen.body)
        return Reply()

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The spans, as the SDK writes them in JSON; those of Sluice only."""
        return [span for body in self.bodies for span in json.loads(body) if _is_ours(span)]

    def one(self, name: str) -> dict[str, Any]:
        """The only span of that name."""
        (found,) = [span for span in self.spans if span["name"] == name]
        return found


def _is_ours(span: dict[str, Any]) -> bool:
    return bool(span["name"] in ("job", "download") or span["name"].startswith("step "))


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def hurried(url: str) -> dict[str, str]:
    """The environment of a process with an SDK that sends to ``url``."""
    return {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests/e2e/traced"), str(ROOT))), "TRACES_TO": url}


def traced(url: str) -> dict[str, str]:
    """The same, where a run waits for its collector as long as this machine may need to answer: it may be busy."""
    return hurried(url) | {"TRACES_PATIENCE": "60"}


def moment_of(text: str) -> float:
    """A moment as the SDK writes it, in seconds."""
    return time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) + float(f"0.{text[20:-1]}")


def within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Whether a span begins and ends in another."""
    return (
        moment_of(outer["start_time"]) - SLACK <= moment_of(inner["start_time"])
        and moment_of(inner["end_time"]) <= moment_of(outer["end_time"]) + SLACK
    )


def plant(project: Path, fhir: Fhir) -> dict[str, str]:
    """Put canaries into data and credentials; the variables that the configuration needs."""
    config = (project / "config.yaml").read_text()
    auth = f'url: "{fhir.url}", auth: {{username: loader, password: "${{LOADER_PASSWORD}}"}}}}'
    (project / "config.yaml").write_text(config.replace(f'url: "{fhir.url}"}}', auth))
    for file in (project / "data").glob("batch-*.ndjson"):
        file.write_text(file.read_text().replace("Umläut", PERSON))
    return {"LOADER_PASSWORD": PASSWORD}


def test_a_run_that_fails_is_a_whole_trace_and_nothing_of_the_data_leaves(
    sluice: Commands, project: Path, fhir: Fhir, collector: Collector
) -> None:
    env = plant(project, fhir) | traced(collector.url)
    fhir.faults(
        {"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": 1, "body": PERSON},
        {"action": "status", "status": 403, "path": "/fhir*", "method": "POST", "times": 1, "body": PERSON},
    )
    started = sluice("pipeline", "start", "config.yaml", env=env)
    assert started.code == 0, started.err
    assert collector.one("job")["attributes"]["sluice.state"] == "waiting"
    collector.bodies.clear()

    comment = f"{PERSON} is fine"
    ran = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", "--comment", comment, env=env)
    assert ran.code == 1, ran.err

    job, wait, send = (collector.one(name) for name in ("job", "step wait", "step send"))
    assert len(collector.spans) == 3
    assert {span["context"]["trace_id"] for span in collector.spans} == {job["context"]["trace_id"]}
    assert wait["parent_id"] == send["parent_id"] == job["context"]["span_id"]
    assert all(within(step, job) for step in (wait, send))
    assert job["attributes"]["sluice.job.id"] == started.job
    assert job["attributes"]["sluice.job.run"] == 2
    assert send["attributes"]["sluice.step.position"] == 3
    for span in (job, send):
        assert span["attributes"]["error.type"] == "service-forbidden"
        assert span["status"] == {"status_code": "ERROR", "description": "service-forbidden"}
    (retry,) = [event for event in send["events"] if event["name"] == "request-retry"]
    assert retry["attributes"]["sluice.status"] == 503
    assert [event["name"] for event in job["events"]] == ["wait"]

    # All that left the process, Prefect's own spans included.
    everything = b"".join(collector.bodies).decode()
    for canary in (PERSON, PASSWORD, "Klinik", "loader", "p1", str(project)):
        assert canary not in everything.replace(started.job, ""), canary


def test_a_download_is_a_span_of_its_step(sluice: Commands, project: Path, collector: Collector) -> None:
    with loopback(lambda seen: Reply(body=(project / "data" / Path(seen.target).name).read_bytes())) as web:
        (project / "config.yaml").write_text(
            f"services: {{http_import: {{urls: ['{web.url}/core.ndjson', '{web.url}/batch-0.ndjson']}}}}\n"
            "pipeline: {enabled_steps: [http_import]}\njobs_dir: jobs\n"
        )
        ran = sluice("pipeline", "start", "config.yaml", env=traced(collector.url))
    assert ran.code == 0, ran.err
    step = collector.one("step http_import")
    downloads = [span for span in collector.spans if span["name"] == "download"]
    assert {span["attributes"]["sluice.file"] for span in downloads} == {"core.ndjson.zst", "batch-0.ndjson.zst"}
    for span in downloads:
        assert span["parent_id"] == step["context"]["span_id"]
        assert within(span, step)
    assert collector.one("job")["status"]["status_code"] == "UNSET"


def test_a_process_that_leaves_without_tidying_up_has_sent_its_trace(
    sluice: Commands, project: Path, fhir: Fhir, collector: Collector
) -> None:
    config = (project / "config.yaml").read_text().replace("[local_import, wait, send]", "[local_import, send]")
    (project / "config.yaml").write_text(config)
    fhir.faults({"action": "stall", "path": "/fhir*", "method": "POST", "times": 1})
    child = sluice.start("pipeline", "start", "config.yaml", "--no-progress", env=traced(collector.url))
    logs = project / "jobs"
    wait_until(lambda: any('"step":"send"' in path.read_text() for path in logs.glob("*/events.ndjson")), 60)

    def told_more_than_once() -> bool:
        child.send_signal(signal.SIGTERM)
        return child.poll() is not None

    wait_until(told_more_than_once, 60)
    out, err = child.communicate()
    assert child.returncode == 143, out + err
    job = collector.one("job")
    assert job["attributes"]["sluice.state"] == "stopped"
    assert collector.one("step send")["parent_id"] == job["context"]["span_id"]


@contextmanager
def silent() -> Iterator[str]:
    """The URL of a collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.campaign
def test_a_collector_that_is_down_costs_less_than_a_second_and_fails_nothing(
    sluice: Commands, project: Path, collector: Collector
) -> None:
    def seconds(url: str) -> float:
        began = time.monotonic()
        ran = sluice("pipeline", "start", "config.yaml", env=hurried(url))
        assert ran.code == 0, ran.err
        return time.monotonic() - began

    seconds(collector.url)  # everything is in memory from here on
    with silent() as nobody:
        up, down = (min(seconds(url) for _ in range(5)) for url in (collector.url, nobody))
    assert down - up < 1.0


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_around_a_worker_the_runs_of_the_worker_are_traced(
    sluice: Commands, prefect_api: str, project: Path, fhir: Fhir, collector: Collector
) -> None:
    env = plant(project, fhir) | traced(collector.url)
    pool = f"pool-{project.name}"
    deployed = deployment(prefect_api, pool, project)
    worker = Worker.start(sluice, prefect_api, pool, "traced", env)
    try:
        worker.ready()
        create = f"{prefect_api}/deployments/{deployed}/create_flow_run"
        run = ask_prefect("POST", create, {"parameters": {"config": str(project / "config.yaml")}})["id"]
        wait_until(lambda: any(span["name"] == "job" for span in collector.spans), 120)
        comment = f"{PERSON} is fine"
        ran = sluice("pipeline", "continue", "config.yaml", run, "--approve", "--comment", comment, env=env)
        assert ran.code == 0, ran.err
        wait_until(lambda: sum(span["name"] == "job" for span in collector.spans) == 2, 120)
    finally:
        worker.stop()
    last = [span for span in collector.spans if span["name"] == "job"][-1]
    assert (last["attributes"]["sluice.job.id"], last["attributes"]["sluice.state"]) == (run, "completed")
    everything = b"".join(collector.bodies).decode()
    for canary in (PERSON, PASSWORD, "Klinik", "loader", str(project)):
        assert canary not in everything, canary


INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"


@pytest.mark.skipif(not INSTRUMENT.exists(), reason="needs opentelemetry-distro opentelemetry-exporter-otlp-proto-http")
def test_the_commands_of_the_page_send_a_trace_by_otlp(sluice: Commands, project: Path, collector: Collector) -> None:
    requests = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    page = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
    variables = dict(re.findall(r"\b(OTEL_\w+)=(\S+)", page)) | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    ran = subprocess.run(
        [INSTRUMENT, sys.executable, "-m", "flows.run", "pipeline", "start", "config.yaml"],
        cwd=project, env=sluice.environment | variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    spans: list[Any] = []
    for body in collector.bodies:
        for resource in requests.ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            assert named["service.name"] == "sluice"
            spans += [span for scope in resource.scope_spans for span in scope.spans if scope.scope.name == "sluice"]
    assert {span.name for span in spans} == {"job", "step local_import", "step wait"}
