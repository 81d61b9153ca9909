"""Requests that the local Prefect server accepts (4-product.md §6; issue 13, number 1)."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import stat
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from flows.engine.server.proof import make_secret, read_secret
from flows.engine.server.start import EmbeddedServer
from tests.conftest import Commands, seed

SOCKETS = (
    "/events/in",
    "/events/out",
    "/logs/out",
    "/task_runs/subscriptions/scheduled",
    "/work_pools/any/workers/connect",
)
"""Every websocket of Prefect's API; a test compares."""


@pytest.fixture
def key(prefect_api: str) -> dict[str, str]:
    """Return the header that authenticates a request."""
    secret = os.environ["PREFECT_API_AUTH_STRING"]
    return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}


def call_api(method: str, url: str, **more: object) -> httpx.Response:
    return httpx.request(method, url, trust_env=False, timeout=60, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_request_below_api_needs_the_secret(prefect_api: str, key: dict[str, str]) -> None:
    paths = call_api("GET", f"{prefect_api}/openapi.json", headers=key).json()["paths"]
    assert len(paths) > 100
    open_ones = []
    with httpx.Client(trust_env=False, timeout=60) as client:
        for path, methods in paths.items():
            for method in methods:
                answer = client.request(method, prefect_api + path, json={} if method != "get" else None)
                if answer.status_code != 401:
                    open_ones.append((method, path, answer.status_code))
    assert open_ones == []


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/docs", "/%61pi/health", "/api/../api/health", "/api//health"])
def test_no_spelling_of_a_path_goes_round_it(prefect_api: str, path: str) -> None:
    assert call_api("GET", prefect_api.removesuffix("/api") + path).status_code in {401, 404}


@pytest.mark.parametrize(
    "credentials", ["Basic c2x1aWNlOndyb25n", "Basic", "Bearer x", "", "Basic \N{LATIN SMALL LETTER E WITH ACUTE}"]
)
def test_another_secret_is_none(prefect_api: str, credentials: str) -> None:
    answer = call_api("GET", f"{prefect_api}/health", headers={"Authorization": credentials.encode("latin-1")})
    assert answer.status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}"])
@pytest.mark.parametrize("path", ["/api/flows/filter", "/", "/sluice/sign-in", "/sluice/proof"])
def test_a_name_that_was_bound_to_this_machine_by_somebody_else_gets_nothing(
    prefect_api: str, key: dict[str, str], host: str, path: str
) -> None:
    named = host.format(port=urlsplit(prefect_api).port)
    answer = call_api("GET", prefect_api.removesuffix("/api") + path, headers=key | {"Host": named})
    assert answer.status_code == 421
    assert "DOCTYPE" not in answer.text


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1"])
def test_a_page_of_another_origin_reads_and_changes_nothing(prefect_api: str, key: dict[str, str], origin: str) -> None:
    for method, path in (("POST", "/flow_runs/filter"), ("GET", "/health"), ("OPTIONS", "/flow_runs/filter")):
        answer = call_api(method, prefect_api + path, headers=key | {"Origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_its_own_pages_may_ask(prefect_api: str, key: dict[str, str]) -> None:
    for name in ("127.0.0.1", "localhost"):
        own = f"{name}:{urlsplit(prefect_api).port}"
        headers = key | {"Host": own, "Origin": f"http://{own}"}
        assert call_api("POST", f"{prefect_api}/flows/count", headers=headers, json={}).status_code == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
)
def test_a_body_that_is_not_declared_as_json_is_refused(
    prefect_api: str, key: dict[str, str], kind: str | None
) -> None:
    headers = key | ({"Content-Type": kind} if kind else {})
    for body in (b'{"confirm": true}', iter([b'{"confirm": true}'])):
        answer = call_api("POST", f"{prefect_api}/admin/database/clear", headers=headers, content=body)
        assert answer.status_code == 415


@pytest.mark.slow
def test_a_form_on_any_web_page_cannot_wipe_the_record(sluice: Commands, project: Path, prefect_api: str) -> None:
    job = sluice("pipeline", "start", "config.yaml").job
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/json"}, {"Origin": "null"}):
        clear = call_api("POST", f"{prefect_api}/admin/database/clear", content=b'{"confirm":true}', headers=headers)
        assert clear.status_code in {401, 403, 415}
        resume = call_api("POST", f"{prefect_api}/flow_runs/{job}/resume", content=b"{}", headers=headers)
        assert resume.status_code in {401, 403, 415}
    assert sluice.status(job)["state"] == "waiting"


def test_these_are_all_the_websockets_there_are() -> None:
    package = Path(next(iter(find_spec("prefect").submodule_search_locations))) / "server"  # type: ignore[union-attr, arg-type]
    said = [re.findall(r"@router\.websocket\(\s*\"(.*?)\"", path.read_text()) for path in package.rglob("*.py")]
    found = sorted(path.replace("{work_pool_name}", "any") for paths in said for path in paths)
    assert found == sorted("/" + path.split("/", 2)[2] for path in SOCKETS)


@pytest.mark.parametrize("path", SOCKETS)
def test_every_websocket_needs_the_secret_in_its_first_message(prefect_api: str, path: str) -> None:
    url = prefect_api.replace("http://", "ws://") + path
    for first in ({"type": "auth", "token": None}, {"type": "auth", "token": "sluice:wrong"}, {"type": "other"}):
        with connect(url, subprotocols=["prefect"], proxy=None) as opened:  # type: ignore[list-item]
            opened.send(json.dumps(first))
            assert received(opened) == []
    try:
        with connect(url, proxy=None) as opened:
            assert received(opened) == []
    except InvalidStatus:
        pass  # refused before it was opened


def received(opened: ClientConnection) -> list[str | bytes]:
    """Return the bytes received until the other side closed."""
    try:
        return list(opened)
    except ConnectionClosed:
        return []


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize("foreign", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}])
def test_no_websocket_is_opened_by_a_page_of_another_origin(
    prefect_api: str, path: str, foreign: dict[str, str]
) -> None:
    url = prefect_api.replace("http://", "ws://") + path
    host, origin = foreign.get("Host"), foreign.get("Origin")
    address = urlsplit(prefect_api)
    named = url.replace(address.netloc, f"{host}:{address.port}") if host else url
    with socket.create_connection(("127.0.0.1", address.port)) as connection, pytest.raises(InvalidStatus) as refused:
        connect(named, subprotocols=["prefect"], origin=origin, sock=connection, proxy=None)  # type: ignore[list-item, arg-type]
    assert refused.value.response.status_code == 403


