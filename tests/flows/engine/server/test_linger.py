"""The embedded server stays for a while after the last command, for the next one (4-product.md §6, server_linger)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from flows.engine.server import start
from flows.engine.server.child import Watch
from flows.engine.server.proof import Announced, announce, announced
from flows.engine.server.start import EmbeddedServer, lingering
from flows.output import AFTER
from tests.conftest import ROOT, Commands, kill, wait_until
from tests.flows.engine.server.test_start import gone, server_pid

USER = """
import sys
from datetime import timedelta
from pathlib import Path
from flows.engine.server.start import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1]), linger=timedelta(seconds=float(sys.argv[2]))) as server:
    print(server.address().url, flush=True)
    sys.stdin.read()
"""
LONG = 600


@pytest.fixture
def jobs_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "jobs"
    found = announced(tmp_path / "jobs/.prefect")
    if found is not None and not gone(found.pid):
        kill(found.pid)


def user(jobs_dir: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a command that has found or started the server, and that runs until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(jobs_dir), str(seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout
    process.url = process.stdout.readline()  # type: ignore[attr-defined]
    return process


def until(jobs_dir: Path) -> float | None:
    found = announced(jobs_dir / ".prefect")
    return found and found.until


@pytest.mark.e2e
def test_it_stays_for_the_next_command(jobs_dir: Path) -> None:
    first = user(jobs_dir, LONG)
    pid = server_pid(jobs_dir)
    first.communicate()  # which does not wait for the server's end
    wait_until(lambda: until(jobs_dir) is not None)
    second = user(jobs_dir, 0)
    assert (second.url, server_pid(jobs_dir)) == (first.url, pid)  # type: ignore[attr-defined]
    assert until(jobs_dir) is None  # it does not linger while somebody uses it
    second.communicate()
    wait_until(lambda: until(jobs_dir) is not None)
    assert not gone(pid)


@pytest.mark.e2e
def test_who_finds_it_waits_for_nothing_and_says_nothing_of_waiting(
    jobs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = user(jobs_dir, LONG)
    with EmbeddedServer(jobs_dir) as found:
        time.sleep(1.5 * AFTER)  # what a command does between the look and its first question, such as an import
        found.address()
    assert capsys.readouterr().err == ""
    first.communicate()


@pytest.mark.e2e
def test_it_ends_by_itself_when_its_time_is_over(jobs_dir: Path) -> None:
    process = user(jobs_dir, 3)
    pid = server_pid(jobs_dir)
    time.sleep(4)  # the time counts from the end of the command
    assert not gone(pid)
    process.communicate()
    wait_until(lambda: gone(pid))
    assert not (jobs_dir / ".prefect/server.json").exists()


@pytest.mark.e2e
def test_a_server_lingers_after_kill_9_and_a_user_without_linger_changes_nothing(jobs_dir: Path) -> None:
    first = user(jobs_dir, LONG)
    pid = server_pid(jobs_dir)
    kill(first.pid)
    first.communicate()
    wait_until(lambda: until(jobs_dir) is not None)
    before = until(jobs_dir)
    user(jobs_dir, 0).communicate()
    wait_until(lambda: until(jobs_dir) is not None)
    after = until(jobs_dir)
    assert before is not None
    assert after == pytest.approx(before, abs=1)
    assert not gone(pid)


@pytest.mark.e2e
def test_it_holds_no_terminal_no_pipe_and_no_group_of_the_command(jobs_dir: Path) -> None:
    # The input of a terminal, the output of a script that takes it: reading to its end is waiting for all who hold it.
    process = user(jobs_dir, LONG)
    pid = server_pid(jobs_dir)
    process.communicate()
    assert not gone(pid)
    assert os.getsid(pid) == os.getpgid(pid) == pid
    assert Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[4] == "0"  # no terminal
    log = jobs_dir / ".prefect/server.log"
    assert [Path(f"/proc/{pid}/fd/{number}").readlink() for number in range(3)] == [Path(os.devnull), log, log]


@pytest.mark.e2e
def test_status_says_until_when_stop_ends_it_at_once_and_start_keeps_it(sluice_alone: Commands, project: Path) -> None:
    kept = {"APP_SERVER_LINGER": "10m"}
    sluice_alone("job", "list", "config.yaml", env=kept)
    pid = server_pid(project / "jobs")
    wait_until(lambda: until(project / "jobs") is not None)
    said = sluice_alone("server", "status", "config.yaml").out
    end = time.strftime("%H:%M", time.localtime(until(project / "jobs")))
    assert f"it lingers until {end}:" in said
    assert "server start --jobs-dir" in said
    assert sluice_alone("server", "stop", "config.yaml").out == "the server is stopped\n"
    assert gone(pid)

    sluice_alone("job", "list", "config.yaml", env=kept)
    pid = server_pid(project / "jobs")
    assert "runs already" in sluice_alone("server", "start", "config.yaml").out
    assert announced(project / "jobs/.prefect").stay  # type: ignore[union-attr]
    assert "lingers" not in sluice_alone("server", "status", "config.yaml").out
    sluice_alone("server", "stop", "config.yaml")
    assert gone(pid)


@pytest.mark.e2e
def test_when_its_directory_is_removed_it_ends_and_does_not_make_it_again(jobs_dir: Path) -> None:
    process = user(jobs_dir, LONG)
    pid = server_pid(jobs_dir)
    process.communicate()
    wait_until(lambda: until(jobs_dir) is not None)
    shutil.rmtree(jobs_dir)
    wait_until(lambda: gone(pid))
    assert not jobs_dir.exists()


class Screen:
    """Output stream of a command."""

    def __init__(self, terminal: bool) -> None:
        self.isatty = lambda: terminal


@pytest.mark.parametrize(
    ("asked", "terminal", "ci", "seconds"),
    [
        (None, True, "", 60),
        (None, False, "", 0),
        (None, True, "true", 0),
        (timedelta(0), True, "", 0),
        (timedelta(seconds=5), False, "", 5),
    ],
)
def test_by_default_it_lingers_for_a_minute_after_a_command_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, asked: timedelta | None, terminal: bool, ci: str, seconds: float
) -> None:
    monkeypatch.setattr(start.sys, "stdout", Screen(terminal))
    monkeypatch.setenv("CI", ci)
    assert lingering(asked).total_seconds() == seconds


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with (tmp_path / "server.lock").open("wb") as lock:
        watch = Watch(tmp_path, lock.fileno())
        yield watch
        watch._clients.close()


def test_a_server_whose_file_is_gone_or_that_nobody_asked_to_linger_ends(watch: Watch) -> None:
    assert not watch._goes_on()
    announce(watch.home, Announced("http://127.0.0.1:9/api", 1))
    assert not watch._goes_on()
    announce(watch.home, Announced("http://127.0.0.1:9/api", 1, stay=True))
    assert watch._goes_on()


def test_what_was_asked_for_counts_once_from_the_last_users_end_on(watch: Watch) -> None:
    announce(watch.home, Announced("http://127.0.0.1:9/api", 1, linger=LONG))
    assert watch._goes_on()
    said = json.loads((watch.home / "server.json").read_text())
    assert said["linger"] == 0
    assert said["until"] == pytest.approx(time.time() + LONG, abs=30)
    # A shorter wish of the next user takes nothing back.
    announce(watch.home, Announced("http://127.0.0.1:9/api", 1, linger=0.01))
    assert watch._goes_on()
    assert json.loads((watch.home / "server.json").read_text())["until"] == pytest.approx(said["until"], abs=1)


def test_a_server_that_cannot_say_that_it_lingers_does_not(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(watch.home, Announced("http://127.0.0.1:9/api", 1, linger=LONG))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not watch._goes_on()


def test_a_directory_that_is_gone_or_another_is_noticed(watch: Watch, tmp_path: Path) -> None:
    assert not watch._is_removed()
    (tmp_path / "server.lock").rename(tmp_path / "other")
    assert watch._is_removed()
    (tmp_path / "server.lock").touch()
    assert watch._is_removed()
