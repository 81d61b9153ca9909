"""A Prefect API that the user has set up and that is none, or is not there (4-product.md §6; issue 13, 4, 5 and 16)."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import httpx
import pytest

from flows.engine.api_address import ApiAddress, not_proxied
from tasks.shared.http.network import Proxies
from tests.conftest import Commands, is_apart
from tests.peers.project import allowed
from tests.peers.server import Reply, loopback

JOB = "0f9d4c1e-5b1a-4a53-9b0b-3f4d0f6f7a11"
COMMANDS = {
    "list": ("job", "list", "config.yaml"),
    "status": ("pipeline", "status", "config.yaml", JOB),
    "start": ("pipeline", "start", "config.yaml"),
    "continue": ("pipeline", "continue", "config.yaml", JOB),
    "delete": ("job", "delete", "config.yaml", JOB),
    "prune": ("job", "prune", "config.yaml", "--older-than", "30d"),
}


@pytest.fixture
def sluice_lost(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Commands]:
    """Commands in a directory with data; each test sets the Prefect API."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/Patient.ndjson").write_text('{"resourceType": "Patient", "id": "p"}\n')
    (tmp_path / "config.yaml").write_text(
        "services: {local_import: {dir: data}}\npipeline: {enabled_steps: [local_import]}\njobs_dir: jobs\n"
    )
    commands = Commands(tmp_path, None, in_process=not is_apart(request))
    yield commands
    commands.close()


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_port_is_said_by_every_command_with_its_address_and_exit_code_3(
    sluice_lost: Commands, command: str
) -> None:
    address = f"127.0.0.1:{closed_port()}/api"
    began = time.monotonic()
    ran = sluice_lost(*COMMANDS[command], env={"PREFECT_API_URL": f"http://name:made-up-password@{address}"})
    assert time.monotonic() - began < allowed(15)
    assert ran.code == 3, ran.out + ran.err
    assert "error[prefect-unreachable]: " in ran.err
    assert f"http://{address}" in ran.err
    assert "made-up-password" not in ran.out + ran.err
    assert ran.out == ""
    assert not (sluice_lost.cwd / "jobs" / JOB).exists()


@pytest.mark.parametrize(
    ("reply", "reference"),
    [
        (Reply(200, b"<!DOCTYPE html><title>a portal</title>"), "prefect-not-an-api"),
        (Reply(404, b'{"detail": "Not Found"}'), "prefect-not-an-api"),
        (Reply(302, b""), "prefect-not-an-api"),
        (Reply(200, b'{"resourceType": "Bundle"}'), "prefect-not-an-api"),
        (Reply(401, b'{"exception_message": "Unauthorized"}'), "prefect-credentials"),
        (Reply(403, b""), "prefect-credentials"),
    ],
)
def test_what_is_no_prefect_api_or_lets_nobody_in_is_said_as_that(
    sluice_lost: Commands, reply: Reply, reference: str
) -> None:
    for command in ("list", "start"):
        with loopback([reply]) as there:
            ran = sluice_lost(*COMMANDS[command], env={"PREFECT_API_URL": f"{there.url}/api"})
        assert ran.code == 3, ran.out + ran.err
        assert f"error[{reference}]: " in ran.err
        assert f"{there.url}/api" in ran.err
        assert "a portal" not in ran.err
        assert ran.out == ""


def test_a_profile_that_names_it_is_meant_too(sluice_lost: Commands) -> None:
    home = sluice_lost.cwd / "prefect-home"
    home.mkdir()
    url = f"http://127.0.0.1:{closed_port()}/api"
    (home / "profiles.toml").write_text(f'active = "site"\n[profiles.site]\nPREFECT_API_URL = "{url}"\n')
    ran = sluice_lost(*COMMANDS["list"])
    assert (ran.code, url in ran.err) == (3, True)


