"""The client against a server that misbehaves on purpose, over real sockets (documents 1 and 3)."""

from __future__ import annotations

import json
import resource
import socket
import threading
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
from tests.peers.extraction import BUNDLE, JOB, JSON, RecordingStore, SimulatedClock, configuration, crtdl
from tests.peers.server import Raw, Reply, SeenRequest, loopback

FILE = BUNDLE * 400


class ScriptedServer:
    """A server whose status answers and file answers come from lists, the last of which repeats."""

    def __init__(self, *, status: list[Reply | Raw] | None = None, file: list[Reply | Raw] | None = None) -> None:
        self.status = status or [Reply(200, manifest(), JSON)]
        self.file = file or [Reply(200, FILE)]
        self.url = ""
        self.gets: list[SeenRequest] = []

    def __call__(self, seen: SeenRequest) -> Reply | Raw:
        if seen.target.endswith("$extract-data"):
            return Reply(202, headers={"Content-Location": f"/fhir/__status/{JOB}"})
        if "__status" in seen.target:
            return self.status.pop(0) if len(self.status) > 1 else self.status[0]
        if "/fhir/Task" in seen.target:
            return Reply(404)
        if seen.method == "HEAD":
            return Reply(200, FILE)
        self.gets.append(seen)
        return self.file.pop(0) if len(self.file) > 1 else self.file[0]


def manifest() -> bytes:
    return json.dumps({"output": [{"type": "NDJSON Bundle", "url": "/out/b1.ndjson"}], "error": []}).encode()


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
    half = whole(manifest())[:-20]
    with loopback(ScriptedServer(status=[Raw(half, then), Raw(half, then), Reply(200, manifest(), JSON)])) as server:
        result, content = extract(tmp_path, server.url)
    assert content == FILE
    assert result.lines_out == 400


@pytest.mark.slow
def test_a_status_that_is_silent_is_asked_again(tmp_path: Path) -> None:
    with loopback(ScriptedServer(status=[Raw(b"", "stall"), Reply(200, manifest(), JSON)])) as server:
        _, content = extract(tmp_path, server.url, request_timeout="1500ms")
    assert content == FILE


@pytest.mark.slow
@pytest.mark.parametrize("arrived", [0, 1, len(BUNDLE), 5000, len(FILE) - 1])
def test_a_stall_at_any_byte_of_a_file_ends_it_and_is_not_retried(tmp_path: Path, arrived: int) -> None:
    script = ScriptedServer(file=[Raw(whole(FILE)[: len(whole(FILE)) - len(FILE) + arrived], "stall")])
    with loopback(script) as server, pytest.raises(StalledError) as caught:
        extract(tmp_path, server.url, download_stall_timeout="1s")
    assert caught.value.operation == "download"
    assert len(script.gets) == 1
    assert list((tmp_path / "import").iterdir()) == []


@pytest.mark.campaign
def test_ten_thousand_files_come_down(tmp_path: Path) -> None:
    outputs = [{"type": "NDJSON Bundle", "url": f"/out/{number}/b{number % 100}.ndjson"} for number in range(10_000)]
    script = ScriptedServer(
        status=[Reply(200, json.dumps({"output": outputs, "error": []}).encode(), JSON)], file=[Reply(200, BUNDLE)]
    )
    with loopback(script) as server:
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
                    sock.sendall(whole(manifest(), more="Content-Type: application/json\r\nConnection: close\r\n"))
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
