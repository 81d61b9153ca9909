"""Import speed and its limit, measured in the same run: ``python -m tests.bench import [--mb 200]``.

Prints MB/s (10⁶ bytes of content a second), the best of ``--rounds`` runs taken in turn with the limit, and the ratio
with its target of ``performance.md``. ``--only NAME`` runs one measurement; ``large`` (2 GB in 10 files) and ``many``
(5,000 files) print the peak memory of a process that does nothing else. Not a test: nothing here fails for being slow.

Our side checks every line, hashes the stored file and syncs it to the disk before the rename; the limit does none of it
unless the row says so.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import trustme

from config import PipelineConfig
from tasks.extractor import extraction
from tasks.http_import import importer as http_import
from tasks.local_import import importer as local_import
from tasks.shared.files.data_directory import data_files
from tasks.shared.files.intake import facts_of
from tasks.shared.files.resumable import ResumableWriter
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tests.bench.data import bundles, write_files
from tests.bench.echo import serving
from tests.bench.memory import MIB, in_own_process
from tests.bench.memory import peak as peak_bytes
from tests.peers.job import context
from tests.peers.lines import read_lines

MB = 1e6


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {"": "application/json"}  # the manifest

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Straight from the page cache into the socket; over TLS in 256 KiB pieces."""
        if isinstance(self.connection, ssl.SSLSocket):
            shutil.copyfileobj(source, outputfile, 1 << 18)
        else:
            self.connection.sendfile(source)


def _serve(ready: Connection, directory: str, certificate: str | None) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=directory))
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    ready.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def served(directory: Path, certificate: Path | None = None) -> Iterator[str]:
    """Yield the directory over HTTP, or HTTPS, from a process of its own."""
    with serving(_serve, str(directory), str(certificate) if certificate else None) as port:
        yield f"{'https' if certificate else 'http'}://localhost:{port}"


def _config(work: Path, ca: Path | None = None, extractor: object = None, **compression: object) -> PipelineConfig:
    tls = {"ca_cert_path": str(ca)} if ca else {}
    settings = {"services": {"extractor": extractor or {}}, "compression": compression, "tls": tls}
    return PipelineConfig.model_validate(settings | {"jobs_dir": str(work)})


def _context(work: Path, config: PipelineConfig, source: str) -> StepContext:
    job = work / "job"
    shutil.rmtree(job, ignore_errors=True)
    return context(job, "import", config, position=0, input=source)


def _clock(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _compare(
    name: str, size: int, ours: Callable[[], object], limit: Callable[[], object], target: float, rounds: int
) -> None:
    pairs = [(_clock(limit), _clock(ours)) for _ in range(rounds)]
    theirs, own = (size / MB / min(times) for times in zip(*pairs, strict=True))
    print(
        f"{name:44} {own:6.0f} MB/s   limit {theirs:6.0f}   ratio {own / theirs:4.2f}   target {target:.1f}", flush=True
    )


def _shell(command: str) -> None:
    subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=True)


def downloads(work: Path, megabytes: float, rounds: int) -> None:
    """``http_import`` of one file, beside curl."""
    source = work / "served"
    size = write_files(source, megabytes, 1)
    (path,) = data_files(source)
    authority = trustme.CA()
    ca, server = work / "ca.pem", work / "server.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(server))
    out = work / "limit"

    def ours(url: str, **settings: object) -> Callable[[], object]:
        config = _config(work / "jobs", **settings)  # type: ignore[arg-type]
        return lambda: http_import.run(_context(work / "jobs", config, f"{url}/{path.name}"))

    def compared(name: str, get: str, target: float, step: Callable[[], object]) -> None:
        _compare(name, size, step, lambda: _shell(get), target, rounds)

    packed, plain = f"| zstd -q -3 -f -o {out}", f"-o {out}"
    with served(source) as url:
        get = f"curl -sS {url}/{path.name}"
        compared("download → zst 3, checked, SHA-256", f"{get} {packed}", 0.9, ours(url))
        compared("download kept plain, checked, SHA-256", f"{get} {plain}", 1.0, ours(url, enabled=False))
        kept = f"{get} {plain} && sync {out}"
        compared("the same, beside curl and then sync", kept, 1.0, ours(url, enabled=False))
    with served(source, server) as url:
        get = f"curl -sS --cacert {ca} {url}/{path.name}"
        compared("the same → zst 3 over TLS", f"{get} {packed}", 1.0, ours(url, ca=ca))


