"""A scripted pseudonymization service on loopback, and the surroundings of a pseudonymizer step."""

from __future__ import annotations

import base64
import hashlib
import json
import re
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

import msgspec
import yaml

from config import PipelineConfig
from tasks.pseudonymizer.pseudonymization import Bounds, run
from tasks.shared.files.lines import read_lines
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

RULES = b"fhirPathRules:\n  - {path: Patient.id, method: cryptoHash}\nparameters: {cryptoHashKey: k}\n"
REMOVING = b"fhirPathRules:\n  - {path: Observation, method: remove}\n"


@dataclass
class Reply:
    """What the server does with one request. ``reset``: no answer, ``"before"`` or ``"after"`` the body was read."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reset: str = ""
    stall: threading.Event | None = None
    cut: int | None = None
    """Send only so many bytes of the body, under the Content-Length of all of it."""


@dataclass
class Request:
    """A request as it arrived; ``config`` is the anonymization file in it."""

    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    resource: bytes = field(repr=False)
    config: bytes | None = None

    @property
    def is_probe(self) -> bool:
        return self.config is not None and _unparseable(self.config)


Script = Callable[[int, Request], "Reply | None"]


def identity(resource: bytes) -> bytes:
    return resource


def pseudonyms(resource: bytes) -> bytes:
    """Every id and every reference by a keyed hash: deterministic, and consistent over requests."""

    def hashed(match: re.Match[bytes]) -> bytes:
        return match[1] + hashlib.sha256(b"key" + match[2]).hexdigest()[:20].encode() + b'"'

    resource = re.sub(rb'("id":\s*")([^"]+)"', hashed, resource)
    return re.sub(rb'("reference":\s*"[A-Za-z]+/)([^"]+)"', hashed, resource)


class FakeService:
    """Gives back ``transform(resource)``; ``script(number, request)`` may answer differently, requests from 0.

    ``reads_config`` False is a server before 2.34.0. Probes are not numbered.
    """

    def __init__(self, transform: Callable[[bytes], bytes], script: Script | None) -> None:
        self.transform = transform
        self.script = script
        self.reads_config = True
        self.body_limit: int | None = None
        self.seconds = 0.0
        self.requests: list[Request] = []
        self.probes: list[Request] = []
        self.busy = self.busiest = 0
        self.connected = 0
        """Connections of which something could still be read."""
        self.lock = threading.Lock()
        self.url = ""

    def answer(self, request: Request) -> Reply:
        with self.lock:
            (self.probes if request.is_probe else self.requests).append(request)
            number = len(self.requests) - 1
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
        try:
            if self.seconds:
                time.sleep(self.seconds)
            if request.is_probe:
                if self.script is not None and (reply := self.script(-1, request)) is not None:
                    return reply
                return Reply(400, b"{}") if self.reads_config else Reply(body=request.resource)
            if self.body_limit is not None and len(request.body) > self.body_limit:
                return Reply(413, b"too large")
            reply = self.script(number, request) if self.script is not None else None
            return reply or Reply(body=self.transform(request.resource))
        finally:
            with self.lock:
                self.busy -= 1


class _Parameter(msgspec.Struct):
    name: str
    valueAttachment: dict[str, str] = {}  # noqa: N815
    resource: msgspec.Raw = msgspec.Raw()


class _Parameters(msgspec.Struct):
    resourceType: str  # noqa: N815
    parameter: list[_Parameter] = []


def read_request(path: str, headers: dict[str, str], body: bytes) -> Request:
    if b'"Parameters"' not in body[:60]:
        return Request(path, headers, body, body)
    config, resource = msgspec.json.decode(body, type=_Parameters).parameter
    assert (config.name, resource.name) == ("config", "resource")
    assert config.valueAttachment["contentType"] == "application/yaml"
    data = base64.b64decode(config.valueAttachment["data"], validate=True)
    return Request(path, headers, body, bytes(resource.resource), data)


def _unparseable(config: bytes) -> bool:
    try:
        yaml.safe_load(config)
    except yaml.YAMLError:
        return True
    return False


@contextmanager
def serving(  # noqa: C901 - one handler, all it can do wrong
    transform: Callable[[bytes], bytes] = identity, script: Script | None = None, port: int = 0
) -> Iterator[FakeService]:
    """A ``FakeService`` that answers on loopback while the block runs."""
    fake = FakeService(transform, script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one segment: two would wait for each other (Nagle, delayed ACK)

        def setup(self) -> None:
            with fake.lock:
                fake.connected += 1
            super().setup()

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            if fake.script is not None and self.headers.get("Content-Type"):
                early = fake.script(-2, Request(self.path, dict(self.headers), b"", b""))
                if early is not None and early.reset == "before":
                    self.reset()
                    return
            reply = fake.answer(read_request(self.path, dict(self.headers), self.rfile.read(length)))
            if reply.stall is not None:
                reply.stall.wait(30)
                self.close_connection = True
                return
            if reply.reset:
                self.reset()
                return
            body = reply.body or b""
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/fhir+json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: reply.cut])
            self.wfile.flush()
            if reply.cut is not None:
                self.close_connection = True

        def reset(self) -> None:
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

    server = Server(("127.0.0.1", port), Handler)
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
    """A job directory with input, to be pseudonymized once or several times."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = directory / "import"
        self.input.mkdir(parents=True, exist_ok=True)
        self.output = directory / "pseudonymized"
        self.slept: list[float] = []
        self.context: StepContext | None = None

    def write(self, name: str, *lines: bytes | dict[str, Any]) -> Path:
        path = self.input / name
        path.write_bytes(b"".join(_line(line) + b"\n" for line in lines))
        return path

    def run(
        self,
        url: str,
        *,
        bounds: Bounds | None = None,
        attempts: int = 3,
        rules: bytes | None = None,
        compression: bool = False,
        real_sleep: bool = False,
        **settings: Any,
    ) -> StepReport:
        if rules is not None:
            settings["anonymization_config"] = str(self.directory / "rules.yaml")
            (self.directory / "rules.yaml").write_bytes(rules)
        config = PipelineConfig.model_validate(
            {
                "services": {"pseudonymizer": {"url": url, **settings}},
                "pipeline": {"enabled_steps": ["local_import", "pseudonymizer"]},
                "retry": {"max_attempts": attempts, "initial_backoff_ms": 100, "max_backoff_ms": 250},
                "compression": {"enabled": compression},
            }
        )
        self.context = StepContext(
            config=config, job_id="j", job_dir=self.directory, position=1, name="pseudonymizer", source=self.input
        )
        return run(self.context, bounds=bounds, sleep=None if real_sleep else self.slept.append)

    def lines(self, name: str) -> list[bytes]:
        """The lines of an output file."""
        return list(read_lines(self.output / name))

    def failed(self) -> list[Path]:
        """The answers that were kept."""
        return sorted((self.directory / "pseudonymizer" / "failed").glob("*"))

    @property
    def ledger(self) -> Path:
        return self.directory / "pseudonymizer" / "ledger.ndjson"


def _line(line: bytes | dict[str, Any]) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":")).encode()


def patient(identifier: str, **more: Any) -> dict[str, Any]:
    return {"resourceType": "Patient", "id": identifier, **more}


def observation(identifier: str, of: str = "p", **more: Any) -> dict[str, Any]:
    return {"resourceType": "Observation", "id": identifier, "subject": {"reference": f"Patient/{of}"}, **more}


def bundle(identifier: str, *resources: dict[str, Any], kind: str = "transaction", **more: Any) -> dict[str, Any]:
    entries = [
        {
            "fullUrl": f"http://old.example/fhir/{one['resourceType']}/{one['id']}",
            "resource": one,
            "request": {"method": "PUT", "url": f"{one['resourceType']}/{one['id']}"},
        }
        for one in resources
    ]
    return {"resourceType": "Bundle", "id": identifier, "type": kind, **more, "entry": entries}


def patient_bundle(number: int, count: int, size: int = 0) -> dict[str, Any]:
    """A patient's Bundle of ``count`` entries, each with a text of ``size`` characters."""
    of = f"p{number}"
    rest = [observation(f"{of}-o{index}", of, text="x" * size) for index in range(1, count)]
    return bundle(f"b{number}", patient(of), *rest)
