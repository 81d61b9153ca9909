"""A download, checked, hashed and compressed, beside ``curl | zstd -3``.

    python -m tests.bench download [--mb 200] [--rounds 3]

Where the CPU time of 200 MB goes: 0.15 s httpx reads them (0.08 s with ``http.client``), 0.14 s the check of the lines
(0.11 s of it msgspec, 0.02 s UTF-8), 0.07 s their copy for zstd, 0.02 s the trust store: one after the other in the
thread that reads. zstd takes 0.2 s in a thread of its own, hash and disk 0.02 s. Larger pieces and a thread that reads
ahead made no difference that the machine's noise did not make.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.bench.data import write_files
from tests.bench.measure import MB, Run, in_turn, ratio, run_step, serving


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def copyfile(self, source: Any, _: Any) -> None:
        """Send straight from the page cache."""
        self.connection.sendfile(source)


def _serve(ready: Connection, directory: str) -> None:
    handler = functools.partial(_Files, directory=directory)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    ready.send(server.server_address[1])
    server.serve_forever()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=200, help="size of the file")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        place, runs = Path(name), list[Run]()
        size = write_files(place / "data", given.mb, 1)
        with serving(_serve, str(place / "data")) as port:
            url = f"http://127.0.0.1:{port}/batch-00000.ndjson"

            def ours(number: int) -> float:
                runs.append(run_step("http_import", place / f"job{number}", None, {}, input=url))
                return size / runs[-1].seconds / MB

            def theirs(_: int) -> float:
                began = time.perf_counter()
                command = f"curl -sS {url} | zstd -q -3 -f -o {place}/limit"
                subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)
                return size / (time.perf_counter() - began) / MB

            mine, bare = in_turn(given.rounds, ours, theirs)
    print(f"input              {size / MB:6.0f} MB")
    print(f"curl | zstd -3     {max(bare):6.0f} MB/s")
    print(f"http_import        {max(mine):6.0f} MB/s; ratio {ratio(mine, bare)} (target ≥ 0.8)")
    print(f"peak memory        {max(run.peak for run in runs) / MB:6.0f} MB (target ≤ 300)")
