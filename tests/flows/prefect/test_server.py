"""The local Prefect server of a jobs directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from flows.prefect import server
from tasks.shared.errors import NetworkError, TerminalError
from tests.conftest import ROOT, Commands, kill, not_on_4200, wait_until

pytestmark = pytest.mark.e2e

START = """
import sys
from pathlib import Path
from flows.prefect import server
print(server.start(Path(sys.argv[1])).url, server.known(Path(sys.argv[1]) / ".prefect").pid)
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    found = tmp_path_factory.mktemp("server") / "jobs"
    not_on_4200(found)
    before = os.umask(0o077)  # as every command does
    yield found
    server.stop(found / ".prefect")
    os.umask(before)


def starting(jobs: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START, str(jobs)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def known(jobs: Path) -> server.Known:
    found = server.known(jobs / ".prefect")
    assert found is not None
    return found


def is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


def test_two_commands_at_once_start_one_server_that_stays(jobs: Path) -> None:
    said = [child.communicate(timeout=120)[0] for child in [starting(jobs) for _ in range(2)]]
    found = server.find(jobs / ".prefect")
    assert found is not None
    assert set(said) == {f"{found.url} {known(jobs).pid}\n"}


def test_while_one_command_starts_it_no_other_does(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    not_on_4200(jobs)
    with (jobs / ".prefect/start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        another = threading.Thread(target=server.begin, args=(jobs / ".prefect",))
        another.start()
        another.join(0.5)
        assert known(jobs).pid == 0
    another.join()
    assert server.stop(jobs / ".prefect")


def test_after_kill_9_the_next_command_starts_it_on_its_old_port(jobs: Path) -> None:
    before = server.start(jobs)
    pid = known(jobs).pid
    kill(known(jobs).pid)
    wait_until(lambda: not known(jobs).lives() and is_free(known(jobs).port))
    assert server.find(jobs / ".prefect") is None
    after = server.start(jobs)
    assert (after.url, after.password) == (before.url, before.password)
    assert known(jobs).pid != pid


def test_it_answers_on_loopback_to_those_with_the_password_only(jobs: Path) -> None:
    address = server.start(jobs)
    for url, answers in (("flows/count", 401), ("health", 200)):
        method = "GET" if url == "health" else "POST"
        assert httpx.request(method, f"{address.url}/{url}", trust_env=False).status_code == answers
    with address.client() as client:
        assert client.post("/flows/count", json={}).status_code == 200
    another = ("127.0.0.2", known(jobs).port)  # an address of this machine, too
    with pytest.raises(OSError, match="refused"), socket.create_connection(another, timeout=2):
        pass


def test_its_files_are_private_and_its_password_is_no_argument(jobs: Path) -> None:
    address = server.start(jobs)
    home = jobs / ".prefect"
    assert home.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in home.rglob("*") if path.is_file() and path.stat().st_mode & 0o077] == []
    words = Path(f"/proc/{known(jobs).pid}/cmdline").read_text()
    assert "server\0start\0--host\x00127.0.0.1" in words
    assert str(address.password) not in words + (home / "server.json").read_text() + (home / "server.log").read_text()


def test_a_server_of_another_version_is_an_error_that_names_stop(jobs: Path) -> None:
    server.start(jobs)
    path = jobs / ".prefect/server.json"
    before = path.read_bytes()
    path.write_text(json.dumps(json.loads(before) | {"version": "3.0.1"}))
    try:
        with pytest.raises(TerminalError) as failed:
            server.start(jobs)
    finally:
        path.write_bytes(before)
    assert "3.0.1" in failed.value.render()
    assert "server stop" in failed.value.render()


def test_the_commands_start_show_and_stop_it(jobs: Path) -> None:
    sluice = Commands(jobs.parent, None, in_process=True)
    started = sluice("server", "start")
    shown = sluice("server", "status")
    address = server.find(jobs / ".prefect")
    assert address is not None
    assert shown.code == 0
    for text in (started.out, shown.out):
        assert f"Prefect UI: {address.ui}\n" in text
        assert str(address.password) in text
    (jobs / "a-job").mkdir()
    with (jobs / "a-job" / ".lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused = sluice("server", "stop")
        assert (refused.code, "jobs run on the server: a-job" in refused.err) == (1, True)
        assert sluice("server", "stop", "--yes").out == "the server is stopped\n"
    assert sluice("server", "stop").out == "no server runs\n"
    assert sluice("server", "status").code == 1


def test_stop_ends_no_other_process_that_got_its_id(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "60"])
    path = tmp_path / "server.json"
    path.write_text(json.dumps({"port": 9, "pid": other.pid, "started": "1", "version": "3"}))
    assert not server.stop(tmp_path)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_server_that_hangs_is_not_joined_by_a_second_one(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start(jobs)
    monkeypatch.setattr(server, "START_SECONDS", 0.0)
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.5)
    pid = known(jobs).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(NetworkError, match="does not answer") as failed:
            server.start(jobs)
        assert f"APP_JOBS_DIR={jobs} " in str(failed.value.hint)
        assert known(jobs).pid == pid
    finally:
        os.kill(pid, signal.SIGCONT)


def test_another_port_is_taken_if_the_last_one_is_in_use(tmp_path: Path) -> None:
    not_on_4200(tmp_path / "jobs")
    with socket.create_server(("127.0.0.1", known(tmp_path / "jobs").port)) as taken:
        server.begin(tmp_path / "jobs/.prefect")
        assert known(tmp_path / "jobs").port != taken.getsockname()[1]
    server.stop(tmp_path / "jobs/.prefect")


def test_two_servers_that_choose_the_same_port_at_once_both_start(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    not_on_4200(first)
    (second / ".prefect").mkdir(mode=0o700, parents=True)
    (second / ".prefect/server.json").write_bytes((first / ".prefect/server.json").read_bytes())
    before = os.umask(0o077)
    try:
        children = [starting(first), starting(second)]
        said = [child.communicate(timeout=120)[0] for child in children]
        ports = [known(first).port, known(second).port]
        assert ports[0] != ports[1]
        assert [f"http://127.0.0.1:{port}/api" in line for port, line in zip(ports, said, strict=True)] == [True, True]
    finally:
        os.umask(before)
        server.stop(first / ".prefect")
        server.stop(second / ".prefect")
