"""A scripted FHIR server on loopback, and the surroundings of a send step."""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.send.direct import Bounds, run
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext


@dataclass
class Reply:
    """What the server does with one request. ``apply``: store the entries first; ``reset``: no answer at all."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    apply: bool = True
    reset: bool = False
    cut: int | None = None
    """Send only so many bytes of the body, under the Content-Length of all of it."""
    hold: threading.Event | None = None


Script = Callable[[int, dict[str, Any]], Reply | None]


def outcome(code: str, diagnostics: str = "", text: str | None = None) -> bytes:
    issue: dict[str, Any] = {"severity": "error", "code": code, "diagnostics": diagnostics}
    if text is not None:
        issue["details"] = {"text": text}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]}).encode()


def hapi_missing(target: str = "Patient/x") -> Reply:
    text = f"HAPI-1094: Resource {target} not found, specified in path: Observation.subject"
    return Reply(400, outcome("processing", text), apply=False)


def blaze_missing(target: str = "Patient/x") -> Reply:
    text = f"Referential integrity violated. Resource `{target}` doesn't exist."
    return Reply(409, outcome("conflict", text), apply=False)


class FakeFhir:
    """Stores what is PUT in transactions; ``script(number, bundle)`` may answer differently, requests from 0."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.bundles: list[dict[str, Any]] = []
        self.sizes: list[int] = []
        self.spans: list[tuple[float, float]] = []
        """When each request began and ended, in the order of ``bundles``; ends in infinity while under way."""
        self.connected = 0
        """Connections of which something could still be read."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.stored: dict[str, bytes] = {}
        self.history: list[str] = []
        self.lock = threading.Lock()
        self.url = ""

    def entries(self, number: int) -> list[str]:
        """``Type/id`` of the entries of a request, in order."""
        return [entry["request"]["url"] for entry in self.bundles[number].get("entry", [])]

    @property
    def sent(self) -> list[list[str]]:
        return [self.entries(number) for number in range(len(self.bundles))]

    def take(self, body: bytes, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Note a request; its number and its Bundle."""
        # Numbers as text: their spelling is what the tests look at.
        bundle = json.loads(body, parse_float=str, parse_int=str)
        with self.lock:
            number = len(self.bundles)
            self.bundles.append(bundle)
            self.spans.append((time.monotonic(), math.inf))
            self.sizes.append(len(body))
            self.headers.append(headers)
            self.paths.append(path)
        return number, bundle

    def end(self, number: int) -> None:
        """Note that a request is done, before its answer leaves."""
        with self.lock:
            self.spans[number] = (self.spans[number][0], time.monotonic())

    def apply(self, body: bytes) -> bytes:
        import msgspec

        raw = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        entries = msgspec.json.decode(raw["entry"], type=list[dict[str, msgspec.Raw]])
        results = []
        with self.lock:
            for entry in entries:
                key = json.loads(bytes(entry["request"]))["url"]
                status = "200 OK" if key in self.stored else "201 Created"
                self.stored[key] = bytes(entry["resource"])
                self.history.append(key)
                results.append({"response": {"status": status, "etag": 'W/"1"'}})
        return response(results)


def response(results: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"resourceType": "Bundle", "type": "transaction-response", "entry": list(results)}).encode()


@contextmanager
def serving(script: Script | None = None) -> Iterator[FakeFhir]:
    """A ``FakeFhir`` that answers on loopback while the block runs."""
    fake = FakeFhir(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one segment: two would wait for each other (Nagle, delayed ACK)

        def setup(self) -> None:
            with fake.lock:
                fake.connected += 1
            super().setup()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            number, content = fake.take(body, self.path, dict(self.headers))
            reply = (fake.script(number, content) if fake.script else None) or Reply()
            if reply.hold is not None:
                reply.hold.wait(30)
            answer = fake.apply(body) if reply.apply else b""
            if reply.body is not None:
                answer = reply.body
            fake.end(number)
            if reply.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/fhir+json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer[: reply.cut])
            self.wfile.flush()
            if reply.cut is not None:
                self.close_connection = True

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
    """A job directory with input, to be sent once or several times."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = directory / "import"
        self.input.mkdir(parents=True)
        self.slept: list[float] = []
        self.context: StepContext | None = None

    def write(self, name: str, *lines: bytes | dict[str, Any]) -> Path:
        path = self.input / name
        path.write_bytes(b"".join(_line(line) + b"\n" for line in lines))
        return path

    def send(self, url: str, *, bounds: Bounds | None = None, attempts: int = 3, **send: Any) -> StepReport:
        config = PipelineConfig.model_validate(
            {
                "services": {"send": {"send_as": "direct_resource_load", "url": url, **send}},
                "pipeline": {"enabled_steps": ["local_import", "send"]},
                "retry": {"max_attempts": attempts, "initial_backoff_ms": 100, "max_backoff_ms": 250},
            }
        )
        self.context = StepContext(
            config=config, job_id="j", job_dir=self.directory, position=1, name="send", source=self.input
        )
        return run(self.context, bounds=bounds, sleep=self.slept.append)

    def failed(self) -> list[dict[str, Any]]:
        """What lies in ``send/failed``, in order."""
        files = sorted((self.directory / "send" / "failed").glob("*.json"))
        return [json.loads(path.read_bytes()) for path in files]

    @property
    def ledger(self) -> Path:
        return self.directory / "send" / "ledger.ndjson"


def _line(line: bytes | dict[str, Any]) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()


def resource(kind: str, identifier: str, **more: Any) -> dict[str, Any]:
    return {"resourceType": kind, "id": identifier, **more}


def observation(identifier: str, **more: Any) -> dict[str, Any]:
    return resource("Observation", identifier, **more)


def bundle(*resources: dict[str, Any], kind: str = "transaction", **more: Any) -> dict[str, Any]:
    entries = [
        {"fullUrl": f"http://old.example/fhir/x{number}", "resource": one, "request": {"method": "POST", "url": "Old"}}
        for number, one in enumerate(resources)
    ]
    return {"resourceType": "Bundle", "type": kind, **more, "entry": entries}


def patient_line(number: int, count: int) -> dict[str, Any]:
    """A patient's Bundle with ``count`` resources, the Patient first."""
    patient = resource("Patient", f"p{number}")
    rest = [
        observation(f"p{number}-o{index}", subject={"reference": f"Patient/p{number}"}) for index in range(1, count)
    ]
    return bundle(patient, *rest)
