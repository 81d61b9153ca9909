"""How fast the pseudonymizer step is, beside what the service and the machine allow (performance.md).

    python -m tests.bench.bench_pseudonymizer [--mb 200] [--files 8] [--requests 4] [--zst] [--large 400]

A stub service in another process gives every resource back.

* It takes 20 ms for each request and lets N be under way at once, N = 1, 4, 16: the ratio to N / 20 ms (target 0.95),
  beside what N threads of ``http.client`` reach, which is what the machine makes of ``sleep(0.02)`` and loopback.
* It answers at once: the ratio to two threads of ``http.client`` that post 80 kB to a service that echoes them, before
  and after in the same run (target 0.7). For comparison: ``ServiceClient`` alone with the same lines.
* ``--large`` MB in one Bundle on one line, which is split: peak memory (target ≤ 300 MiB, as for ``--mb`` of lines).

Every load runs in a process of its own, whose peak memory is its own too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zstandard

from config import PipelineConfig
from tasks.pseudonymizer.client import Deidentify
from tasks.pseudonymizer.pseudonymization import run
from tasks.shared.http import ServiceClient
from tasks.shared.step import StepContext
from tests.bench.data import bundles

MB = 1_000_000
_RESOURCE = b'{"name":"resource","resource":'
_RULES = "fhirPathRules:\n  - {path: Patient.name, method: redact}\n"

KILOBYTES = 205
"""What makes ``bundles`` give lines of 80 kB on average."""

TAKES = 0.02
"""Seconds that the slow service takes for a request."""


def make(directory: Path, megabytes: float, files: int, *, compressed: bool) -> int:
    """Write Bundles of 80 kB on average into ``files`` files; the bytes written, uncompressed."""
    directory.mkdir(parents=True)
    lines = list(bundles(min(megabytes, 16.0), kilobytes=KILOBYTES))
    total = number = 0
    for index in range(files):
        with (directory / f"batch-{index}.ndjson{'.zst' if compressed else ''}").open("wb") as raw:
            file = zstandard.ZstdCompressor(3).stream_writer(raw, closefd=False) if compressed else raw
            while total < megabytes * MB * (index + 1) / files:
                line = lines[number % len(lines)] + b"\n"
                file.write(line)
                total += len(line)
                number += 1
            if compressed:
                file.close()
    return total


def make_large(directory: Path, megabytes: int) -> int:
    """Write one Bundle of that size on one line; its bytes."""
    directory.mkdir(parents=True)
    entry = json.dumps(json.loads(next(bundles(0.1)))["entry"][1], ensure_ascii=False, separators=(",", ":")).encode()
    with (directory / "large.ndjson").open("wb") as file:
        size = file.write(b'{"resourceType":"Bundle","id":"large","type":"transaction","entry":[' + entry)
        while size < megabytes * MB:
            size += file.write(b"," + entry)
        return size + file.write(b"]}\n")


def stub(ready: Connection) -> None:
    """Give back the resource of every POST; under ``/slow<N>`` after ``TAKES`` seconds, N at once."""
    slots = {number: threading.Semaphore(number) for number in (1, 4, 16)}

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(1 << 20)
        with connection:
            while True:
                got = 0
                while (end := buffer.find(b"\r\n\r\n", 0, got)) < 0:
                    count = connection.recv_into(memoryview(buffer)[got:])
                    if not count:
                        return
                    got += count
                head = bytes(buffer[:end]).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                need = end + 4 + length
                if need > len(buffer):
                    buffer.extend(bytes(need - len(buffer)))
                while got < need:
                    count = connection.recv_into(memoryview(buffer)[got:need])
                    if not count:
                        return
                    got += count
                if b"/slow" in head[:20]:
                    with slots[int(head.split(b"/slow")[1].split(b"/")[0])]:
                        time.sleep(TAKES)
                start, stop = end + 4, need
                if (wrapped := buffer.find(_RESOURCE, start, start + 4096)) >= 0:
                    if buffer.find(b'"sluice-probe"', wrapped, wrapped + 200) >= 0:
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                        continue
                    start, stop = wrapped + len(_RESOURCE), need - len(b"}]}")
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (stop - start))
                connection.sendall(memoryview(buffer)[start:stop])

    server = socket.create_server(("127.0.0.1", 0))
    ready.send(server.getsockname()[1])
    while True:
        accepted, _ = server.accept()
        threading.Thread(target=serve, args=(accepted,), daemon=True).start()


def limit(port: int, body: bytes, size: int, threads: int = 2) -> float:
    """MB/s that ``http.client`` posts in ``threads`` threads, ``size`` bytes in all."""
    each = max(1, size // threads // len(body))

    def post() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(each):
            connection.request("POST", "/echo", body, {"Content-Type": "application/fhir+json"})
            connection.getresponse().read()
        connection.close()

    seconds = _together([threading.Thread(target=post) for _ in range(threads)])
    return each * threads * len(body) / seconds / MB


def possible(port: int, slots: int) -> float:
    """Requests a second that ``http.client`` gets from the slow service in ``slots`` threads: what is possible here."""

    def post() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(50):
            connection.request("POST", f"/slow{slots}/", bytes(66_000))
            connection.getresponse().read()
        connection.close()

    return 50 * slots / _together([threading.Thread(target=post) for _ in range(slots)])


def client(port: int, size: int, threads: int) -> float:
    """MB/s of lines that ``ServiceClient`` posts and gets back: more than that no step that uses it can reach."""
    config = PipelineConfig.model_validate({})
    lines = list(bundles(8.0, kilobytes=KILOBYTES))
    rounds = max(1, int(size / 8e6 / threads))
    with ServiceClient("pseudonymizer", tls=config.tls, retry=config.retry) as service:
        call = Deidentify(service, f"http://127.0.0.1:{port}", None, slots=threads)

        def work() -> None:
            for _ in range(rounds):
                for line in lines:
                    call(line)

        seconds = _together([threading.Thread(target=work) for _ in range(threads)])
    return sum(map(len, lines)) * rounds * threads / seconds / MB


def _together(threads: list[threading.Thread]) -> float:
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def load(answer: Connection, url: str, directory: Path, job: Path, requests: int, compressed: bool) -> None:
    """One run of the step: seconds, bytes, requests, peak memory in MiB before and after."""
    rules = job.with_suffix(".yaml")
    rules.write_text(_RULES)
    settings = {"url": url, "max_concurrent_requests": requests, "anonymization_config": str(rules)}
    config = PipelineConfig.model_validate(
        {"services": {"pseudonymizer": settings}, "compression": {"enabled": compressed}}
    )
    context = StepContext(config=config, job_id="bench", job_dir=job, position=1, name="p", source=directory)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    started = time.perf_counter()
    result = run(context)
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer.send((seconds, result.bytes_in, context.stats.requests, before, after))


def measured(*arguments: Any) -> tuple[float, int, int, float, float]:
    """``load`` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=load, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        figures: tuple[float, int, int, float, float] = mine.recv()
        return figures
    finally:
        process.join()
        mine.close()


