"""A scripted flattening service on loopback, and the surroundings of a flattening step."""

from __future__ import annotations

import json
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

import msgspec

from config import PipelineConfig
from tasks.flattening.flattening import Bounds, flatten
from tasks.flattening.views import RESOURCE_TYPE, Column, View
from tasks.shared.fhir.crtdl import Attribute, AttributeGroup, Crtdl
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

SYSTEM = "https://www.medizininformatik-initiative.de/fhir/fdpg/NamingSystem/attribute_group"
PROFILE = "https://example.org/StructureDefinition/"


@dataclass
class Reply:
    """What the server does with one request. ``reset``: no answer, ``"before"`` or ``"after"`` the body was read."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reset: str = ""
    stall: threading.Event | None = None
    begun: bytes = b""
    """Sent, chunked, before it stalls."""
    drips: int = 0
    """Sent so many times more, a twentieth of a second apart."""
    cut: int | None = None
    """Send only so many bytes of the body, under the Content-Length of all of it."""


@dataclass
class Request:
    """A ``$run`` as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    view: dict[str, Any] = field(repr=False)
    resources: list[bytes] = field(repr=False)

    @property
    def type(self) -> str:
        return str(self.view["resource"])

    @property
    def ids(self) -> list[str]:
        return [json.loads(resource)["id"] for resource in self.resources]


Script = Callable[[int, Request], "Reply | None"]


class _Parameter(msgspec.Struct):
    name: str
    resource: msgspec.Raw


class _Parameters(msgspec.Struct):
    resourceType: str  # noqa: N815
    parameter: list[_Parameter]


def read_request(path: str, headers: dict[str, str], body: bytes) -> Request:
    """Checks the shape that document 3 §5 asks for."""
    parameters = msgspec.json.decode(body, type=_Parameters)
    first, *rest = parameters.parameter
    assert (parameters.resourceType, first.name) == ("Parameters", "viewDefinition")
    assert {one.name for one in rest} == {"resources"}
    view = json.loads(bytes(first.resource))
    assert set(view) <= {"resourceType", "name", "status", "resource", "constant", "select", "where"}
    resources = [bytes(one.resource) for one in rest]
    assert {json.loads(resource)["resourceType"] for resource in resources} == {view["resource"]}
    return Request(path, headers, body, view, resources)


def _at(raw: bytes, path: str) -> bytes | None:
    for key in path.split("."):
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get(key)
        if found is None:
            return None
        raw = bytes(found)
    return raw


def rows_of(view: dict[str, Any], resource: bytes) -> list[bytes]:
    """Rows by simple paths: columns of the first select, once for every element of the ``forEach`` of the second."""
    plain, *nested = view["select"]
    cells = {column["name"]: _at(resource, column["path"]) for column in plain["column"]}
    rows = [cells]
    if nested:
        elements = msgspec.json.decode(_at(resource, nested[0]["forEach"]) or b"[]", type=list[msgspec.Raw])
        rows = [
            cells | {column["name"]: _at(bytes(element), column["path"]) for column in nested[0]["column"]}
            for element in elements
        ]
    return [
        b"{" + b",".join(b"%b:%b" % (json.dumps(k).encode(), v) for k, v in row.items() if v is not None) + b"}"
        for row in rows
    ]


class FakeService:
    """Answers rows; ``script(number, request)`` may answer differently, requests from 0."""

    def __init__(self, script: Script | None) -> None:
        self.script = script
        self.metadata: Callable[[], Reply] = lambda: Reply(body=b'{"resourceType":"CapabilityStatement"}')
        self.rows: Callable[[dict[str, Any], bytes], list[bytes]] = rows_of
        self.seconds = 0.0
        self.requests: list[Request] = []
        self.looks = 0
        self.busy = self.busiest = 0
        self.connected = 0
        """Connections of which something could still be read."""
        self.busy_views: list[str] = []
        self.overlaps = 0
        self.lock = threading.Lock()
        self.url = ""

    def answer(self, request: Request) -> Reply:
        name = request.view["name"]
        with self.lock:
            self.requests.append(request)
            number = len(self.requests) - 1
            self.busy += 1
            self.busiest = max(self.busiest, self.busy)
            self.overlaps += name in self.busy_views
            self.busy_views.append(name)
        try:
            if self.seconds:
                time.sleep(self.seconds)
            reply = self.script(number, request) if self.script is not None else None
            if reply is not None:
                return reply
            rows = [row for resource in request.resources for row in self.rows(request.view, resource)]
            return Reply(body=b"".join(row + b"\n" for row in rows))
        finally:
            with self.lock:
                self.busy -= 1
                self.busy_views.remove(name)


