"""Time limits cover everything (document 3 §1): a service that drips runs into the same limit as a silent one.

Black boxes over loopback: each service, each part of an exchange that can be made to last. What a download may take is
beside the other tests of ``ServiceClient.stream``.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from config import AuthConfig
from tasks.extractor.client import ExtractionClient
from tasks.shared.errors import SluiceError
from tasks.validation.validation import ValidationBounds
from tests.peers import asking, fhir, flattening, pseudonymization, validation
from tests.peers.asking import is_request
from tests.peers.client import client
from tests.peers.s3 import scripted
from tests.peers.server import Drip, Loopback, Reply, SeenRequest
from tests.peers.transfer import Endpoint

LIMIT = 0.3
"""Seconds; what a service gets for one exchange."""
SHORT = f"{LIMIT * 1000:g}ms"

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/fhir+json\r\n"
LONG = b"Content-Length: 1000000\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"

PACKED = "a packed body that unpacks to nothing"
DRIPS = {
    "the body of the request": Drip(reads=True),
    "a header": Drip(OK + b"X-Long: "),
    "100 Continue": Drip(again=b"HTTP/1.1 100 Continue\r\n\r\n"),
    "103 Early Hints": Drip(again=b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "the body": Drip(OK + LONG, b" "),
    "chunks": Drip(OK + CHUNKED, b"1\r\n \r\n"),
    "what frames a chunk": Drip(OK + CHUNKED + b"1;why="),
    "a trailer": Drip(OK + CHUNKED + b"2\r\n{}\r\n0\r\nX-Long: "),
    PACKED: Drip(OK + b"Content-Encoding: gzip\r\n" + LONG + gzip.compress(b"")[:10], b"\x00\x00\x00\xff\xff"),
    "the body of a refusal": Drip(OK.replace(b"200 OK", b"400 Bad Request") + LONG, b" "),
}


@dataclass(frozen=True)
class Asking:
    """A service, which of its requests is answered so, and what asks it in a directory."""

    serving: Callable[[], Loopback]
    run: Callable[[Path, str], object]
    victim: Callable[[SeenRequest], bool] = lambda seen: seen.method == "POST"
    reference: str = "timeout"
    leaves: tuple[str, ...] = ()
    """What it does not read, and so does not wait for."""


def _poll(_: Path, url: str) -> None:
    with client("extractor", attempts=1, timeout=LIMIT) as http:
        extraction = ExtractionClient(http, url, timeout=LIMIT)
        if not extraction.poll(f"{url}/fhir/__status/x").body.strip():
            raise AssertionError


def _token(_: Path, url: str) -> None:
    auth = AuthConfig(oauth_issuer_uri=url, oauth_client_id="sluice", oauth_client_secret="geheim-4711")
    with client(auth=auth, credentials_origin=url, attempts=1, timeout=LIMIT) as http:
        http.authorize()


def _issuer() -> Loopback:
    return Loopback([Reply(404)])


UNREAD = tuple(name for name in DRIPS if name not in ("the body of the request", "a header", "the body of a refusal")
               and not name.startswith("10"))  # fmt: skip
NO_BODY = ("the body of the request",)
TRANSFER, UPLOAD = partial(asking.transfer, timeout=SHORT), partial(asking.upload, timeout=SHORT)
ASKED = {
    "pseudonymizer": Asking(pseudonymization.FakePseudonymizer, partial(asking.pseudonymizer, timeout=SHORT)),
    "validation": Asking(
        validation.FakeValidation,
        partial(asking.validator, max_concurrent_requests=1, bounds=ValidationBounds(timeout=LIMIT)),
    ),
    "flattening": Asking(  # packed rows are refused by their head
        flattening.FakeFlattening,
        partial(asking.flattener, timeout=SHORT),
        reference="flattening-timeout",
        leaves=(PACKED,),
    ),
    "direct load": Asking(fhir.FakeFhir, partial(asking.load, timeout=SHORT)),
    "transfer: search": Asking(Endpoint, TRANSFER, is_request("GET"), leaves=NO_BODY),
    "transfer: look": Asking(
        Endpoint, TRANSFER, is_request("HEAD"), leaves=(*NO_BODY, *UNREAD, "the body of a refusal")
    ),
    "transfer: upload": Asking(Endpoint, TRANSFER, is_request("PUT", "Binary"), leaves=UNREAD),
    "transfer: commit": Asking(Endpoint, TRANSFER, is_request("PUT", "DocumentReference"), leaves=UNREAD),
    "S3: upload": Asking(scripted, UPLOAD, is_request("PUT")),
    "S3: look": Asking(scripted, UPLOAD, is_request("HEAD"), leaves=(*NO_BODY, *UNREAD, "the body of a refusal")),
    "extraction: poll": Asking(_issuer, _poll, is_request("GET"), leaves=NO_BODY),
    "OAuth: discovery": Asking(_issuer, _token, is_request("GET"), leaves=NO_BODY),
    "OAuth: token": Asking(_issuer, _token),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "drip"),
    [
        pytest.param(asked, drip, id=f"{name}: {what}")
        for name, asked in ASKED.items()
        for what, drip in DRIPS.items()
        if what not in asked.leaves
    ],
)
def test_a_service_that_drips_runs_into_the_limit_of_a_silent_one(asked: Asking, drip: Drip, tmp_path: Path) -> None:
    with asked.serving() as server:
        server.drips = lambda seen: drip if asked.victim(seen) else None
        began = time.monotonic()
        with pytest.raises(SluiceError) as caught:
            asked.run(tmp_path, server.url)
        took = time.monotonic() - began
    assert caught.value.reference == asked.reference
    assert took < LIMIT + 2  # the rest is that of the step


def test_what_is_not_read_is_not_waited_for(tmp_path: Path) -> None:
    with Endpoint() as server:
        server.drips = lambda seen: DRIPS["the body"] if is_request("PUT", "Binary")(seen) else None
        TRANSFER(tmp_path, server.url)
    assert server.moments == ["search", "look", "look again", "search again", "commit", "search again"]