def extracted(work: Path, megabytes: float, rounds: int) -> None:
    """The extraction step over a finished result of eleven files, beside curl for one after the other and for four at
    once.

    All of the step counts: manifest, a HEAD for each file, the Task, the record of what is complete.
    """
    source, out = work / "extracted", work / "limit"
    size = write_files(source, megabytes, 11)
    paths = data_files(source)
    status = source / "fhir" / "__status" / "11111111-1111-4111-8111-111111111111"
    status.parent.mkdir(parents=True)
    with served(source) as url:
        output = [{"type": "NDJSON Bundle", "url": f"{url}/{path.name}"} for path in paths]
        status.write_text(json.dumps({"output": output, "error": []}))

        def ours(downloads: int) -> None:
            config = _config(work / "jobs", extractor={"base_url": url, "max_concurrent_downloads": downloads})
            result = extraction.run(_context(work / "jobs", config, f"{url}/fhir/__status/{status.name}"))
            assert (result.files, result.bytes_in) == (len(paths), size)

        def limit(downloads: int) -> None:
            names = " ".join(path.name for path in paths)
            get = f"curl -sS {url}/{{}} | zstd -q -3 -f -o {out}-{{}}"
            _shell(f"printf '%s\\n' {names} | xargs -P {downloads} -I{{}} bash -o pipefail -c '{get}'")

        for name, own, theirs in (
            ("extraction of 11 files, 4 at once", 4, 1),
            ("… one after the other", 1, 1),
            ("… 4 at once, beside 4 curl | zstd at once", 4, 4),
        ):
            _compare(name, size, functools.partial(ours, own), functools.partial(limit, theirs), 0.9, rounds)


def local(work: Path, megabytes: float, rounds: int) -> None:
    """``local_import`` of four files, beside ``zstd -3`` of the same bytes."""
    source = work / "local"
    size = write_files(source, megabytes, 4)
    paths = data_files(source)
    config = _config(work / "jobs")
    _compare(
        "local import → zst 3, checked, SHA-256", size,
        lambda: local_import.run(_context(work / "jobs", config, str(source))),
        lambda: _shell(f"cat {source}/*.ndjson | zstd -q -3 -f -o {work / 'limit'}"), 0.9, rounds,
    )  # fmt: skip
    stored = data_files(work / "jobs" / "job" / "import")
    _compare(
        "read .ndjson.zst line by line", size,
        lambda: sum(len(line) for path in stored for line in read_lines(path)),
        lambda: _shell(f"zstd -q -d -c {' '.join(map(str, stored))} > /dev/null"), 0.8, rounds,
    )  # fmt: skip
    seconds = min(_clock(lambda: [facts_of(path, Stop()) for path in paths]) for _ in range(rounds))
    print(f"{'check and hash alone':44} {size / MB / seconds:6.0f} MB/s", flush=True)


def levels(work: Path, megabytes: float, rounds: int) -> None:
    """The four levels, beside document 1's figures."""
    lines = list(bundles(min(megabytes, 100)))
    size = sum(len(line) + 1 for line in lines)
    for level, speed, ratio in (("fastest", 500, 3), ("default", 200, 4), ("better", 100, 5), ("best", 50, 6)):
        config = _config(work, level=level)

        def write(config: PipelineConfig = config, level: str = level) -> None:
            with ResumableWriter(work / "levels", level, config.compression, every=size + 1) as writer:
                for line in lines:
                    writer.write(line)
                    writer.end_line()
                writer.finish()
                writer.publish()

        seconds = min(_clock(write) for _ in range(rounds))
        stored = (work / "levels" / f"{level}.ndjson.zst").stat().st_size
        print(
            f"level {level:38} {size / MB / seconds:6.0f} MB/s   document 1 ~{speed:3}   "
            f"ratio {size / stored:4.1f}x   document 1 ~{ratio}x"
        )


def _memory(work: Path, megabytes: float, files: int, kind: str) -> None:
    source = work / f"{kind}-source"
    size = write_files(source, megabytes, files)
    started = time.perf_counter()
    done, peak = in_own_process(_import_only, str(source), work / kind)
    seconds = time.perf_counter() - started
    print(f"{f'{files} files, {size / MB:.0f} MB in its own process':44} {size / MB / seconds:6.0f} MB/s with start-up")
    print(f"{f'peak memory, {done} files':44} {peak / MIB:6.0f} MiB   target 300 MB")


def _import_only(pipe: Connection, source: str, work: Path) -> None:
    result = local_import.run(_context(work, _config(work), source))
    pipe.send((result.files, peak_bytes()))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=float, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["download", "extraction", "local", "levels", "large", "many"])
    parser.add_argument("--work", type=Path, help="where to put the data; a temporary directory by default")


def main(options: argparse.Namespace) -> None:
    """Run the measurements."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=options.work) as name:
        work = Path(name)
        every: dict[str, Callable[[], None]] = {
            "download": lambda: downloads(work, options.mb, options.rounds),
            "extraction": lambda: extracted(work, options.mb, options.rounds),
            "local": lambda: local(work, options.mb, options.rounds),
            "levels": lambda: levels(work, options.mb, options.rounds),
            "large": lambda: _memory(work, 2000, 10, "large"),
            "many": lambda: _memory(work, 500, 5000, "many"),
        }
        for name in [options.only] if options.only else ["download", "extraction", "local", "levels"]:
            every[name]()
