"""The service that the benchmarks of outgoing calls measure against, and how fast ``http.client`` is with it.

performance.md says how fast a client can be at all: two threads of ``http.client`` that post 80 kB to a service which
sends them back. How fast that is depends on the service: one that a benchmark writes on bare sockets takes 940 MB/s,
one written as services are written 250. The page means the second, so this one is an ASGI application under uvicorn, in
a process of its own. Ours and the limit go against the same service, in turn, several rounds of each.

With fewer cores than processes that want one, a ratio is that of the CPU time of both sides, not of the client's.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import uvicorn

MB = 1_000_000
KILOBYTES = 250
"""What makes ``bundles`` give lines of 80 kB on average, the size of the limit's requests."""
TAKES = 0.02
"""Seconds that the slow service takes for a request."""

_RESOURCE = b'{"name":"resource","resource":'
_OUTCOME = b'{"resourceType":"OperationOutcome","issue":[{"severity":"information","code":"informational"}]}'
_METADATA = (
    b'{"resourceType":"CapabilityStatement","fhirVersion":"4.0.1","rest":[{"mode":"server",'
    b'"resource":[{"type":"Patient"}],"interaction":[{"code":"transaction"}]}]}'
)
_PUT = re.compile(rb'"request":\{"method":"PUT","url":"([^"]+)"')
_DONE = (
    b'{"response":{"status":"200 OK","location":"%s/_history/1","etag":"W/\\"1\\"",'
    b'"lastModified":"2026-01-01T00:00:00Z"}}'
)
_HEAD = b"HTTP/1.1 %d X\r\nContent-Type: application/fhir+json\r\nContent-Length: %d\r\n\r\n"
_BODY = bytes(80_000)


def answer(path: str, body: bytes) -> tuple[int, bytes]:
    """Return status and body of each kind of service for the benchmarks' requests."""
    if path.endswith("/validateResource"):
        return 200, _OUTCOME
    if path.endswith("/fhir/metadata"):
        return 200, _METADATA
    if path.endswith("/fhir"):
        entries = b",".join([_DONE % place for place in _PUT.findall(body)])
        return 200, b'{"resourceType":"Bundle","type":"transaction-response","entry":[%s]}' % entries
    at = body.find(_RESOURCE, 0, 4096)
    return 200, _renamed(body if at < 0 else body[at + len(_RESOURCE) : -len(b"}]}")])


