"""Which Prefect API a command uses, and how a wrong address is reported."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flows.prefect.address import ApiAddress, basic, configured_api, use
from flows.prefect.api import JOB_SECONDS, reach
from tasks.shared.errors import NetworkError, TerminalError
from tests.conftest import Commands
from tests.peers.server import Reply, loopback

PROFILES = """
active = "site"
[profiles.site]
PREFECT_API_URL = "https://profile.example/api/"
PREFECT_API_KEY = "k"
[profiles.other]
PREFECT_API_URL = "https://other.example/api"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles.toml").write_text(PROFILES)
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "url", "authorization"),
    [
        ({}, "https://profile.example/api", "Bearer k"),
        ({"PREFECT_PROFILE": "other"}, "https://other.example/api", None),
        ({"PREFECT_API_URL": "http://env/api"}, "http://env/api", "Bearer k"),
        ({"PREFECT_PROFILE": "none", "PREFECT_API_URL": "http://env/api", "PREFECT_API_AUTH_STRING": "u:p"},
         "http://env/api", basic("u:p")),
        ({"PREFECT_PROFILE": "none"}, None, None),
    ],
    ids=["profile", "other profile", "environment first", "environment only", "nothing"],
)  # fmt: skip
def test_the_api_is_that_of_environment_or_profile(
    home: Path, environment: dict[str, str], url: str | None, authorization: str | None
) -> None:
    found = configured_api({"PREFECT_HOME": str(home)} | environment)
    assert (found and found.url) == url
    assert found is None or dict(found.headers).get("Authorization") == authorization


def test_a_damaged_profile_is_named(home: Path) -> None:
    (home / "profiles.toml").write_text("active =")
    with pytest.raises(TerminalError, match=r"profiles\.toml"):
        configured_api({"PREFECT_HOME": str(home)})


@pytest.mark.parametrize(
    ("reply", "reference"),
    [
        (Reply(200, b"12", {"Content-Type": "application/json"}), None),
        (Reply(200, b"<html>"), "prefect-unreachable"),
        (Reply(404, b"{}"), "prefect-not-an-api"),
        (Reply(503, b""), "prefect-refused"),
    ],
    ids=["a Prefect API", "a page", "another service", "a broken proxy"],
)
def test_an_api_that_is_named_is_checked_before_anything_depends_on_it(reply: Reply, reference: str | None) -> None:
    with loopback([reply]) as server:
        if reference is None:
            reach(ApiAddress(f"{server.url}/api"))
            return
        with pytest.raises(NetworkError) as failed:
            reach(ApiAddress(f"{server.url}/api"))
    assert failed.value.reference == reference
    assert failed.value.exit_code == 3


def test_a_run_waits_for_17_minutes_and_prefect_stays_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    environment: dict[str, str] = {}
    monkeypatch.setattr("flows.prefect.address.os.environ", environment)
    use(ApiAddress("https://prefect.example/api"))
    waits = [2.0**attempt for attempt in range(1, int(environment["PREFECT_CLIENT_MAX_RETRIES"]) + 1)]
    assert 1000 < JOB_SECONDS < 1080
    assert abs(sum(waits) - JOB_SECONDS) < 60
    assert environment["DO_NOT_TRACK"] == "1"
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


def test_an_address_where_nobody_listens_is_an_error_without_its_credentials(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("pipeline: {enabled_steps: [local_import]}\njobs_dir: jobs\n")
    began = time.monotonic()
    ran = Commands(tmp_path, "http://u:secret@127.0.0.1:9/api", in_process=True)("job", "list", "config.yaml")
    assert ran.code == 3
    assert "error[prefect-unreachable]" in ran.err
    assert "secret" not in ran.err
    assert time.monotonic() - began < 15
