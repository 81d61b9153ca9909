"""A large result file from the command line: memory does not grow with it (performance.md: at most 300 MB).

The file is made while it is sent; no line of it is like another. The peak is that of the command's own process.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import Commands
from tests.e2e.test_large_data import LIMIT, MB, bundles, measured

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]

RESULT = "/fhir/__status/11111111-1111-4111-8111-111111111111"
ROOM = 500 * MB
"""Free bytes that are more than enough: the file compresses two-hundredfold."""


@contextmanager
def serving(lines: int) -> Iterator[str]:
    """An extraction server with a finished job, whose only file has so many lines; the server's URL."""
    size = lines * (len(next(bundles(1))) + 1)

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self._head(200, size)

        def do_GET(self) -> None:
            if self.path == RESULT:
                manifest = {"output": [{"type": "NDJSON Bundle", "url": "/out/large.ndjson"}], "error": []}
                body = json.dumps(manifest).encode()
                self._head(200, len(body))
                self.wfile.write(body)
            elif self.path == "/out/large.ndjson":
                self._head(200, size)
                for line in bundles(lines):
                    self.wfile.write(line + b"\n")
            else:
                self._head(404, 0)

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("size", [30, 3000])
def test_an_extraction_takes_no_more_memory_for_a_file_of_3_gb(sluice: Commands, tmp_path: Path, size: int) -> None:
    if shutil.disk_usage(tmp_path).free < ROOM:
        pytest.skip(f"less than {ROOM // MB} MB of free disk space")
    lines = size * MB // (len(next(bundles(1))) + 1)
    with serving(lines) as url:
        (tmp_path / "config.yaml").write_text(
            f'services: {{extractor: {{base_url: "{url}"}}}}\n'
            "pipeline: {enabled_steps: [extractor]}\njobs_dir: jobs\n"
        )
        ran = measured(sluice, "pipeline", "start", "config.yaml", f"{url}{RESULT}", "--json")
    assert ran.code == 0, ran.err
    (step,) = json.loads(ran.out)["steps"]
    print(
        f"extraction of one file of {step['bytes_in'] / MB:.0f} MB, stored in {step['bytes_out'] / MB:.0f} MB: "
        f"peak {ran.peak:.0f} MB (limit {LIMIT}), whole command {ran.seconds:.1f} s"
    )
    assert step["resources_out"] == lines * 101
    assert ran.peak <= LIMIT