@contextmanager
def slow(drip: bytes, every: float) -> Iterator[str]:
    """Takes every connection, and sends a byte now and then."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(near: socket.socket) -> None:
        with near:
            try:
                for byte in drip:
                    near.sendall(bytes([byte]))
                    time.sleep(every)
                while near.recv(1 << 16):
                    pass
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            Thread(target=serve, args=(near,), daemon=True).start()

    Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/api"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@dataclass
class SilentCommand:
    """A command whose API does not answer, and when it was started."""

    url: str
    child: subprocess.Popen[str]
    began: float

    def gives_up(self) -> None:
        assert self.child.stderr is not None
        first = self.child.stderr.readline()
        said = time.monotonic() - self.began
        out, err = self.child.communicate(timeout=60)
        took = time.monotonic() - self.began
        assert first == f"waiting for the Prefect API at {self.url}, 12 s at most\n"
        assert took - said > 8  # it was said at the beginning, not at the end
        assert took < allowed(15)
        assert (self.child.returncode, out) == (3, "")
        assert "error[prefect-unreachable]: " in err


@pytest.mark.e2e
def test_a_silent_socket_is_given_up_within_15_seconds_after_a_line_about_the_wait(sluice_lost: Commands) -> None:
    """And one that sends a byte a second, at the same time."""
    with slow(b"", 1.0) as silent, slow(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 600, 1.0) as dripping:
        asked = []
        for url in (silent, dripping):
            child = sluice_lost.start(*COMMANDS["list"], env={"PREFECT_API_URL": url})
            asked.append(SilentCommand(url, child, time.monotonic()))
        with ThreadPoolExecutor() as pool:
            for given_up in [pool.submit(one.gives_up) for one in asked]:
                given_up.result()


def test_a_proxy_of_the_environment_is_not_asked_for_the_local_server(sluice_alone: Commands, project: Path) -> None:
    """Neither by our own clients nor by Prefect's (document 3 §1)."""
    with loopback([Reply(502)]) as proxy:
        named = {f"{scheme}{end}": proxy.url for scheme in ("HTTP", "HTTPS", "ALL") for end in ("_PROXY",)}
        named |= {name.lower(): url for name, url in named.items()}
        config = project / "config.yaml"
        config.write_text(config.read_text().replace("wait, ", ""))
        ran = sluice_alone("pipeline", "start", "config.yaml", env=named)
        assert ran.code == 0, ran.err
        assert proxy.connections == 0


@pytest.mark.parametrize("names", [("NO_PROXY",), ("no_proxy",), ("NO_PROXY", "no_proxy")])
def test_hosts_that_are_excepted_already_stay_so(names: tuple[str, ...]) -> None:
    """Data of patients must not go through a proxy because the local server is excepted, too."""
    environment = {"HTTP_PROXY": "http://proxy.example:3128"} | dict.fromkeys(names, "hospital.example, 10.0.0.1")
    address = ApiAddress("http://127.0.0.2:4200/api")
    not_proxied(address, environment)
    assert environment["NO_PROXY"] == environment["no_proxy"]
    proxies = Proxies(environment)
    for host in ("pseudonymizer.hospital.example", "10.0.0.1", "127.0.0.1", "127.0.0.2", "localhost"):
        assert proxies.select(httpx.URL(f"http://{host}")) is None, host
    assert proxies.select(httpx.URL("http://elsewhere.example")) is not None
    everything = {"HTTP_PROXY": "http://proxy.example:3128", "NO_PROXY": "*"}
    not_proxied(address, everything)
    assert Proxies(everything).select(httpx.URL("http://elsewhere.example")) is None


def test_for_an_api_elsewhere_the_environment_is_left_as_it_is() -> None:
    environment = {"HTTP_PROXY": "http://proxy.example:3128"}
    not_proxied(ApiAddress("http://prefect.hospital.example/api"), environment)
    assert environment == {"HTTP_PROXY": "http://proxy.example:3128"}


def test_the_local_server_needs_no_secret_said_again_where_its_address_is_named(
    sluice_alone: Commands, project: Path
) -> None:
    started = sluice_alone("server", "start", "config.yaml", "--port", "0")
    (api,) = [line.split()[1] for line in started.out.splitlines() if line.startswith("API: ")]
    try:
        assert sluice_alone("job", "list", "config.yaml", env={"PREFECT_API_URL": api}).out == "no jobs\n"
        wrong = {"PREFECT_API_URL": api, "APP_JOBS_DIR": "elsewhere"}
        other = sluice_alone("job", "list", "config.yaml", env=wrong)
        assert (other.code, "error[prefect-credentials]" in other.err) == (3, True)
    finally:
        assert sluice_alone("server", "stop", "config.yaml").code == 0
