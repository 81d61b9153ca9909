"""Downloads: streamed, checked, tried again from their beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zstandard

from config import CompressionConfig, RetryConfig
from tasks.shared.errors import DataError, NetworkError, ServiceError, SluiceError, StalledError, Stopped
from tasks.shared.files.intake import Intake
from tasks.shared.http.download import Downloader
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop
from tests.peers.client import client
from tests.peers.server import Raw, Reply, loopback

DATA = b'{"resourceType":"Patient","id":"a"}\n{"resourceType":"Patient","id":"b"}\n'
CUT = Raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(DATA) + DATA[:50])


def fetch(directory: Path, replies: Any, *, compressed: bool = True, stop: Stop | None = None, **more: Any) -> Intake:
    meter = Meter()
    retry = RetryConfig(max_attempts=3, initial_backoff_ms=1)
    with loopback(replies) as server, client(meter=meter, retry=retry) as http:
        downloader = Downloader(http, CompressionConfig(enabled=compressed), most=1 << 20, stall_timeout=0.3)
        try:
            return downloader.fetch(f"{server.url}/out/file?token=secret", directory, "file", stop or Stop(), **more)
        finally:
            directory.with_name("requests").write_text(str(len(server.seen)))
            assert server.seen[0].headers["accept"] == "application/fhir+ndjson"
            assert meter.snapshot().bytes == (0 if not list(directory.glob("*")) else meter.snapshot().bytes)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_stored_as_configured_whatever_it_comes_as(tmp_path: Path, packed: bool, compressed: bool) -> None:
    body = zstandard.compress(DATA) if packed else DATA
    with fetch(tmp_path / "in", [Reply(200, body)], compressed=compressed) as intake:
        intake.part.sync()
        stored = (tmp_path / "in" / f"file.ndjson{'.zst' if compressed else ''}.part").read_bytes()
    if packed and compressed:
        assert stored == body
    assert (zstandard.decompress(stored, 1 << 20) if compressed else stored) == DATA
    assert (intake.check.lines, intake.taken) == (2, len(body))


def test_a_broken_transfer_starts_over(tmp_path: Path) -> None:
    with fetch(tmp_path / "in", [CUT, Reply(reset=True), Reply(200, DATA)]) as intake:
        assert intake.check.lines == 2
    assert (tmp_path / "requests").read_text() == "3"


@pytest.mark.parametrize(
    ("reply", "kind", "requests"),
    [
        (CUT, NetworkError, 3), (Reply(503), SluiceError, 3), (Reply(404), ServiceError, 1),
        (Raw(CUT.data, then="stall"), StalledError, 1),
        (Reply(200, b"<html>login"), DataError, 1), (Reply(200, DATA, {"Content-Type": "text/html"}), ServiceError, 1),
        (Reply(200, DATA, {"Content-Encoding": "br"}), ServiceError, 1), (Reply(200, b""), DataError, 1),
        (Reply(200, zstandard.compress(DATA)[:-5]), DataError, 1),
    ],
)  # fmt: skip
def test_what_is_wrong_is_repeated_only_where_that_helps(
    tmp_path: Path, reply: Any, kind: type[SluiceError], requests: int
) -> None:
    with pytest.raises(kind) as caught:
        fetch(tmp_path / "in", [reply])
    assert (tmp_path / "requests").read_text() == str(requests)
    assert "secret" not in caught.value.render()
    assert not list((tmp_path / "in").glob("*"))


def test_a_redirect_to_a_signed_url_is_followed(tmp_path: Path) -> None:
    with loopback([Reply(200, DATA)]) as store:
        away = Reply(307, headers={"Location": f"{store.url}/signed?permission"})
        with fetch(tmp_path / "in", [away]) as intake:
            assert intake.check.lines == 2


def test_a_stop_ends_it(tmp_path: Path) -> None:
    stop = Stop()
    stop.request("test")
    with pytest.raises(Stopped):
        fetch(tmp_path / "in", [Reply(200, DATA)], stop=stop)