def _renamed(resource: bytes) -> bytes:
    """Return the resource without what identifies: hardly more work than an echo, and nothing for the step to find."""
    for name in (b'"name":', b'"telecom":', b'"address":'):
        resource = resource.replace(name, name.replace(b"e", b"3"))
    return resource.replace(b'"value":"', b'"value":"0')


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The service: it reads all of a request, then answers."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        parts.append(message["body"])
        more = message.get("more_body", False)
    status, body = answer(scope["path"], b"".join(parts))
    headers = [(b"content-type", b"application/fhir+json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(ready: Connection) -> None:
    """Serve ``application``; print the port once it listens."""
    # With the protocol named, asyncio sets TCP_NODELAY: without, head and body of an answer are 40 ms apart.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    ready.send(listener.getsockname()[1])
    config = uvicorn.Config(application, http="h11", lifespan="off", access_log=False, log_level="error")
    uvicorn.Server(config).run([listener])


def listen(ready: Connection, talk: Callable[[socket.socket], None]) -> None:
    """Run ``talk`` on every connection in its own thread; print the port once it listens."""
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    ready.send(server.getsockname()[1])
    while True:
        accepted, _ = server.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=talk, args=(accepted,), daemon=True).start()


def receive_head(connection: socket.socket, view: memoryview) -> tuple[bytes, int, int] | None:
    """The head of a request in lower case, the bytes received with it, and those of its body that are still to come."""
    got = 0
    while (end := bytes(view[:got]).find(b"\r\n\r\n")) < 0:
        count = connection.recv_into(view[got:])
        if not count:
            return None
        got += count
    head = bytes(view[:end]).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
    return head, got, end + 4 + length - got


def serve_slowly(ready: Connection) -> None:
    """Serve under ``/slow<N>/`` what ``TAKES`` its time, N at once: on bare sockets, as little as can be besides."""
    slots = {number: threading.Semaphore(number) for number in (1, 4, 16)}

    def talk(connection: socket.socket) -> None:
        with connection, connection.makefile("rb", 1 << 18) as file:
            while line := file.readline():
                length = 0
                while (header := file.readline()) not in (b"\r\n", b""):
                    if header.lower().startswith(b"content-length:"):
                        length = int(header[15:])
                body = file.read(length)
                path = line.split()[1].decode()
                with slots[int(path.split("/slow")[1].split("/")[0])]:
                    time.sleep(TAKES)
                status, text = answer(path, body)
                connection.sendall(_HEAD % (status, len(text)) + text)

    listen(ready, talk)


@contextmanager
def serving(target: Callable[..., None] = serve, *arguments: Any) -> Iterator[int]:
    """Yield the port of a service in a process of its own: a fresh interpreter, a fork would share memory figures."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    try:
        yield mine.recv()
    finally:
        process.terminate()
        process.join()
        mine.close()
        theirs.close()


def in_threads(number: int, work: Callable[[], None]) -> float:
    """Return the seconds of ``work`` in so many threads."""
    threads = [threading.Thread(target=work) for _ in range(number)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def requests_a_second(port: int, path: str, count: int, threads: int = 2, body: bytes = _BODY) -> float:
    """Return the requests a second of ``http.client`` in ``threads`` threads, ``count`` requests in all, 80 kB each."""

    def post() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(count // threads):
            connection.request("POST", path, body, {"Content-Type": "application/fhir+json"})
            connection.getresponse().read()
        connection.close()

    return count // threads * threads / in_threads(threads, post)


def limit(port: int, path: str = "/echo", size: int = 50 * MB, threads: int = 2, body: bytes = _BODY) -> float:
    """Return the same rate in MB/s, for ``size`` bytes in all."""
    return requests_a_second(port, path, max(threads, size // len(body)), threads, body) * len(body) / MB


@dataclass
class Rounds:
    """Results of several rounds."""

    values: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """The largest."""
        return max(self.values)

    @property
    def median(self) -> float:
        """The one in the middle."""
        return statistics.median(self.values)


def in_turn(rounds: int, *measures: Callable[[int], float]) -> list[Rounds]:
    """Each measure once in every round, so that what else the machine does meets all alike; each gets the round."""
    found = [Rounds() for _ in measures]
    for number in range(rounds):
        for one, measure in zip(found, measures, strict=True):
            one.values.append(measure(number))
    return found


def ratio(ours: Rounds, theirs: Iterable[float] | Rounds) -> str:
    """Ours to theirs: best to best, and the median of the rounds' own ratios."""
    values = theirs.values if isinstance(theirs, Rounds) else list(theirs)
    pairs = [mine / other for mine, other in zip(ours.values, values, strict=True)]
    return f"{ours.best / max(values):.2f} best to best, {statistics.median(pairs):.2f} median of the rounds"


def against_slow(rounds: int, path: str, step: Callable[[str, int, int], float]) -> Iterator[str]:
    """Lines about requests a second with a service that takes 20 ms: what ``step`` reaches with its URL, N at once, in
    a round, beside what is possible and what N threads of ``http.client`` reach at ``path``.
    """
    with serving(serve_slowly) as port:
        for slots in (1, 4, 16):
            url = f"http://127.0.0.1:{port}/slow{slots}"
            ours, bare = in_turn(
                rounds,
                lambda number, slots=slots, url=url: step(url, slots, number),  # type: ignore[misc]
                lambda _, slots=slots: requests_a_second(port, f"/slow{slots}{path}", 200 * slots, slots),  # type: ignore[misc]
            )
            possible = slots / TAKES
            yield (
                f"20 ms, N = {slots:<2}         {ours.median:6.0f} requests/s of {possible:.0f}: ratio "
                f"{ours.best / possible:.3f} best, {ours.median / possible:.3f} median (target ≥ 0.95)"
            )
            yield (
                f"    http.client       {bare.median:6.0f} requests/s: {bare.best / possible:.3f} best, "
                f"{bare.median / possible:.3f} median; ours to it {ratio(ours, bare)}"
            )


def step_options(parser: argparse.ArgumentParser, requests: int) -> None:
    """Declare the options of a step's bench; ``requests`` is the default number of parallel requests."""
    parser.add_argument("--mb", type=int, default=100, help="size of the data, uncompressed")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--requests", type=int, default=requests, help="max_concurrent_requests")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--zst", action="store_true", help="compressed input")
