"""The downloader: document 1 "Errors" and step 7 of the extraction, document 3 §2 and §8."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from config import CompressionConfig, RetryConfig
from tasks.shared.errors import (
    DataError,
    NetworkError,
    ServiceBusyError,
    ServiceError,
    SluiceError,
    StalledError,
    Stopped,
    StorageError,
)
from tasks.shared.files.intake import FileFacts
from tasks.shared.http.download import Downloader
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop
from tests.peers.client import Sleeps, client
from tests.peers.server import Loopback, Raw, Reply, SeenRequest, loopback

LINES = b"".join(b'{"resourceType":"Patient","id":"p%d"}\n' % number for number in range(5000))
ETAG = {"ETag": '"v1"', "Content-Type": "application/fhir+ndjson"}
Answer = Reply | Raw


class DownloadSetting:
    """One downloader against one scripted server."""

    def __init__(
        self, directory: Path, *, enabled: bool = False, attempts: int = 3, stall: float = 5.0, stop: Stop | None = None
    ) -> None:
        self.directory = directory / "import"
        self.sleeps = Sleeps()
        self.progress = Meter()
        self.stop = stop or Stop()
        self.client = client("http_import", stop=self.stop)
        self.downloader = Downloader(
            self.client,
            retry=RetryConfig(max_attempts=attempts, initial_backoff_ms=1000, max_backoff_ms=3000),
            compression=CompressionConfig(enabled=enabled),
            stop=self.stop,
            meter=self.progress,
            stall_timeout=stall,
            sleep=self.sleeps,
        )

    def fetch(self, server: Loopback, path: str = "/x.ndjson?token=CANARY", *, allow_empty: bool = True) -> FileFacts:
        return self.downloader.fetch(server.url + path, self.directory, "x", allow_empty=allow_empty)

    def fails(self, server: Loopback, kind: type[SluiceError], *, allow_empty: bool = True) -> SluiceError:
        with pytest.raises(kind) as caught:
            self.fetch(server, allow_empty=allow_empty)
        assert "CANARY" not in caught.value.render()
        assert self.names == []
        return caught.value

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir()) if self.directory.exists() else []


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[DownloadSetting]:
    setting = DownloadSetting(tmp_path)
    yield setting
    setting.client.close()


@pytest.fixture
def compressing(tmp_path: Path) -> Iterator[DownloadSetting]:
    setting = DownloadSetting(tmp_path, enabled=True)
    yield setting
    setting.client.close()


def head(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode()


def broken_after(count: int, *headers: str, then: str = "close") -> Raw:
    """Return a 200 that breaks off after ``count`` bytes of the body."""
    return Raw(head("200 OK", f"Content-Length: {len(LINES)}", *headers) + LINES[:count], then)


def rest_from(offset: int, *, total: int | str = len(LINES), start: int | None = None) -> Reply:
    begin = offset if start is None else start
    return Reply(206, LINES[offset:], {"Content-Range": f"bytes {begin}-{len(LINES) - 1}/{total}"})


# What arrives


def test_a_file_is_stored_plain_with_its_counts_and_hash(plain: DownloadSetting) -> None:
    with loopback([Reply(200, LINES, ETAG)]) as server:
        facts = plain.fetch(server)
    assert plain.names == ["x.ndjson"]
    assert (plain.directory / "x.ndjson").read_bytes() == LINES
    assert facts.lines == 5000
    assert facts.content_bytes == facts.stored_bytes == facts.bytes_in == len(LINES)
    assert facts.sha256 == hashlib.sha256(LINES).hexdigest()
    assert facts.source == f"{server.url}/x.ndjson"
    snapshot = plain.progress.snapshot()
    assert (snapshot.files, snapshot.bytes, snapshot.resources) == (1, len(LINES), 5000)


def test_a_file_is_compressed_when_compression_is_enabled(compressing: DownloadSetting) -> None:
    with loopback([Reply(200, LINES)]) as server:
        facts = compressing.fetch(server)
    assert compressing.names == ["x.ndjson.zst"]
    stored = (compressing.directory / "x.ndjson.zst").read_bytes()
    assert zstandard.decompress(stored, max_output_size=len(LINES)) == LINES
    assert facts.sha256 == hashlib.sha256(stored).hexdigest()
    assert facts.stored_bytes == len(stored) < facts.bytes_in == len(LINES)


def test_the_request_asks_for_ndjson_without_an_encoding(plain: DownloadSetting) -> None:
    with loopback([Reply(200, LINES)]) as server:
        plain.fetch(server)
    assert server.seen[0].method == "GET"
    assert server.seen[0].headers["accept"] == "application/fhir+ndjson"
    assert server.seen[0].headers["accept-encoding"] == "identity"
    assert "range" not in server.seen[0].headers


@pytest.mark.slow
def test_a_zst_answer_is_stored_as_it_came_when_compression_is_enabled(compressing: DownloadSetting) -> None:
    stored = zstandard.ZstdCompressor(level=17).compress(LINES)
    with loopback([Reply(200, stored)]) as server:
        facts = compressing.fetch(server)
    assert (compressing.directory / "x.ndjson.zst").read_bytes() == stored
    assert (facts.lines, facts.content_bytes, facts.bytes_in) == (5000, len(LINES), len(stored))


def test_a_zst_answer_is_decompressed_when_compression_is_disabled(plain: DownloadSetting) -> None:
    stored = zstandard.compress(LINES)
    with loopback([Reply(200, stored)]) as server:
        facts = plain.fetch(server)
    assert (plain.directory / "x.ndjson").read_bytes() == LINES
    assert (facts.lines, facts.bytes_in) == (5000, len(stored))


def test_an_answer_without_a_length_is_taken_until_it_ends(plain: DownloadSetting) -> None:
    with loopback([Raw(head("200 OK", "Connection: close") + LINES)]) as server:
        assert plain.fetch(server).lines == 5000


def test_a_chunked_answer_is_taken(compressing: DownloadSetting) -> None:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (LINES[:1000], LINES[1000:])) + b"0\r\n\r\n"
    with loopback([Raw(head("200 OK", "Transfer-Encoding: chunked") + body)]) as server:
        assert compressing.fetch(server).lines == 5000


def test_the_size_is_announced_when_the_server_tells_it(plain: DownloadSetting) -> None:
    sizes: list[int] = []
    with loopback([Reply(200, LINES)]) as server:
        plain.downloader.fetch(server.url + "/x", plain.directory, "x", on_size=sizes.append)
    assert sizes == [len(LINES)]


# Retry and resume


@pytest.mark.parametrize("validator", ['ETag: "v1"', "Last-Modified: Sat, 21 Nov 2026 10:00:00 GMT"])
@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_broken_transfer_goes_on_with_range_and_if_range(plain: DownloadSetting, validator: str, then: str) -> None:
    def answer(seen: SeenRequest) -> Answer:
        if "range" not in seen.headers:
            return broken_after(50_000, validator, then=then)
        return rest_from(int(seen.headers["range"].removeprefix("bytes=").removesuffix("-")))

    with loopback(answer) as server:
        facts = plain.fetch(server)
    assert (plain.directory / "x.ndjson").read_bytes() == LINES
    assert facts.lines == 5000
    assert facts.sha256 == hashlib.sha256(LINES).hexdigest()
    if then == "close":  # a reset may drop what was still on its way
        assert [seen.headers.get("range") for seen in server.seen] == [None, "bytes=50000-"]
    assert server.seen[-1].headers.get("if-range", validator.partition(": ")[2]) == validator.partition(": ")[2]
    assert plain.client.meter.retries == len(server.seen) - 1
    assert plain.progress.snapshot().bytes == len(LINES)


@pytest.mark.parametrize("headers", [[], ['ETag: W/"v1"']])
def test_without_a_strong_validator_a_broken_transfer_starts_over(plain: DownloadSetting, headers: list[str]) -> None:
    with loopback([broken_after(50_000, *headers), Reply(200, LINES)]) as server:
        facts = plain.fetch(server)
    assert [seen.headers.get("range") for seen in server.seen] == [None, None]
    assert (plain.directory / "x.ndjson").read_bytes() == LINES
    assert facts.bytes_in == len(LINES)
    assert plain.progress.snapshot().bytes == len(LINES)


def test_a_file_stored_compressed_starts_over(compressing: DownloadSetting) -> None:
    with loopback([broken_after(50_000, 'ETag: "v1"'), Reply(200, LINES, ETAG)]) as server:
        assert compressing.fetch(server).lines == 5000
    assert [seen.headers.get("range") for seen in server.seen] == [None, None]


def test_a_decompressed_zst_answer_starts_over(plain: DownloadSetting) -> None:
    stored = zstandard.compress(LINES)
    first = Raw(head("200 OK", f"Content-Length: {len(stored)}", 'ETag: "v1"') + stored[:-10])
    with loopback([first, Reply(200, stored, ETAG)]) as server:
        assert plain.fetch(server).lines == 5000
    assert [seen.headers.get("range") for seen in server.seen] == [None, None]


def test_a_whole_answer_to_a_range_request_replaces_what_was_there(plain: DownloadSetting) -> None:
    changed = LINES.replace(b"Patient", b"Person")
    with loopback([broken_after(50_000, 'ETag: "v1"'), Reply(200, changed, {"ETag": '"v2"'})]) as server:
        facts = plain.fetch(server)
    assert server.seen[1].headers["if-range"] == '"v1"'
    assert (plain.directory / "x.ndjson").read_bytes() == changed
    assert facts.sha256 == hashlib.sha256(changed).hexdigest()


@pytest.mark.parametrize(
    "wrong",
    [
        rest_from(50_000, start=0),
        rest_from(50_000, total=len(LINES) + 1),
        Reply(206, LINES[50_000:]),
        Reply(206, LINES[50_000:], {"Content-Range": "lines 1-2/3"}),
        Reply(206, LINES[50_000:], {"Content-Range": f"bytes 50000-{len(LINES)}/{len(LINES)}"}),
        Reply(206, b"", {"Content-Range": f"bytes 50000-49999/{len(LINES)}"}),
        Reply(206, LINES[50_000:], {"Content-Range": f"bytes 50000-{len(LINES) - 1}/{len(LINES)}", "ETag": '"v2"'}),
        Reply(416, b"", {"Content-Range": f"bytes */{len(LINES)}"}),
    ],
)
def test_a_part_that_does_not_fit_is_refused_and_the_whole_is_taken(plain: DownloadSetting, wrong: Reply) -> None:
    with loopback([broken_after(50_000, 'ETag: "v1"'), wrong, Reply(200, LINES, ETAG)]) as server:
        facts = plain.fetch(server)
    assert [seen.headers.get("range") for seen in server.seen] == [None, "bytes=50000-", None]
    assert (plain.directory / "x.ndjson").read_bytes() == LINES
    assert facts.lines == 5000


def test_a_part_of_unknown_total_is_taken(plain: DownloadSetting) -> None:
    with loopback([broken_after(50_000, 'ETag: "v1"'), rest_from(50_000, total="*")]) as server:
        assert plain.fetch(server).lines == 5000


def test_a_part_of_a_file_whose_size_nobody_says_is_refused(plain: DownloadSetting) -> None:
    cut = Raw(head("200 OK", "Transfer-Encoding: chunked", 'ETag: "v1"') + b"c350\r\n" + LINES[:50_000] + b"\r\n")
    with loopback([cut, rest_from(50_000, total="*"), Reply(200, LINES, ETAG)]) as server:
        plain.fetch(server)
    assert [seen.headers.get("range") for seen in server.seen] == [None, "bytes=50000-", None]
    assert (plain.directory / "x.ndjson").read_bytes() == LINES


def test_a_part_that_says_the_size_is_compared_with_it(plain: DownloadSetting) -> None:
    cut = Raw(head("200 OK", "Transfer-Encoding: chunked", 'ETag: "v1"') + b"c350\r\n" + LINES[:50_000] + b"\r\n")
    short = Reply(206, LINES[50_000:60_000], {"Content-Range": f"bytes 50000-59999/{len(LINES)}"})
    with loopback([cut, short, rest_from(60_000)]) as server:
        plain.fetch(server)
    assert [seen.headers.get("range") for seen in server.seen] == [None, "bytes=50000-", "bytes=60000-"]
    assert (plain.directory / "x.ndjson").read_bytes() == LINES


def test_attempts_are_limited_and_waits_double_up_to_the_maximum(plain: DownloadSetting) -> None:
    with loopback([Reply(503)]) as server:
        error = plain.fails(server, ServiceBusyError)
    assert error.status == 503
    assert len(server.seen) == 3
    assert plain.sleeps == [1.0, 2.0]


def test_each_request_of_a_repeated_download_counts_as_a_retry(plain: DownloadSetting) -> None:
    moved = Reply(302, b"", {"Location": "/y.ndjson"})
    with loopback([moved, Reply(503), moved, Reply(200, LINES)]) as server:
        plain.fetch(server)
    assert [seen.target.partition("?")[0] for seen in server.seen] == ["/x.ndjson", "/y.ndjson"] * 2
    assert plain.client.meter.retries == 2


def test_retry_after_is_honoured(plain: DownloadSetting) -> None:
    with loopback([Reply(503, headers={"Retry-After": "7"}), Reply(200, LINES)]) as server:
        plain.fetch(server)
    assert plain.sleeps == [7.0]


def test_the_retry_budget_is_full_again_when_bytes_arrived(plain: DownloadSetting) -> None:
    step = len(LINES) // 8

    def answer(seen: SeenRequest) -> Answer:
        if "range" not in seen.headers:
            return broken_after(step, 'ETag: "v1"')
        start = int(seen.headers["range"].removeprefix("bytes=").removesuffix("-"))
        content_range = f"Content-Range: bytes {start}-{len(LINES) - 1}/{len(LINES)}"
        length = f"Content-Length: {len(LINES) - start}"
        return Raw(head("206 Partial Content", content_range, length) + LINES[start : start + step])

    with loopback(answer) as server:
        assert plain.fetch(server).lines == 5000
    assert len(server.seen) > 8
    assert set(plain.sleeps) == {1.0}


def test_breaking_off_at_the_same_byte_again_and_again_ends(compressing: DownloadSetting) -> None:
    with loopback([broken_after(50_000)]) as server:
        error = compressing.fails(server, NetworkError)
    assert error.transient
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_another_4xx_is_not_retried(plain: DownloadSetting, status: int) -> None:
    with loopback([Reply(status, b"CANARY")]) as server:
        assert plain.fails(server, ServiceError).status == status
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [202, 204, 206])
def test_a_success_that_is_no_200_is_refused(plain: DownloadSetting, status: int) -> None:
    with loopback([Reply(status, b"")]) as server:
        assert plain.fails(server, ServiceError).status == status


@pytest.mark.slow
def test_a_stall_is_an_error_of_its_own_and_not_retried(tmp_path: Path) -> None:
    setting = DownloadSetting(tmp_path, stall=1.0)
    with setting.client, loopback([broken_after(50_000, 'ETag: "v1"', then="stall")]) as server:
        setting.fails(server, StalledError)
        assert len(server.seen) == 1
    assert setting.sleeps == []


def test_a_stall_timeout_of_0_selects_the_default(tmp_path: Path) -> None:
    setting = DownloadSetting(tmp_path, stall=0)
    setting.client.close()
    assert setting.downloader._stall_timeout == 60.0


class FillsTheDisk(Stop):
    """Asked for every chunk; puts a full device under the part file as soon as there is one."""

    def check(self) -> None:
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).endswith(".ndjson.part"):
                    full = os.open("/dev/full", os.O_WRONLY)
                    os.dup2(full, int(link.name))
                    os.close(full)


@pytest.mark.skipif(not Path("/dev/full").exists() or not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_a_full_disk_is_not_retried(tmp_path: Path) -> None:
    setting = DownloadSetting(tmp_path, stop=FillsTheDisk())
    with setting.client, loopback([Reply(200, LINES * 20)]) as server:
        assert setting.fails(server, StorageError).reference == "disk-full"
        assert len(server.seen) == 1


def test_more_or_fewer_bytes_than_announced_never_make_a_file(plain: DownloadSetting) -> None:
    with loopback([Raw(head("200 OK", f"Content-Length: {len(LINES) + 10}") + LINES)]) as server:
        assert plain.fails(server, NetworkError).transient


# What is not NDJSON


@pytest.mark.parametrize("fixture", ["plain", "compressing"])
def test_a_login_page_answered_with_200_is_found_on_the_first_line(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    setting: DownloadSetting = request.getfixturevalue(fixture)
    page = head("200 OK", "Content-Type: text/html", "Content-Length: 90000000") + b"<!DOCTYPE html><html>CANARY"
    with loopback([Raw(page, "stall")]) as server:  # if it waited for more, it would stall
        error = setting.fails(server, DataError)
    assert error.reference == "not-json"
    assert error.context == f"{server.url}/x.ndjson:1"
    assert "HTML" in error.message
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("body", "reference"),
    [
        (b'[{"resourceType":"Patient"}]', "not-object"),
        (b'{"resourceType":"Patient"}\n{"CANARY"}\n', "not-json"),
        (b'{"a":"M\xfcller"}\n', "not-utf8"),
        (zstandard.compress(LINES)[:-5], "zst-truncated"),
        (gzip.compress(LINES), "not-json"),
        (b'{"error":"CANARY"}\n', "not-a-resource"),
        (LINES + b'{"resourceType":"CANARY and more"}\n', "not-a-resource"),
    ],
)
def test_bad_data_is_not_retried_and_leaves_nothing(compressing: DownloadSetting, body: bytes, reference: str) -> None:
    with loopback([Reply(200, body)]) as server:
        assert compressing.fails(server, DataError).reference == reference
    assert len(server.seen) == 1


def test_an_encoding_nobody_asked_for_is_refused(plain: DownloadSetting) -> None:
    with loopback([Reply(200, gzip.compress(LINES), {"Content-Encoding": "gzip"})]) as server:
        assert plain.fails(server, ServiceError).reference == "download-encoding"


@pytest.mark.parametrize(
    ("headers", "reference"),
    [
        ({"Content-Encoding": "zstd"}, "download-encoding"),
        ({"Content-Type": "text/html"}, "download-media-type"),
        ({"Content-Type": "Application/FHIR+XML; charset=utf-8"}, "download-media-type"),
    ],
)
def test_headers_that_the_body_contradicts_are_refused(
    plain: DownloadSetting, headers: dict[str, str], reference: str
) -> None:
    with loopback([Reply(200, LINES, headers)]) as server:
        assert plain.fails(server, ServiceError).reference == reference
    assert len(server.seen) == 1


def test_the_type_that_all_lines_must_have_is_compared(plain: DownloadSetting) -> None:
    body = LINES + b'{"resourceType":"OperationOutcome","issue":[{"diagnostics":"CANARY"}]}\n'
    with loopback([Reply(200, body)]) as server:
        plain.downloader.fetch(server.url, plain.directory, "all")
        with pytest.raises(DataError) as caught:
            plain.downloader.fetch(server.url + "/x", plain.directory, "x", kind="Patient")
    assert caught.value.reference == "resource-type-differs"
    assert caught.value.context == f"{server.url}/x:5001"
    assert "CANARY" not in caught.value.render()
    assert plain.names == ["all.ndjson"]


def test_an_empty_answer_is_an_error_where_it_must_not_be_empty(plain: DownloadSetting) -> None:
    with loopback([Reply(200, b"")]) as server:
        assert plain.fails(server, DataError, allow_empty=False).reference == "empty-file"


def test_an_empty_answer_is_an_empty_file_otherwise(compressing: DownloadSetting) -> None:
    with loopback([Reply(200, b"")]) as server:
        assert compressing.fetch(server).lines == 0
    assert compressing.names == ["x.ndjson.zst"]


def test_the_facts_are_recorded_before_the_file_has_its_name(plain: DownloadSetting) -> None:
    recorded: list[FileFacts] = []

    def record(facts: FileFacts) -> None:
        recorded.append(facts)
        assert plain.names == ["x.ndjson.part"]

    with loopback([Reply(200, LINES)]) as server:
        facts = plain.downloader.fetch(server.url + "/x", plain.directory, "x", record=record)
    assert recorded == [facts]


# Stop


def test_a_stop_ends_a_download_that_has_fallen_silent(tmp_path: Path) -> None:
    stop = Stop()
    setting = DownloadSetting(tmp_path, stop=stop, stall=20.0)
    parts = [LINES[:50_000]]

    def answer(_: SeenRequest) -> Answer:
        stop.request("SIGINT")
        return Raw(head("200 OK", f"Content-Length: {len(LINES)}") + parts[0], "stall")

    with setting.client, loopback(answer) as server, pytest.raises(Stopped):
        setting.fetch(server)
    assert setting.names == []


def test_files_are_readable_by_their_owner_only(plain: DownloadSetting) -> None:
    with loopback([Reply(200, LINES)]) as server:
        plain.fetch(server)
    assert (plain.directory / "x.ndjson").stat().st_mode & 0o777 == 0o600
    assert plain.directory.stat().st_mode & 0o777 == 0o700
