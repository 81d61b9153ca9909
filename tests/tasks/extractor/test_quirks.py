"""Harmless quirks of deployed extraction servers and proxies (document 3 §2): no error, no warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tasks.extractor.client import ExtractionClient
from tests.peers.client import client
from tests.peers.extraction import OTHER_JOB, extraction_server
from tests.peers.lies import Lie
from tests.peers.server import Raw, Reply
from tests.tasks.extractor.test_liar import BROKEN, FILE, Liar, Told, about, extract, first, of_b1, with_


def with_quirk(path: str, tell: Callable[[Told], Any], **reply: Any) -> Liar:
    """Return a server with this quirk in its answers to requests whose path has this in it."""
    return Liar(Lie(tell, None, **reply), lambda seen: path in seen.target)


def complete(tell: Callable[[Told], Any], **reply: Any) -> Liar:
    """Return a server whose manifest has this quirk."""
    return with_quirk("/__status/", lambda told: tell(told) if told.honest.status == 200 else told.honest, **reply)


def file(tell: Callable[[Told], Any], **headers: str) -> Liar:
    """Return a server that gives a file with this quirk."""
    return Liar(Lie(tell, None, headers=headers), of_b1)


def head(told: Told) -> Reply | Raw:
    """No length to HEAD, and the whole file to a range."""
    return Raw(b"HTTP/1.1 200 OK\r\n\r\n") if told.seen.method == "HEAD" else told.honest


def located(told: Told, *, absolute: bool = True, **more: str) -> dict[str, str]:
    path = f"/fhir/__status/{told.job}"
    return {"Content-Location": told.url + path if absolute else path} | more


KICK_OFF = "$extract-data"
QUIRKS: dict[str, Callable[[], Liar]] = {
    "kick-off with 200": lambda: with_quirk(KICK_OFF, lambda told: Reply(200, headers=located(told))),
    "kick-off with 201 and a body": lambda: with_quirk(KICK_OFF, lambda told: Reply(201, b"{}", located(told))),
    "a relative Content-Location": lambda: with_quirk(
        KICK_OFF, lambda told: Reply(202, headers=located(told, absolute=False))
    ),
    "a job id in capitals": lambda: complete(lambda told: about(id=told.job.upper())(told)),
    "202 without a body": lambda: with_quirk(
        "/__status/", lambda told: Reply(202) if told.honest.status == 202 else told.honest
    ),
    "the kick-off URL in request": lambda: complete(with_(request="https://torch.example/fhir/$extract-data")),
    "no request": lambda: complete(lambda told: {"output": told.outputs, "requiresAccessToken": None}),
    "FHIR JSON by its Content-Type": lambda: complete(
        lambda told: told.document, headers={"Content-Type": "application/fhir+json;charset=UTF-8"}
    ),
    "an output without a type": lambda: complete(
        lambda told: told.document | {"output": [{"url": output["url"]} for output in told.outputs]}
    ),
    "Bundle as type": lambda: complete(first(type="Bundle")),
    "no extensions": lambda: complete(with_(extension=[])),
    "a job extension with an id alone": lambda: complete(
        lambda told: told.document | {"extension": [{"url": "torch-job", "valueObject": {"id": told.job}}]}
    ),
    "keys that nobody knows": lambda: complete(with_(deleted=[], link=[{"relation": "self"}])),
    "absolute URLs of files": lambda: complete(
        lambda told: told.document | {"output": [
            output | {"url": told.url + output["url"]} for output in told.outputs]}
    ),
    "HEAD without a length": lambda: with_quirk("/b1.ndjson", head),
    "HEAD that is refused": lambda: with_quirk(
        "/b1.ndjson", lambda told: Reply(405) if told.seen.method == "HEAD" else told.honest
    ),
    "NDJSON as octets": lambda: file(lambda _: FILE, **{"Content-Type": "application/octet-stream"}),
    "NDJSON as text": lambda: file(lambda _: FILE, **{"Content-Type": "text/plain; charset=utf-8"}),
    "NDJSON as JSON": lambda: file(lambda _: FILE, **{"Content-Type": "application/json"}),
    "identity as Content-Encoding": lambda: file(lambda _: FILE, **{"Content-Encoding": "identity"}),
    "a zstd file": lambda: file(lambda _: zstandard.compress(FILE), **{"Content-Type": "application/zstd"}),
    "zstd as Content-Encoding": lambda: file(lambda _: zstandard.compress(FILE), **{"Content-Encoding": "zstd"}),
    "zstd in several frames": lambda: file(
        lambda _: zstandard.compress(FILE[:BROKEN]) + zstandard.compress(FILE[BROKEN:])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUIRKS)
def test_a_quirk_is_no_alarm(name: str, tmp_path: Path) -> None:
    liar = QUIRKS[name]()
    done = extract(tmp_path, liar)
    assert {path.name: path.read_bytes() for path in (tmp_path / "import").iterdir()} == liar.honest
    assert done.warnings == ()
    assert not list((tmp_path / "extraction").glob("failed/*"))


@pytest.mark.parametrize(
    "body",
    [b"\xef\xbb\xbf" + FILE, FILE.replace(b"\n", b"\r\n"), FILE.replace(b"\n", b"\n\n"), FILE[:-1]],
    ids=["a byte order mark", "CR LF", "blank lines", "no last line end"],
)
def test_spellings_of_ndjson_are_no_alarm(body: bytes, tmp_path: Path) -> None:
    done = extract(tmp_path, file(lambda _: body))
    assert (tmp_path / "import" / "b1.ndjson").read_bytes() == body
    assert done.lines_out == 1 + 400 + 20 + 20
    assert done.warnings == ()


@pytest.mark.parametrize(
    "more", [{}, {"ETag": '"v1"'}, {"Content-Range": f"bytes {BROKEN}-{len(FILE) - 1}/*"}], ids=["bare", "tag", "total"]
)
def test_the_rest_of_a_plain_file_is_taken_as_servers_give_it(more: dict[str, str], tmp_path: Path) -> None:
    def rest(told: Told) -> Reply:
        if "range" not in told.seen.headers:
            return Reply(200, FILE, {"ETag": '"v1"', "Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}, cut=BROKEN)
        return Reply(206, FILE[BROKEN:], {"Content-Range": f"bytes {BROKEN}-{len(FILE) - 1}/{len(FILE)}"} | more)

    extract(tmp_path, file(rest))
    assert (tmp_path / "import" / "b1.ndjson").read_bytes() == FILE


def test_a_rest_that_comes_in_two_parts_is_taken(tmp_path: Path) -> None:
    def rest(told: Told) -> Reply:
        start = int(told.seen.headers.get("range", "bytes=0-")[6:-1])
        if not start:
            return Reply(200, FILE, {"ETag": '"v1"'}, cut=BROKEN)
        last = min(start + 20_000, len(FILE)) - 1
        return Reply(206, FILE[start : last + 1], {"Content-Range": f"bytes {start}-{last}/{len(FILE)}"})

    extract(tmp_path, file(rest))
    assert (tmp_path / "import" / "b1.ndjson").read_bytes() == FILE


def test_a_pause_of_a_paused_job_is_no_alarm() -> None:
    liar = Liar(Lie(lambda told: told.honest, None), lambda _: False)
    with extraction_server(liar.server), client("extractor", attempts=1) as http:
        asking = ExtractionClient(http, liar.server.url)
        asking.change(OTHER_JOB, "pause")
        assert asking.change(OTHER_JOB, "pause").status == "PAUSED"