@contextmanager
def serving(script: Script | None = None) -> Iterator[FakeService]:  # noqa: C901 - one handler, all it can do wrong
    """A ``FakeService`` that answers on loopback while the block runs."""
    fake = FakeService(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one segment: two would wait for each other (Nagle, delayed ACK)

        def setup(self) -> None:
            with fake.lock:
                fake.connected += 1
            super().setup()

        def do_GET(self) -> None:
            assert self.path == "/fhir/metadata"
            fake.looks += 1
            self.send(fake.metadata())

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            if fake.script is not None:
                early = fake.script(-1, Request(self.path, dict(self.headers), b"", {}, []))
                if early is not None:
                    self.reset()
                    return
            body = self.rfile.read(length)
            if len(body) < length:
                return  # the client was killed while it sent it
            self.send(fake.answer(read_request(self.path, dict(self.headers), body)))

        def send(self, reply: Reply) -> None:
            if reply.reset:
                self.reset()
                return
            body = reply.body or b""
            if reply.stall is not None:
                if reply.begun:
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(reply.begun), reply.begun))
                    self.wfile.flush()
                for _ in range(reply.drips):
                    time.sleep(0.05)
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(reply.begun), reply.begun))
                    self.wfile.flush()
                reply.stall.wait(30)
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in {"Content-Type": "application/x-ndjson", **reply.headers}.items():
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

        def handle_error(self, request: Any, client_address: Any) -> None:
            raise  # noqa: PLE0704, RUF100 - an assertion about the request is seen in the test's output

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def view(
    group: str, kind: str, columns: dict[str, str], *, name: str | None = None, each: str = "",
    below: dict[str, str] | None = None, profile: str | None = None,
) -> View:  # fmt: skip
    """A view with columns (name → simple path), and more of them for every element of ``each``."""
    select: list[dict[str, Any]] = [{"column": [{"name": key, "path": path} for key, path in columns.items()]}]
    if below:
        select.append({"forEach": each, "column": [{"name": key, "path": path} for key, path in below.items()]})
    names = [*columns, *(below or {})]
    definition = {
        "resourceType": RESOURCE_TYPE,
        "name": "".join(char for char in group if char.isalnum()),
        "status": "active",
        "resource": kind,
        "select": select,
    }
    return View(
        group, name or group, profile or PROFILE + group, kind, definition,
        tuple(Column(key, None, collection=False) for key in names),
    )  # fmt: skip


def crtdl(views: Sequence[View], *others: tuple[str, str]) -> Crtdl:
    """A CRTDL with the groups of these views, and groups (id, type) that have none."""
    made = [AttributeGroup(v.group_id, v.group_name, v.reference, (_ref(v.resource_type),)) for v in views]
    made += [AttributeGroup(group, None, PROFILE + group, (_ref(kind),)) for group, kind in others]
    return Crtdl(tuple(made))


def _ref(kind: str) -> Attribute:
    return Attribute(f"{kind}.id", must_have=False)


PATIENTS = view("g-pat", "Patient", {"id": "id", "gender": "gender"}, name="Patient")
CONDITIONS = view(
    "g-cond", "Condition", {"id": "id", "patient": "subject.reference", "note": "note"}, name="Diagnosen",
    each="code.coding", below={"system": "system", "code": "code", "display": "display"},
)  # fmt: skip
OBSERVATIONS = view(
    "g-obs", "Observation", {"id": "id", "patient": "subject.reference", "value": "valueQuantity.value"}, name="Labor"
)
VIEWS = (PATIENTS, CONDITIONS, OBSERVATIONS)


