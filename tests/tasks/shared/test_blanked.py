"""Kept answers hold no credential that was sent (document 3 §1)."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus, urlencode

import pytest
from pydantic import SecretStr

from config import AuthConfig
from tasks.shared.blanked import LEAST, MARK, TOKENS_KEPT, Secrets
from tasks.shared.files.kept_answers import LARGEST, FailedAnswers
from tests.peers.client import client
from tests.peers.server import Reply, SeenRequest, loopback

SECRET = "s3cret/with+signs&\"quotes'<ümlaut>=%20 :end"


def knowing(secret: str = SECRET) -> Secrets:
    secrets = Secrets()
    secrets.text(secret)
    return secrets


ECHOES = {
    "as it is": SECRET.encode(),
    "Latin-1": SECRET.encode("latin-1"),
    "JSON": json.dumps({"a": SECRET}).encode(),
    "JSON in UTF-8": json.dumps({"a": SECRET}, ensure_ascii=False).encode(),
    "JSON in JSON": json.dumps({"diagnostics": json.dumps({"a": SECRET})}).encode(),
    "JSON with slashes escaped": json.dumps(SECRET).replace("/", "\\/").encode(),
    "JSON for HTML": json.dumps(SECRET, ensure_ascii=False)
    .replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode(),
    "a form": urlencode({"client_secret": SECRET}).encode(),
    "a URL": quote(SECRET, safe="").encode(),
    "a path": quote(SECRET).encode(),
    "a URL in small letters": quote_plus(SECRET).replace("%2F", "%2f").replace("%2B", "%2b").lower().encode(),
    "HTML": html.escape(SECRET).encode(),
    "Base64": base64.b64encode(SECRET.encode()),
    "Base64 for URLs": base64.urlsafe_b64encode(SECRET.encode()).rstrip(b"="),
    "Base64 in a form": urlencode({"a": base64.b64encode(SECRET.encode())}).encode(),
}  # fmt: skip


@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_a_secret_is_found_in_every_spelling_and_all_other_bytes_stay(echo: bytes) -> None:
    found = knowing().blanked(b"before \xff\x00 " + echo + b" after")
    assert found.startswith(b"before \xff\x00 ")
    assert found.endswith(b" after")
    assert MARK in found
    assert b"s3cret" not in found
    assert b"mlaut" not in found
    assert base64.b64encode(SECRET.encode())[:20] not in found


def test_what_holds_no_secret_stays_as_it_is() -> None:
    data = bytes(range(256)) * 10
    assert knowing().blanked(data) is data


def test_everything_that_an_auth_block_sends_is_known() -> None:
    secrets = Secrets()
    secrets.auth(AuthConfig(username="lo", password=SecretStr("pw"), api_key=SecretStr("k1")))
    pair = base64.b64encode(b"lo:pw").decode()
    assert secrets.blanked(f"authorization: basic {pair}\n".encode()) == b"authorization: basic [blanked]\n"
    assert secrets.blanked(f'{{"Authorization": "Basic {pair}"}}'.encode()) == b'{"Authorization": "[blanked]"}'
    oauth = AuthConfig(
        oauth_issuer_uri="https://issuer.example", oauth_client_id="a b", oauth_client_secret=SecretStr("x/y z")
    )
    secrets.auth(oauth)
    basic = base64.b64encode(b"a+b:x%2Fy+z")
    assert secrets.blanked(b"client_secret=x%2Fy+z&scope=x") == b"client_secret=[blanked]&scope=x"
    assert secrets.blanked(basic) == MARK


@pytest.mark.parametrize(
    ("echo", "kept"),
    [
        (b"X-API-KEY: k1\r\nHost: x", b"X-API-KEY: [blanked]\r\nHost: x"),
        (b'{"x-api-key": ["k1"], "n": "k1"}', b'{"x-api-key": ["[blanked]"], "n": "k1"}'),
        (b"HTTP_X_API_KEY=k1\n", b"HTTP_X_API_KEY=[blanked]\n"),
        (b"<td>x-api-key</td><td>k1</td>", b"<td>x-api-key</td><td>[blanked]</td>"),
        (b"x-api-key: k123, blank k1", b"x-api-key: k123, blank k1"),
    ],
)
def test_a_short_secret_is_blanked_only_behind_the_name_it_is_sent_under(echo: bytes, kept: bytes) -> None:
    secrets = Secrets()
    secrets.auth(AuthConfig(api_key=SecretStr("k1")))
    assert len("k1") < LEAST
    assert secrets.blanked(echo) == kept


@pytest.mark.slow
def test_a_secret_that_lies_over_the_end_of_a_piece_is_found() -> None:
    secrets = knowing("long-secret-value")
    secrets.auth(AuthConfig(api_key=SecretStr("k1")))
    whole = (b"x" * 3000 + b"long-secret-value" + b"y" * 100 + b"x-api-key: k1 ") * 3
    expected = secrets.blanked(whole)
    for size in (1, 7, 1000, 100_000):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        assert b"".join(secrets.pieces(pieces)) == expected
    assert b"".join(secrets.pieces([])) == b""


def test_tokens_without_end_do_not_fill_the_memory() -> None:
    secrets = Secrets()
    for number in range(TOKENS_KEPT * 3):
        secrets.token(f"token-number-{number:04}")
    assert secrets.blanked(b"token-number-0191") == MARK
    assert secrets.blanked(b"token-number-0001") == b"token-number-0001"
    assert "token" not in repr(secrets)


def test_an_answer_is_blanked_before_it_is_cut(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Cut first, half a secret would stay at the end."""

    def echo(_: SeenRequest) -> Reply:
        return Reply(400, b"x" * (LARGEST - 8) + b"long-secret-value")

    with (
        loopback(echo) as server,
        client(
            auth=AuthConfig(api_key=SecretStr("long-secret-value")), credentials_origin=server.url, attempts=1
        ) as http,
    ):
        body = http.send("GET", server.url, operation="read", accept={400}).body
    failed = FailedAnswers(tmp_path / "step").begin()
    kept = (tmp_path / failed.save_answer(body)).read_bytes()
    assert kept == b"x" * (LARGEST - 8) + MARK[:8]


def test_credentials_of_a_proxy_are_known() -> None:
    from tasks.shared.blanked import SECRETS
    from tasks.shared.http.network import Proxies

    Proxies({"HTTPS_PROXY": "http://jo:p%40ssword@proxy.example:3128"})
    assert SECRETS.blanked(base64.b64encode(b"jo:p@ssword")) == MARK
    assert SECRETS.blanked(b"http://jo:p%40ssword@proxy") == b"http://jo:[blanked]@proxy"
