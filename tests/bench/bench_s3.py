"""Speed of ``s3_upload`` against ``curl -T`` to the same sink in the same run (performance.md).

    python -m tests.bench s3 [--mb 2000] [--files 40] [--sparse-mb 0] [--rounds 1] [--discard] [--plain]

A sink in another process speaks TLS, takes every body and answers as an S3 store does, with the MD5 of the body as its
ETag. The limit is ``curl -T`` of the same files to the same sink over one connection, measured before and after; the
target is a ratio of at least 0.7 and at most 300 MB of memory, also with ``--files 5000 --mb 200``. With
``--sparse-mb 6000`` one file of that size, which takes no disk, goes in parts.

The seconds of CPU say why the ratio is what it is: curl does not hash. SHA-256 for the metadata and MD5 for
``Content-MD5`` are ours, and what they cost is printed beside. With ``--discard`` the sink does not hash either, which
no store can afford, and the ratio is that of two hashes to none. A machine that is busy with other things favours
whoever needs less CPU, so measure on a quiet one.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import resource
import socket
import ssl
import subprocess
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import trustme

from config import PipelineConfig
from tasks.send.comparison import compare
from tasks.send.s3.upload import findings, run
from tests.bench.data import as_input
from tests.bench.echo import MB, listen, receive_head, serving
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context

_ANSWERS = {b"post": b"<R><UploadId>u</UploadId><ETag>e-1</ETag></R>", b"get": b"<ListBucketResult/>"}


@dataclass
class SinkObject:
    """An object of the sink, as ``HEAD`` returns it."""

    size: int = 0
    sha256: bytes = b""
    etag: bytes = b"e-1"


def sink(ready: Connection, certificate: str | None, etag: bool) -> None:
    """Take every body, answer every request; HEAD tells size, SHA-256 and ETag of what was put. Without a certificate:
    plain HTTP."""
    context, objects = None, dict[bytes, SinkObject]()
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            talk(context.wrap_socket(connection, server_side=True) if context else connection)

    def talk(connection: socket.socket) -> None:
        buffer = memoryview(bytearray(1 << 20))
        with connection:
            while request := receive_head(connection, buffer):
                head, got, left = request
                method, target = head.split(b" ", 2)[:2]
                path, _, query = target.partition(b"?")
                length = got - len(head) - 4 + left
                digest = hashlib.md5(buffer[len(head) + 4 : got])
                while left > 0:
                    count = connection.recv_into(buffer, min(left, len(buffer)))
                    if not count:
                        return
                    if etag:
                        digest.update(buffer[:count])
                    left -= count
                tag = digest.hexdigest().encode() if etag else b"e-1"
                if method == b"put" or query.startswith(b"uploads"):
                    part = b"partnumber=" in query
                    there = (
                        objects.setdefault(path, SinkObject())
                        if part
                        else SinkObject(etag=tag if not query else b"e-1")
                    )
                    there.size += length if method == b"put" else 0
                    if _SHA256 in head:
                        there.sha256 = head.split(_SHA256)[1][:64]
                    objects[path] = there
                connection.sendall(_answer(method, tag, objects.get(path)))

    listen(ready, serve)


_SHA256 = b"\r\nx-amz-meta-sha256: "


def _answer(method: bytes, tag: bytes, there: SinkObject | None) -> bytes:
    if method != b"head":
        body = _ANSWERS.get(method, b"")
        return b"HTTP/1.1 200 OK\r\nETag: %b\r\nContent-Length: %d\r\n\r\n%b" % (tag, len(body), body)
    if there is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    told = (there.etag, there.sha256, there.size)
    return b"HTTP/1.1 200 OK\r\nETag: %b\r\nx-amz-meta-sha256: %b\r\nContent-Length: %d\r\n\r\n" % told


def make(directory: Path, size: int, files: int, sparse: int) -> int:
    """Files with together ``size`` bytes, and a sparse one; the bytes in all."""
    block = os.urandom(4 * MB)
    each = max(1, size // files)
    for number in range(files if size else 0):
        with (directory / f"batch-{number:05}.ndjson").open("wb") as file:
            left = each
            while left > 0:
                left -= file.write(block[: min(left, len(block))])
    if sparse:
        with (directory / "sparse.ndjson").open("wb") as file:
            file.truncate(sparse)
    return sum(path.stat().st_size for path in directory.iterdir())


def curl(directory: Path, url: str, bundle: Path) -> float:
    """Return the seconds of ``curl -T`` for all files in turn over one connection."""
    paths = sorted(directory.iterdir())
    lines = [f'url = "{url}/sluice-demo/"\nupload-file = "{path}"\n' for path in paths]
    started = time.perf_counter()
    subprocess.run(
        ["curl", "--silent", "--fail", "--http1.1", "--cacert", str(bundle), "-H", "Expect:", "--config", "-"],
        input="".join(lines).encode(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - started


def upload(directory: Path, job: Path, url: str, bundle: Path) -> float:
    """Return the seconds of our upload, after the preflight as in a run."""
    store = {
        "bucket": "sluice-demo", "region": "eu-central-1", "endpoint": url, "use_path_style": True,
        "access_key_id": "bench", "secret_access_key": "bench",
    }  # fmt: skip
    send = {"send_as": "s3_upload", "s3": store}
    config = PipelineConfig.model_validate({"services": {"send": send}, "tls": {"ca_cert_path": str(bundle)}})
    given = context(job, "send", config, source=as_input(directory, job))
    if found := list(findings(config)):
        raise SystemExit(f"the sink does not answer: {found[0].reference}")
    started = time.perf_counter()
    run(given, compare(given))
    return time.perf_counter() - started


def digests(directory: Path) -> float:
    """Return the CPU seconds of SHA-256 and MD5 of all files."""
    started = time.process_time()
    for path in directory.iterdir():
        kinds = hashlib.sha256(), hashlib.md5()
        with path.open("rb") as file:
            while data := file.read(256 * 1024):
                for kind in kinds:
                    kind.update(data)
    return time.process_time() - started


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=2000)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--sparse-mb", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--discard", action="store_true", help="the sink does not compute the ETag")
    parser.add_argument("--plain", action="store_true", help="without TLS")
    parser.add_argument("--no-curl", action="store_true", help="only ours, for the memory")


def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as temporary, contextlib.ExitStack() as ended:
        base = Path(temporary)
        ca = trustme.CA()
        bundle, certificate = base / "ca.pem", base / "server.pem"
        ca.cert_pem.write_to_path(str(bundle))
        ca.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        data = base / "import"
        data.mkdir()
        total = make(data, options.mb * MB, options.files, options.sparse_mb * MB) / MB
        certified = None if options.plain else str(certificate)
        port = ended.enter_context(serving(sink, certified, not options.discard))
        url = f"{'http' if options.plain else 'https'}://127.0.0.1:{port}"
        print(f"{total:,.0f} MB in {len([*data.iterdir()]):,} files, {'plain' if options.plain else 'TLS'}")
        for number in range(options.rounds):
            limits = [] if options.no_curl else [curl(data, url, bundle)]
            before = time.process_time()
            ours = upload(data, base / f"job-{number}", url, bundle)
            cpu = time.process_time() - before
            print(f"  s3_upload {total / ours:7,.0f} MB/s, {cpu:.1f} s of CPU", end="")
            if limits:
                limits.append(curl(data, url, bundle))
                limit = total / (sum(limits) / 2)
                print(f", {digests(data):.1f} of them SHA-256 and MD5; ratio {total / ours / limit:.2f} (target 0.7)")
                print(
                    f"  curl -T   {limit:7,.0f} MB/s ({', '.join(f'{total / each:,.0f}' for each in limits)})", end=""
                )
            print()
        if not options.no_curl:
            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            print(f"  curl took {(children.ru_utime + children.ru_stime) / options.rounds / 2:.1f} s of CPU each time")
        print(f"  peak memory {peak_bytes() / 1e6:,.0f} MB (target 300)")