def test_the_first_message_with_the_secret_opens_a_websocket(prefect_api: str) -> None:
    url = prefect_api.replace("http://", "ws://") + "/events/out"
    with connect(url, subprotocols=["prefect"], proxy=None) as socket:  # type: ignore[list-item]
        socket.send(json.dumps({"type": "auth", "token": os.environ["PREFECT_API_AUTH_STRING"]}))
        assert json.loads(socket.recv(timeout=30))["type"] == "auth_success"


def test_no_page_of_somebody_else_may_show_the_ui_inside_itself(prefect_api: str, key: dict[str, str]) -> None:
    root = prefect_api.removesuffix("/api")
    for url in (f"{root}/", f"{root}/sluice/sign-in", f"{prefect_api}/health"):
        assert call_api("GET", url, headers=key).headers["x-frame-options"] == "DENY"


def test_the_page_that_signs_in_runs_one_script_and_talks_to_its_own_server_alone(prefect_api: str) -> None:
    page = call_api("GET", prefect_api.removesuffix("/api") + "/sluice/sign-in")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "script-src 'sha256-" in policy
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in page.headers


@pytest.mark.e2e
def test_the_secret_is_in_one_private_file_and_nowhere_else(tmp_path: Path, migrated_database: Path) -> None:
    seed(tmp_path / "jobs", migrated_database)
    home = tmp_path / "jobs/.prefect"
    with EmbeddedServer(tmp_path / "jobs") as server:
        address = server.address()
        secret = (home / "api-secret").read_text()
        assert len(secret) > 40
        assert (home / "api-secret").stat().st_mode & 0o777 == 0o600
        assert home.stat().st_mode & 0o077 == 0 or home.stat().st_uid == os.getuid()
        pid = json.loads((home / "server.json").read_text())["pid"]
        token = base64.b64encode(secret.encode()).decode()
        for place in ("cmdline", "environ"):
            shown = Path(f"/proc/{pid}/{place}").read_bytes()
            assert secret.partition(":")[2].encode() not in shown
            assert token.encode() not in shown
        assert secret.partition(":")[2] not in repr(address)
        settings = call_api("GET", f"{address.url}/admin/settings", headers=dict(address.headers)).text
        assert "auth_string" in settings
        assert secret.partition(":")[2] not in settings
    for path in home.rglob("*"):
        if path.is_file() and path.name != "api-secret":
            assert secret.partition(":")[2].encode() not in path.read_bytes(), path
            assert token.encode() not in path.read_bytes(), path


def test_a_secret_is_kept_and_is_another_for_each_directory(tmp_path: Path) -> None:
    made = [make_secret(tmp_path / name) for name in ("one", "two") if (tmp_path / name).mkdir(mode=0o700) is None]
    assert made[0] != made[1]
    assert [read_secret(tmp_path / name) for name in ("one", "two")] == made
    assert make_secret(tmp_path / "one") != made[0]


@pytest.mark.parametrize("spoiled", ["empty", "another form", "gone"])
def test_a_secret_that_is_missing_or_of_another_form_is_none(tmp_path: Path, spoiled: str) -> None:
    known = make_secret(tmp_path)
    file = tmp_path / "api-secret"
    match spoiled:
        case "gone":
            file.unlink()
        case _:
            file.write_text({"empty": "", "another form": "admin:admin"}[spoiled])
    assert read_secret(tmp_path) is None
    assert make_secret(tmp_path) != known
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
