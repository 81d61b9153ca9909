"""The service that the benches of outgoing calls measure against, and how fast ``http.client`` is with it.

It is an ASGI application under uvicorn in a process of its own, as services are written. Ours and the limit go against
the same service, in turn.
"""

from __future__ import annotations

import base64
import http.client
import re
import socket
import threading
import time
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import uvicorn

from tests.bench.measure import MB

KILOBYTES = 250
"""What makes ``bundles`` give lines of 80 kB on average, the size of the limit's requests."""
TAKES = 0.02
"""Seconds that the slow service takes for a request."""

_RESOURCE = b'{"name":"resource","resource":'
_METADATA = (
    b'{"resourceType":"CapabilityStatement","fhirVersion":"4.0.1","rest":[{"mode":"server",'
    b'"resource":[{"type":"Patient"}],"interaction":[{"code":"transaction"}]}]}'
)
_UNREADABLE = base64.b64encode(b"fhirPathRules: [\n")
_PERSON = re.compile(rb', ?"(?:name|telecom|address)": ?\[\{.*?\}\]')
_BIRTH_DAY = re.compile(rb'("birthDate": ?"\d{4})[-\d]*')
_CHANGES = [(kind + b"/", kind + b"/z") for kind in (b"Patient", b"Observation")]
_CHANGES += [(b'"id":"', b'"id":"z'), (b'"id": "', b'"id": "z'), (b'"value":"', b'"value":"z')]
_PUT = re.compile(rb'"request":\{"method":"PUT","url":"([^"]+)"')
_DONE = b'{"response":{"status":"200 OK","location":"%s/_history/1","etag":"W/\\"1\\""}}'
_HEAD = b"HTTP/1.1 %d \r\nContent-Type: application/fhir+json\r\nContent-Length: %d\r\n\r\n"


def answer(path: str, body: bytes) -> tuple[int, bytes]:
    """Return status and body of a FHIR server's answer, or of a pseudonymizer's that gives other ids and dates, and
    takes away what identifies."""
    if path.endswith("/fhir/metadata"):
        return 200, _METADATA
    if path.endswith("/fhir"):
        entries = b",".join([_DONE % place for place in _PUT.findall(body)])
        return 200, b'{"resourceType":"Bundle","type":"transaction-response","entry":[%s]}' % entries
    if _UNREADABLE in body[:4096]:
        return 400, b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"invalid"}]}'
    at = body.find(_RESOURCE, 0, 4096)
    resource = body if at < 0 else body[at + len(_RESOURCE) : -len(b"}]}")]
    for old, new in _CHANGES:
        resource = resource.replace(old, new)
    return 200, _BIRTH_DAY.sub(rb"\1", _PERSON.sub(b"", resource))


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read all of a request, then answer."""
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
    """Serve ``application``; send the port once it listens."""
    # With the protocol named, asyncio sets TCP_NODELAY: without, head and body of an answer are 40 ms apart.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    ready.send(listener.getsockname()[1])
    config = uvicorn.Config(application, http="h11", lifespan="off", access_log=False, log_level="error")
    uvicorn.Server(config).run([listener])


def serve_slowly(ready: Connection, at_once: int) -> None:
    """Serve what ``TAKES`` its time, so many requests at once: on bare sockets, with answers that are made once."""
    slots, kept = threading.Semaphore(at_once), lru_cache(maxsize=500)(answer)
    server = socket.create_server(("127.0.0.1", 0), backlog=64)
    ready.send(server.getsockname()[1])

    def talk(connection: socket.socket) -> None:
        with connection, connection.makefile("rb", 1 << 18) as file:
            while line := file.readline():
                length = 0
                while (header := file.readline()) not in (b"\r\n", b""):
                    if header.lower().startswith(b"content-length:"):
                        length = int(header[15:])
                body = file.read(length)
                with slots:
                    begun = time.perf_counter()
                    status, text = kept(line.split()[1].decode(), body)
                    time.sleep(max(0.0, TAKES - (time.perf_counter() - begun)))
                connection.sendall(_HEAD % (status, len(text)) + text)

    while True:
        accepted, _ = server.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=talk, args=(accepted,), daemon=True).start()


def limit(port: int, megabytes: float, threads: int = 2) -> float:
    """Return MB/s of so many threads of ``http.client`` that post 80 kB, which the service sends back."""
    body = bytes(80_000)
    count = int(megabytes * MB / len(body) / threads)

    def post() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(count):
            connection.request("POST", "/echo", body, {"Content-Type": "application/fhir+json"})
            connection.getresponse().read()
        connection.close()

    posting = [threading.Thread(target=post) for _ in range(threads)]
    began = time.perf_counter()
    for thread in posting:
        thread.start()
    for thread in posting:
        thread.join()
    return threads * count * len(body) / (time.perf_counter() - began) / MB