def report(port: int, place: Path, options: argparse.Namespace) -> Iterator[str]:
    """Measure, line by line."""
    address = f"http://127.0.0.1:{port}"
    for slots in (1, 4, 16):
        data = place / f"slow{slots}"
        make(data, 13.0 * slots, 4, compressed=False)  # four seconds
        seconds, _, requests, _, _ = measured(f"{address}/slow{slots}", data, place / f"job{slots}", slots, True)
        ratio = requests * TAKES / slots / seconds
        plain = possible(port, slots)
        yield f"20 ms, N = {slots:<2}        {requests / seconds:6.0f} requests/s, ratio {ratio:.3f} (target ≥ 0.95)"
        yield f"    http.client alone{plain:6.0f} requests/s, ratio {plain * TAKES / slots:.3f}"
    size = make(place / "data", options.mb, options.files, compressed=options.zst)
    some = min(size, 100 * MB)
    first = limit(port, bytes(80_000), some)
    seconds, read, requests, before, peak = measured(address, place / "data", place / "job", options.requests, True)
    second = limit(port, bytes(80_000), some)
    alone = client(port, some, options.requests)
    rate = read / seconds / MB
    yield f"input                {size / MB:6.0f} MB in {options.files} files, {'zst' if options.zst else 'plain'}"
    yield f"limit, 80 kB echo    {first:6.0f} MB/s before, {second:.0f} MB/s after"
    yield f"step, answers at once{rate:6.0f} MB/s, {requests} requests of {read / requests / 1000:.0f} kB"
    yield f"ratio                {rate * 2 / (first + second):6.2f} (target ≥ 0.7)"
    yield f"ServiceClient, same  {alone:6.0f} MB/s"
    yield f"peak memory          {peak:6.0f} MiB, {before:.0f} MiB before (target ≤ 300)"
    if options.large:
        size = make_large(place / "large", options.large)
        seconds, _, requests, before, peak = measured(address, place / "large", place / "job-l", options.requests, True)
        yield f"one Bundle           {size / MB:6.0f} MB in {requests} requests, {size / seconds / MB:.0f} MB/s"
        yield f"peak memory          {peak:6.0f} MiB, {before:.0f} MiB before (target ≤ 300)"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="size of the data, uncompressed")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--requests", type=int, default=4, help="max_concurrent_requests when it answers at once")
    parser.add_argument("--zst", action="store_true", help="compressed input")
    parser.add_argument("--large", type=int, default=400, help="MB of the one large Bundle; 0 leaves it out")
    options = parser.parse_args()
    # A fresh interpreter: a fork would share this one's memory figures.
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=stub, args=(theirs,), daemon=True)
    process.start()
    try:
        with tempfile.TemporaryDirectory() as name:
            for line in report(mine.recv(), Path(name), options):
                print(line, flush=True)
    finally:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
