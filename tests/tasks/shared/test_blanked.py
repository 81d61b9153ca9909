"""Kept answers hold no credential that was sent."""

from __future__ import annotations

import base64

from pydantic import SecretStr

from config import AuthConfig
from tasks.shared.blanked import MARK, blanked, remember, remember_text
from tasks.shared.files.kept_answers import LARGEST, FailedAnswers
from tasks.shared.http.client import Call
from tests.peers.client import client
from tests.peers.server import Reply, SeenRequest, loopback


def test_secrets_are_replaced_where_they_occur_as_text_and_all_other_bytes_stay() -> None:
    for text in ("s3cret", "s3cret/with more", "abc"):
        remember_text(text)
    assert blanked(b"s3cret, s3cret/with more abc") == b"[blanked], [blanked] abc"


def test_everything_that_an_auth_block_sends_is_known() -> None:
    remember(AuthConfig(username="lo", password=SecretStr("pw-1"), api_key=SecretStr("key-1")))
    pair = base64.b64encode(b"lo:pw-1").decode()
    sent = f'{{"Authorization": "Basic {pair}", "x-api-key": "key-1", "password": "pw-1"}}'
    kept = '{"Authorization": "[blanked]", "x-api-key": "[blanked]", "password": "[blanked]"}'
    assert blanked(sent.encode()) == kept.encode()
    oauth = AuthConfig(
        oauth_issuer_uri="https://issuer.example", oauth_client_id="a b", oauth_client_secret=SecretStr("x/y z")
    )
    remember(oauth)
    assert blanked(b"x/y z, client_secret=x%2Fy+z") == b"[blanked], client_secret=[blanked]"


def test_a_token_is_known_by_its_form() -> None:
    assert blanked(b"authorization: bearer a.b-c, eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.x") == (
        b"authorization: [blanked], [blanked]"
    )


def test_an_answer_is_blanked_before_it_is_cut(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Cut first, half a secret would stay at the end."""

    def echo(_: SeenRequest) -> Reply:
        return Reply(400, b"x" * (LARGEST - 8) + b"long-secret-value")

    with (
        loopback(echo) as server,
        client(auth=AuthConfig(api_key=SecretStr("long-secret-value")), url=server.url, attempts=1) as http,
    ):
        body = http.send(Call("GET", server.url, "read", accept={400})).body
    failed = FailedAnswers(tmp_path / "step").begin()
    kept = (tmp_path / failed.save_answer(body)).read_bytes()
    assert kept == b"x" * (LARGEST - 8) + MARK[:8]


def test_credentials_of_a_proxy_are_known() -> None:
    from tasks.shared.http.network import Proxies

    Proxies({"HTTPS_PROXY": "http://jo:p%40ssword@proxy.example:3128"})
    assert blanked(b"p@ssword") == MARK
