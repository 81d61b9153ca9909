"""Measure the speed and memory of the flattening step alone (performance.md).

    python -m tests.bench flattening [--mb 200] [--batch 50] [--zst]
    python -m tests.bench flattening --line 200       one Bundle of 200 MB on one line

A service in another process reads every request and answers at once, with one row of eight columns for each resource.
What is left is the client's own share (target: 100 MB/s of input). The peak memory is this process's (target: 300 MB
with ``batch_size_mb`` 50).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from config import PipelineConfig
from tasks.flattening.flattening import flatten
from tasks.flattening.views import RESOURCE_TYPE, GroupView, ViewColumn
from tasks.shared.fhir.crtdl import Crtdl
from tasks.shared.fhir.crtdl_model import Attribute, AttributeGroup
from tests.bench.data import bundles, compress
from tests.bench.echo import MB, listen, receive_head, serving
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context

COLUMNS = ("id", "patient", "code", "display", "value", "unit", "effective", "status")
SYSTEM = "https://www.medizininformatik-initiative.de/fhir/fdpg/NamingSystem/attribute_group"
_SENT = re.compile(rb'"resource":\{"resourceType":"[A-Za-z]+","id":"([^"]+)"')
_ROW = (
    b'{"id":"%b","patient":"Patient/p1-1","code":"2345-7","display":"Me\xc3\x9fgr\xc3\xb6\xc3\x9fe im Serum",'
    b'"value":1.50,"unit":"mg/dL","effective":"2025-11-02T09:15:00+01:00"}\n'
)


def service(ready: Connection) -> None:
    """Answer every POST with a row for each resource, every GET with nothing."""

    def serve(connection: socket.socket) -> None:
        buffer = bytearray(1 << 20)
        view = memoryview(buffer)
        with connection:
            while request := receive_head(connection, view):
                _, got, left = request
                body = bytearray(view[:got])
                while left > 0:
                    count = connection.recv_into(view, min(left, len(view)))
                    if not count:
                        return
                    body += view[:count]
                    left -= count
                rows = b"".join([_ROW % found[1] for found in _SENT.finditer(body)])
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n"
                connection.sendall(head % len(rows))
                connection.sendall(rows)

    listen(ready, serve)


def view(group: str, kind: str) -> GroupView:
    """Return a view of eight columns."""
    select = [{"column": [{"name": name, "path": name} for name in COLUMNS]}]
    definition = {"resourceType": RESOURCE_TYPE, "name": kind, "status": "active", "resource": kind, "select": select}
    columns = tuple(ViewColumn(name, None, collection=False) for name in COLUMNS)
    return GroupView(group, kind, f"http://bench.example/{group}", kind, definition, columns)


VIEWS = (view("g-pat", "Patient"), view("g-obs", "Observation"))
CRTDL = Crtdl(
    tuple(
        AttributeGroup(one.group_id, None, one.reference, (Attribute(f"{one.resource_type}.id", must_have=False),))
        for one in VIEWS
    )
)


def entries(line: bytes) -> list[bytes]:
    """Return the entries of a Bundle, its Provenances among them."""
    bundle = json.loads(line)
    groups = {one.resource_type: one.group_id for one in VIEWS}
    for kind, group in groups.items():
        members = [entry["resource"] for entry in bundle["entry"] if entry["resource"]["resourceType"] == kind]
        named = {
            "resourceType": "Provenance",
            "id": f"{bundle['id']}-{kind}",
            "target": [{"reference": f"{kind}/{member['id']}"} for member in members],
            "entity": [{"role": "source", "what": {"identifier": {"system": SYSTEM, "value": group}}}],
        }
        bundle["entry"].append({"resource": named, "request": {"method": "PUT", "url": f"Provenance/{named['id']}"}})
    return [json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() for entry in bundle["entry"]]


def make(directory: Path, megabytes: int, *, files: int = 8, long: bool = False) -> int:
    """Write that much data, Provenances included, every id once; on one line with ``long``. Returns its bytes."""
    directory.mkdir(parents=True)
    size = 0
    head, tail = b'{"resourceType":"Bundle","id":"b","type":"transaction","entry":[', b"]}"
    if long:
        with (directory / "a.ndjson").open("wb") as file:
            file.write(head)
            first = True
            for line in bundles(megabytes * 0.93):
                file.write((b"" if first else b",") + b",".join(entries(line)))
                first = False
            file.write(tail + b"\n")
            return file.tell()
    for number in range(files):
        with (directory / f"batch-{number:05}.ndjson").open("wb") as file:
            for line in bundles(megabytes * 0.93 / files, seed=number + 1):
                size += file.write(head + b",".join(entries(line)) + tail + b"\n")
    return size


def measured(port: int, source: Path, job: Path, batch: int) -> tuple[float, float]:
    """Seconds, result, and CPU seconds of this process for one run."""
    config = PipelineConfig.model_validate(
        {"services": {"flattening": {"service_url": f"http://127.0.0.1:{port}", "batch_size_mb": batch}}}
    )
    job.mkdir()
    given = context(job, "flattening", config, source=source)
    cpu, started = time.process_time(), time.perf_counter()
    result = flatten(given, CRTDL, VIEWS)
    return time.perf_counter() - started, result, time.process_time() - cpu


def peak() -> float:
    """Most memory of this process so far, in MB."""
    return peak_bytes() / MB


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=200, help="size of the data, uncompressed")
    parser.add_argument("--batch", type=int, default=50, help="batch_size_mb")
    parser.add_argument("--zst", action="store_true", help="compressed input")
    parser.add_argument("--line", type=int, metavar="MB", help="one Bundle of that size instead")


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        data = directory / "data"
        # In another process, so that making the data leaves no trace in this one's memory.
        maker = multiprocessing.get_context("spawn").Process(
            target=make, args=(data, options.line or options.mb), kwargs={"long": bool(options.line)}
        )
        maker.start()
        maker.join()
        size = sum(path.stat().st_size for path in data.iterdir())
        if options.zst:
            compress(data)
        with serving(service) as port:
            before = peak()
            seconds, result, cpu = measured(port, data, directory / "job", options.batch)
            most = peak()
    rows = result.details["rows"]
    print(f"input         {size / MB:6.0f} MB, {result.lines_in} lines, {result.resources_in} resources")
    print(f"output        {(result.bytes_out or 0) / MB:6.0f} MB, {rows} rows, {result.details['requests']} requests")
    print(f"rate          {size / seconds / MB:6.0f} MB/s of input (target ≥ 100), {rows / seconds:.0f} rows/s")
    print(f"by CPU time   {size / cpu / MB:6.0f} MB per second of this process")
    print(f"peak memory   {most:6.0f} MB, {before:.0f} MB before (target ≤ 300 with batch_size_mb 50)")
