"""``python -m deployments.server``: your own server with the settings Sluice needs; ``server status`` of others."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from deployments.server import LOGIN, main
from flows.engine.api import PrefectApi
from flows.engine.api_address import ApiAddress
from flows.engine.server.background import slots_doubt
from flows.engine.server.start import LEASES, LEASES_IN_FILES
from tests.conftest import Commands, wait_until

PAGES = ["/v2", "/v2/", "/v2/dashboard", "/v2/runs/flow-run/1"]
BROWSER = {"accept": "text/html"}
ANALYTICS = "amplitude"
"""What the second UI's pages would load."""


@contextmanager
def own_server(
    place: Path, database: Path, *arguments: str, login: str | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield a server with its files in ``place``: its address, and its process."""
    home = place / "home"
    home.mkdir(parents=True)
    shutil.copy(database, home / "prefect.db")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = Commands(place, None).environment | {"PREFECT_HOME": str(home)}
    if login is not None:
        environment[LOGIN] = login
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments.server", "--port", str(port), *arguments], cwd=place, env=environment
    )

    def up() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/api/health").is_success
        except httpx.HTTPError:
            return False

    try:
        wait_until(up, 120)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def own(tmp_path: Path, migrated_database: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with own_server(tmp_path, migrated_database) as served:
        yield served


def no_second_ui(url: str) -> None:
    assert httpx.get(f"{url}/ui-settings").json()["available_uis"] == ["v1"]
    first = httpx.get(url, headers=BROWSER)
    assert first.is_success
    for page in PAGES:
        shown = httpx.get(f"{url}{page}", headers=BROWSER, follow_redirects=True)
        assert "/v2" not in shown.url.path
        assert shown.text == first.text
        assert not httpx.get(f"{url}{page}").is_success, "without being asked for as a page neither"
        assert ANALYTICS not in shown.text


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_own_server_has_one_ui_slots_in_files_and_passes_server_status(
    own: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    url, process = own
    no_second_ui(url)
    settings = httpx.get(f"{url}/api/admin/settings").json()["server"]
    assert settings["concurrency"]["lease_storage"] == LEASES_IN_FILES
    assert settings["services"]["late_runs"]["enabled"]
    commands = Commands(tmp_path, f"{url}/api")
    shown = commands("server", "status")
    assert (shown.code, shown.out, shown.err) == (0, f"Prefect UI: {url}\nAPI: {url}/api\n", "")
    commands.close()
    process.terminate()
    process.wait(30)


@pytest.mark.slow
def test_neither_has_the_server_of_a_jobs_directory(prefect_api: str) -> None:
    no_second_ui(prefect_api.removesuffix("/api"))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(200, json={"server": {"concurrency": {"lease_storage": LEASES_IN_FILES}}}), None),
        (
            httpx.Response(200, json={"server": {"concurrency": {"lease_storage": "prefect.….memory"}}}),
            "warning: this server keeps the slots of deployment limits in memory",
        ),
        (httpx.Response(403), f"warning: this server does not report whether it keeps {LEASES}"),
        (httpx.Response(404), f"warning: this server does not report whether it keeps {LEASES}"),
    ],
    ids=["files", "memory", "not told to everybody", "not known there"],
)
def test_a_server_that_would_forget_who_has_which_slot_is_told(answer: httpx.Response, said: str | None) -> None:
    with PrefectApi(ApiAddress(url="http://127.0.0.1")) as api:
        api.close()
        api._client = httpx.Client(transport=httpx.MockTransport(lambda _: answer), base_url="http://127.0.0.1")
        doubt = slots_doubt(api)
    assert doubt == said or (said is not None and doubt is not None and doubt.startswith(said))


def test_without_a_login_it_listens_on_loopback_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(LOGIN, raising=False)
    assert main(["--host", "0.0.0.0"]) == 2
    assert "error[server-login]" in capsys.readouterr().err
