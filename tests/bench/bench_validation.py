"""How fast the validation step is, beside what the machine and the service allow (performance.md).

    python -m tests.bench.bench_validation [--mb 200] [--files 8] [--zst]
    python -m tests.bench.bench_validation --slow           only the service that takes 20 ms
    python -m tests.bench.bench_validation --line 400       one Bundle of 400 MB on one line

A service in another process reads every request and answers at once; the limit is that of performance.md, two threads
of ``http.client`` that post 80 kB to an echo, measured in the same run before and after (target: a ratio of 0.7 of it).
A service that takes 20 ms for each request, N at once, allows N / 20 ms requests a second (target: 0.95 of that for
N = 1, 4, 16). The peak memory is this process's (target: 300 MiB).
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import zstandard

from config import PipelineConfig
from tasks.shared.ndjson import lines_with_long
from tasks.shared.step import StepContext, StepResult
from tasks.validation.chunks import pack
from tasks.validation.entries import Reader
from tasks.validation.validation import Bounds, run
from tests.bench.bench_send import MB, limit
from tests.bench.data import bundles, write_files

_ANSWER = b'{"resourceType":"OperationOutcome","issue":[{"severity":"information","code":"informational"}]}'


def service(ready: Connection, seconds: float) -> None:
    """Answer every POST after ``seconds``, with an echo below ``/echo``."""

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(1 << 20)
        view = memoryview(buffer)
        with connection:
            while True:
                got = 0
                while (end := buffer.find(b"\r\n\r\n", 0, got)) < 0:
                    count = connection.recv_into(view[got:])
                    if not count:
                        return
                    got += count
                head = bytes(buffer[:end]).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                left = end + 4 + length - got
                echo = b"/echo" in head[:20]
                while left > 0:
                    count = connection.recv_into(view[got:] if echo else view, min(left, len(view)))
                    if not count:
                        return
                    left -= count
                    got += count if echo else 0
                if seconds:
                    time.sleep(seconds)
                body = view[end + 4 : end + 4 + length] if echo else _ANSWER
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                connection.sendall(body)

    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    ready.send(server.getsockname()[1])
    while True:
        accepted, _ = server.accept()
        threading.Thread(target=serve, args=(accepted,), daemon=True).start()


@contextmanager
def serving(seconds: float = 0.0) -> Iterator[int]:
    """The port of a service in a process of its own."""
    context = multiprocessing.get_context("spawn")  # a fork would share this one's memory figures
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=service, args=(theirs, seconds), daemon=True)
    process.start()
    try:
        yield mine.recv()
    finally:
        process.terminate()
        process.join()
        mine.close()
        theirs.close()


def validate(
    port: int, source: Path, job: Path, requests: int, bounds: Bounds | None = None
) -> tuple[float, StepResult, int]:
    """Seconds, result and number of requests of one run."""
    config = PipelineConfig.model_validate(
        {"services": {"validation": {"url": f"http://127.0.0.1:{port}", "max_concurrent_requests": requests}}}
    )
    job.mkdir()
    context = StepContext(config=config, job_id="bench", job_dir=job, position=2, name="validation", source=source)
    started = time.perf_counter()
    result = run(context, bounds=bounds)
    return time.perf_counter() - started, result, context.stats.requests


def slow(directory: Path) -> None:
    """Print the share of the possible rate that is reached with a service that takes 20 ms."""
    bounds = Bounds(mebibyte=8000)  # chunks of 80 kB, a line each
    for requests, megabytes in ((1, 40), (4, 100), (16, 320)):
        data = directory / f"data-{requests}"
        write_files(data, megabytes, 4)
        with serving(0.02) as port:
            # On a machine with other work to do, this is what the service itself allows.
            bare = limit(port, "/validateResource", bytes(80_000), requests * 8_000_000, requests) * MB / 80_000
            cpu = time.process_time()
            seconds, _, count = validate(port, data, directory / f"slow-{requests}", requests, bounds)
            cpu = time.process_time() - cpu
        possible = requests / 0.02
        print(
            f"20 ms, N = {requests:2}       {count / seconds:6.0f} requests/s of {possible:.0f}: "
            f"ratio {count / seconds / possible:.3f} (target ≥ 0.95); {count / seconds / bare:.3f} of the "
            f"{bare:.0f} that http.client reaches; {1000 * cpu / count:.2f} ms of CPU for a request"
        )


def peak() -> float:
    """Most memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one_line(directory: Path, megabytes: int) -> None:
    """Write one Bundle of that size on one line, without holding it."""
    directory.mkdir()
    with (directory / "a.ndjson").open("wb") as file:
        size = file.write(b'{"resourceType":"Bundle","type":"transaction","entry":[')
        first = True
        number = 0
        block = [line[line.index(b"[") + 1 : line.rindex(b"]")] for line in bundles(20)]
        while size < megabytes * MB:
            size += file.write((b"" if first else b",") + block[number % len(block)])
            first = False
            number += 1
        file.write(b"]}\n")


def read(source: Path, size: int) -> float:
    """MB/s at which the input is read, cut and packed, without sending it."""
    started = time.perf_counter()
    for path in source.iterdir():
        reader = Reader(path.name)
        groups = reader.groups(lines_with_long(path, limit=10 << 20, spool=source))
        for _ in pack(((group, 0) for group in groups), file=path.name, limit=10 << 20):
            pass
    return size / (time.perf_counter() - started) / MB


def fast(directory: Path, options: argparse.Namespace) -> None:
    """Print the rate and the memory with a service that answers at once."""
    data = directory / "data"
    if options.line:
        one_line(data, options.line)
    else:
        write_files(data, options.mb, options.files)
    size = sum(path.stat().st_size for path in data.iterdir())
    if options.zst:
        for path in list(data.iterdir()):
            with path.open("rb") as plain, path.with_name(f"{path.name}.zst").open("wb") as packed:
                zstandard.ZstdCompressor(3).copy_stream(plain, packed)
            path.unlink()
    with serving() as port:
        cpu = time.process_time()
        before = limit(port, "/echo", bytes(80_000), 100 * MB)
        allowed = 100 / (time.process_time() - cpu)
        base = peak()
        cpu = time.process_time()
        seconds, result, requests = validate(port, data, directory / "job", options.requests)
        used = size / (time.process_time() - cpu) / MB
        most = peak()
        after = limit(port, "/echo", bytes(80_000), 100 * MB)
    rate = size / seconds / MB
    print(f"input               {size / MB:6.0f} MB, {result.lines_in} lines, {result.resources_in} resources")
    print(f"limit, 80 kB echo   {before:6.0f} MB/s before, {after:.0f} MB/s after")
    print(f"validation          {rate:6.0f} MB/s of input, {requests} requests of {size / requests / 1000:.0f} kB")
    print(f"ratio               {rate * 2 / (before + after):6.2f} (target ≥ 0.7)")
    print(f"by CPU time         {used:6.0f} MB per second of this process, limit {allowed:.0f}: {used / allowed:.2f}")
    print(f"peak memory         {most:6.0f} MiB, {base:.0f} MiB before (target ≤ 300)")
    print(f"reading and packing {read(data, size):6.0f} MB/s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="size of the data, uncompressed")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--requests", type=int, default=4, help="max_concurrent_requests")
    parser.add_argument("--zst", action="store_true", help="compressed input")
    parser.add_argument("--slow", action="store_true", help="only the service that takes 20 ms")
    parser.add_argument("--line", type=int, metavar="MB", help="one Bundle of that size instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.slow:
            slow(Path(name))
        else:
            fast(Path(name), options)


if __name__ == "__main__":
    main()
