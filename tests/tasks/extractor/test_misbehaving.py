"""The client against a server that misbehaves on purpose, over real sockets (documents 1 and 3)."""

from __future__ import annotations

import json
import resource
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from config import PipelineConfig
from tasks.extractor.client import service_client
from tasks.extractor.extraction import run
from tasks.shared.errors import StalledError
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tests.peers import job
from tests.peers.extraction import BUNDLE, JOB, PatientExtraction, RecordingStore, SimulatedClock, configuration, crtdl
from tests.peers.server import Raw, Reply, SeenRequest, loopback

FILE = BUNDLE * 400
MANIFEST = b'{"output": [{"type": "NDJSON Bundle", "url": "/out/b1.ndjson"}], "error": []}'


def scripted(*file: Reply | Raw, status: Sequence[Raw] = ()) -> PatientExtraction:
    """Return a server of one file; it first answers with the given ones, of which that for the file repeats."""
    first = list(status)

    def override(seen: SeenRequest) -> Reply | Raw | None:
        if first and "__status" in seen.target:
            return first.pop(0)
        return file[0] if file and seen.method == "GET" and "/out/" in seen.target else None

    return PatientExtraction({"b1.ndjson": FILE}, polls=0, override=override)


def extraction_context(tmp_path: Path, config: PipelineConfig) -> StepContext:
    (tmp_path / "crtdl.json").write_text(json.dumps(crtdl()))
    return job.context(tmp_path, "extractor", config, crtdl=tmp_path / "crtdl.json", handle=RecordingStore())


def extract(tmp_path: Path, url: str, **extractor: Any) -> tuple[StepReport, bytes]:
    context = extraction_context(tmp_path, configuration(url, **extractor))
    clock = SimulatedClock()
    result = run(context, client=service_client, clock=clock, sleep=clock.sleep)
    return result, (tmp_path / "import" / "b1.ndjson").read_bytes()


def whole(body: bytes, status: str = "200 OK", length: int | None = None, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n{more}\r\n"
    return head.encode() + body


@pytest.mark.parametrize("then", ["reset", "close"])
def test_a_reset_in_the_middle_of_a_status_body_is_swallowed(tmp_path: Path, then: str) -> None:
    half = whole(MANIFEST)[:-20]
    with loopback(scripted(status=[Raw(half, then)] * 2)) as server:
        result, content = extract(tmp_path, server.url)
    assert content == FILE
    assert result.lines_out == 400


@pytest.mark.slow
def test_a_status_that_is_silent_is_asked_again(tmp_path: Path) -> None:
    with loopback(scripted(status=[Raw(b"", "stall")])) as server:
        _, content = extract(tmp_path, server.url, request_timeout="1500ms")
    assert content == FILE


@pytest.mark.slow
@pytest.mark.parametrize("arrived", [0, 1, len(BUNDLE), 5000, len(FILE) - 1])
def test_a_stall_at_any_byte_of_a_file_ends_it_and_is_not_retried(tmp_path: Path, arrived: int) -> None:
    script = scripted(Raw(whole(FILE)[: len(whole(FILE)) - len(FILE) + arrived], "stall"))
    with loopback(script) as server, pytest.raises(StalledError) as caught:
        extract(tmp_path, server.url, download_stall_timeout="1s")
    assert caught.value.operation == "download"
    assert script.count("GET", "/out/") == 1
    assert list((tmp_path / "import").iterdir()) == []


@pytest.mark.campaign
def test_ten_thousand_files_come_down(tmp_path: Path) -> None:
    files = {f"b{number}.ndjson": BUNDLE for number in range(10_000)}
    with loopback(PatientExtraction(files, polls=0)) as server:
        result, _ = extract(tmp_path, server.url, file_ready_retries=0)
    assert (result.files, result.lines_out) == (10_000, 10_000)


@pytest.mark.campaign
def test_three_gigabytes_need_no_more_memory_than_little(tmp_path: Path) -> None:
    piece = BUNDLE * 20_000
    count = 3_000_000_000 // len(piece)

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                asked = sock.recv(65536)
                if b"$extract-data" in asked:
                    sock.sendall(
                        whole(
                            b"", "202 Accepted", more=f"Content-Location: /fhir/__status/{JOB}\r\nConnection: close\r\n"
                        )
                    )
                elif b"__status" in asked:
                    sock.sendall(whole(MANIFEST, more="Content-Type: application/json\r\nConnection: close\r\n"))
                elif b"/out/" in asked:
                    sock.sendall(whole(b"", length=count * len(piece), more="Connection: close\r\n"))
                    for _ in range(count):
                        sock.sendall(piece)
                else:
                    sock.sendall(whole(b"", "404 Not Found", more="Connection: close\r\n"))

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, args=(listener,), daemon=True)
    thread.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = configuration(f"http://127.0.0.1:{listener.getsockname()[1]}", compression=True, file_ready_retries=0)
    try:
        result = run(extraction_context(tmp_path, config), sleep=lambda _: None)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
    assert result.lines_out == count * 20_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
