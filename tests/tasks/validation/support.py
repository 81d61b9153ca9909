"""A scripted validation service on loopback, and the surroundings of a validation step."""

from __future__ import annotations

import csv
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.validation.validation import Bounds, run

CANARY = "Canary-Erika-Mustermann"
"""Stands in every resource and in every free text of the service: must never be seen outside private files."""


@dataclass
class Reply:
    """What the service does with one request."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False
    """No answer at all."""
    cut: int | None = None
    """Send only so many bytes of the body, under the Content-Length of all of it."""
    seconds: float = 0.0


Script = Callable[[int, bytes], Reply | None]


def issue(severity: str = "error", code: str = "structure", entry: int | None = None, **more: Any) -> dict[str, Any]:
    place = {} if entry is None else {"expression": [f"Bundle.entry[{entry}].resource.ofType(Patient).name"]}
    return {"severity": severity, "code": code, "diagnostics": f"about {CANARY}", **place, **more}


def outcome(*issues: dict[str, Any]) -> bytes:
    return json.dumps({"resourceType": "OperationOutcome", "issue": list(issues)}).encode()


def judged(body: bytes) -> bytes:
    """What the stub says: one error for every ``bad`` of a resource, a remark about the whole."""
    issues = [issue("information", "informational")]
    for number, entry in enumerate(json.loads(body)["entry"]):
        issues += [
            issue(entry=number, details={"coding": [{"code": f"Made_Up_{n}"}], "text": f"quotes {CANARY}"})
            for n in range(entry["resource"].get("bad", 0))
        ]
    return outcome(*issues)


class FakeService:
    """Judges what it gets; ``script(number, body)`` may answer differently, requests counted from 0."""

    def __init__(self, script: Script | None, limit: int | None) -> None:
        self.script = script
        self.limit = limit
        self.bodies: list[bytes] = []
        self.accepted: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.most = 0
        self.refuse_early = 0
        """How many requests are reset before their body is read."""
        self.url = ""
        self.connected = 0
        """Connections of which something could still be read."""
        self.lock = threading.Lock()
        self._under_way = 0

    @property
    def validated(self) -> list[str]:
        """``Type/id`` of everything that was judged, in the order of the answers."""
        return [key for body in self.accepted for key in keys(body)]

    def begin(self, body: bytes, path: str, headers: dict[str, str]) -> int:
        with self.lock:
            self.bodies.append(body)
            self.paths.append(path)
            self.headers.append(headers)
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            return len(self.bodies) - 1

    def end(self) -> None:
        with self.lock:
            self._under_way -= 1

    def reply(self, number: int, body: bytes) -> Reply:
        given = self.script(number, body) if self.script else None
        if given is None and self.limit is not None and len(body) > self.limit:
            given = Reply(413, b"too large")
        given = given or Reply()
        if given.body is None and given.status == 200:
            given = Reply(200, judged(body), given.headers, given.reset, given.cut, given.seconds)
            if not given.reset and given.cut is None:
                with self.lock:
                    self.accepted.append(body)
        return given


def keys(body: bytes) -> list[str]:
    return [f"{one['resource']['resourceType']}/{one['resource'].get('id')}" for one in json.loads(body)["entry"]]


@contextmanager
def serving(script: Script | None = None, *, limit: int | None = None) -> Iterator[FakeService]:
    """A ``FakeService`` that answers on loopback while the block runs; bodies above ``limit`` bytes get a 413."""
    fake = FakeService(script, limit)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one segment: two would wait for each other (Nagle, delayed ACK)

        def setup(self) -> None:
            with fake.lock:
                fake.connected += 1
            super().setup()

        def do_POST(self) -> None:
            if fake.refuse_early:
                fake.refuse_early -= 1
                self._reset()
                return
            body = self.rfile.read(int(self.headers["Content-Length"]))
            number = fake.begin(body, self.path, {name.lower(): value for name, value in self.headers.items()})
            try:
                reply = fake.reply(number, body)
                if reply.seconds:
                    time.sleep(reply.seconds)
            finally:
                fake.end()
            if reply.reset:
                self._reset()
                return
            answer = reply.body or b""
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/fhir+json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer[: reply.cut])
            self.wfile.flush()
            if reply.cut is not None:
                self.close_connection = True

        def _reset(self) -> None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            with suppress(ConnectionError, ValueError):  # the client went away, or we reset the connection
                super().handle()

        def finish(self) -> None:
            with suppress(OSError, ValueError):
                super().finish()
            with fake.lock:
                fake.connected -= 1

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Job:
    """A job directory with input, to be validated once or several times."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = directory / "import"
        self.input.mkdir(parents=True, exist_ok=True)
        self.slept: list[float] = []
        self.context: StepContext | None = None

    def write(self, name: str, *lines: bytes | dict[str, Any]) -> Path:
        path = self.input / name
        path.write_bytes(b"".join(_line(line) + b"\n" for line in lines))
        return path

    def validate(
        self,
        url: str,
        *,
        bounds: Bounds | None = None,
        attempts: int = 3,
        steps: list[str] | None = None,
        position: int = 2,
        stop: Stop | None = None,
        chunk_bytes: int | None = None,
        **validation: Any,
    ) -> StepReport:
        """Run the step. ``chunk_bytes`` makes chunks smaller than the configuration can."""
        config = PipelineConfig.model_validate(
            {
                "services": {"validation": {"url": url, "bundle_chunk_size_mb": 1, **validation}},
                "pipeline": {"enabled_steps": steps or ["local_import", "validation"]},
                "retry": {"max_attempts": attempts, "initial_backoff_ms": 100, "max_backoff_ms": 250},
            }
        )
        self.context = StepContext(
            config=config,
            job_id="j",
            job_dir=self.directory,
            position=position,
            name="validation",
            source=self.input,
            stop=stop or Stop(),
        )
        bounds = bounds or Bounds(mebibyte=chunk_bytes or 1024 * 1024)
        return run(self.context, bounds=bounds, sleep=self.slept.append)

    @property
    def output(self) -> Path:
        return self.directory / "validation"

    def reports(self) -> dict[str, list[dict[str, Any]]]:
        """The reports by name, every line parsed."""
        paths = sorted(self.output.glob("*.validation.ndjson"))
        return {path.name: [json.loads(line) for line in path.read_bytes().splitlines()] for path in paths}

    def summary(self) -> list[dict[str, str]]:
        with (self.output / "summary.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def files(self) -> dict[str, bytes]:
        """Everything a person looks at, byte for byte."""
        names = [*self.output.glob("*.validation.ndjson"), self.output / "summary.csv"]
        return {path.name: path.read_bytes() for path in names}


def _line(line: bytes | dict[str, Any]) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()


def resource(kind: str, identifier: str, **more: Any) -> dict[str, Any]:
    return {"resourceType": kind, "id": identifier, "text": CANARY, **more}


def patient(identifier: str, **more: Any) -> dict[str, Any]:
    return resource("Patient", identifier, **more)


def bundle(*resources: dict[str, Any], kind: str = "transaction", **more: Any) -> dict[str, Any]:
    entries = [
        {
            "fullUrl": f"http://own.example/fhir/{one.get('resourceType')}/{one.get('id')}",
            "resource": one,
            "request": {"method": "PUT", "url": "x"},
        }
        for one in resources
    ]
    return {"resourceType": "Bundle", "type": kind, **more, "entry": entries}


def patient_line(number: int, count: int, **more: Any) -> dict[str, Any]:
    """A patient's Bundle with ``count`` resources, the Patient first."""
    rest = [resource("Observation", f"p{number}-o{n}", **more) for n in range(1, count)]
    return bundle(patient(f"p{number}"), *rest)