class Job:
    """A job directory with input, to be flattened once or several times."""

    def __init__(self, directory: Path, views: Sequence[View] = VIEWS, others: Sequence[tuple[str, str]] = ()) -> None:
        self.directory = directory
        self.views = views
        self.crtdl = crtdl(views, *others)
        self.input = directory / "import"
        self.input.mkdir(parents=True, exist_ok=True)
        self.output = directory / "csv"
        self.slept: list[float] = []
        self.context: StepContext | None = None

    def write(self, name: str, *lines: bytes | dict[str, Any]) -> Path:
        path = self.input / name
        path.write_bytes(b"".join(as_line(line) + b"\n" for line in lines))
        return path

    def run(
        self, url: str, *, bounds: Bounds | None = None, attempts: int = 3, real_sleep: bool = False, **settings: Any
    ) -> StepReport:
        config = PipelineConfig.model_validate(
            {
                "services": {"flattening": {"service_url": url, **settings}},
                "retry": {"max_attempts": attempts, "initial_backoff_ms": 100, "max_backoff_ms": 250},
            }
        )
        self.context = StepContext(
            config=config, job_id="j", job_dir=self.directory, position=2, name="flattening", source=self.input
        )
        sleep = None if real_sleep else self.slept.append
        return flatten(self.context, self.crtdl, self.views, bounds=bounds, sleep=sleep)

    def tables(self) -> dict[str, bytes]:
        """Everything in ``csv/``."""
        return {path.name: path.read_bytes() for path in sorted(self.output.iterdir())}

    def failed(self) -> list[Path]:
        """The answers that were kept."""
        return sorted((self.directory / "flattening" / "failed").glob("*"))


def as_line(line: bytes | dict[str, Any]) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode()


def resource(kind: str, identifier: str, **more: Any) -> dict[str, Any]:
    return {"resourceType": kind, "id": identifier, **more}


def of_patient(kind: str, identifier: str, patient: str, **more: Any) -> dict[str, Any]:
    return resource(kind, identifier, subject={"reference": f"Patient/{patient}"}, **more)


def provenance(group: str, *resources: dict[str, Any] | str, system: str = SYSTEM) -> dict[str, Any]:
    targets = [one if isinstance(one, str) else f"{one['resourceType']}/{one['id']}" for one in resources]
    return {
        "resourceType": "Provenance",
        "id": f"prov-{group}",
        "target": [{"reference": target} for target in targets],
        "recorded": "2026-03-02T09:15:40Z",
        "agent": [{"who": {"identifier": {"system": SYSTEM.replace("attribute_group", "program"), "value": "x"}}}],
        "entity": [
            {"role": "source", "what": {"identifier": {"system": system, "value": group}}},
            {
                "role": "source",
                "what": {"identifier": {"system": SYSTEM.replace("attribute_group", "e"), "value": "1"}},
            },
        ],
    }


def bundle(identifier: str, *resources: dict[str, Any], kind: str = "transaction") -> dict[str, Any]:
    entries = [
        {"resource": one, "request": {"method": "PUT", "url": f"{one['resourceType']}/{one['id']}"}}
        for one in resources
    ]
    return {"resourceType": "Bundle", "id": identifier, "type": kind, "entry": entries}


def patient_line(number: int, observations: int = 3, size: int = 0, conditions: int = 1) -> dict[str, Any]:
    """A patient's Bundle with its Provenances, as the extraction server writes it."""
    name = f"p{number}"
    patient = resource("Patient", name, gender="female" if number % 2 else "male")
    diagnoses = [
        of_patient("Condition", f"{name}-c{n}", name, code={"coding": [{"system": "icd", "code": f"I{n}.{number}"}]})
        for n in range(conditions)
    ]
    values = [
        of_patient("Observation", f"{name}-o{n}", name, valueQuantity={"value": n + number / 8}, note="x" * size)
        for n in range(observations)
    ]
    groups = [("g-pat", [patient]), ("g-cond", diagnoses), ("g-obs", values)]
    named = [provenance(group, *members) for group, members in groups if members]
    return bundle(f"b{number}", patient, *diagnoses, *values, *named)
