"""``deployments/worker.py``: runs end cleanly when their worker is stopped (4-product.md §4, "Stop")."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.worker import children, limited, main
from flows.engine.api_address import QUIET, ApiAddress
from tests.conftest import ROOT, own_name, wait_until

RUN = """
import pathlib, signal, sys, time
def end(number, frame):
    time.sleep(float(sys.argv[2]))
    pathlib.Path("ended").write_text("cleanly")
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
pathlib.Path("begun").touch()
time.sleep(600)
"""
WORKER = """
import pathlib, signal, subprocess, sys
run = subprocess.Popen([sys.executable, "run.py", "the run", sys.argv[1]], start_new_session=True)
def end(number, frame):
    run.kill()  # as Prefect's worker does
    run.wait()
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
pathlib.Path("works").touch()
while True:
    signal.pause()
"""
SUPERVISE = "import sys; from deployments.worker import supervise; sys.exit(supervise(sys.argv[2:], patience={}))"


class Supervised:
    """A stand-in for Prefect's worker with one run, supervised."""

    def __init__(self, place: Path, *, ends_after: float, patience: float) -> None:
        self.place = place
        (place / "run.py").write_text(RUN)
        (place / "worker.py").write_text(WORKER)
        command = [sys.executable, "worker.py", str(ends_after)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE.format(patience), "--", *command], cwd=place, env={"PYTHONPATH": str(ROOT)}
        )
        wait_until((place / "begun").exists)
        wait_until((place / "works").exists)

    def ended(self) -> bool:
        """Return whether the run could end by itself."""
        return (self.place / "ended").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_run_ends_by_itself_before_its_worker_does_and_the_code_is_the_worker_s(
    tmp_path: Path, number: signal.Signals
) -> None:
    supervised = Supervised(tmp_path, ends_after=0.3, patience=60)
    supervised.process.send_signal(number)
    assert supervised.process.wait(60) == 7
    assert supervised.ended()


def test_a_run_that_does_not_end_in_time_is_killed_with_the_worker(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, ends_after=600, patience=0.3)
    supervised.process.terminate()
    assert supervised.process.wait(60) == 7
    assert not supervised.ended()


def test_a_second_signal_waits_no_longer(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, ends_after=600, patience=600)
    supervised.process.terminate()
    (worker,) = children(supervised.process.pid)
    wait_until(lambda: Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
    supervised.process.terminate()
    assert supervised.process.wait(60) == 7
    assert not supervised.ended()


def gone(process: int) -> bool:
    """Return whether a process has ended, even if its parent has not reaped it yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("kernel", ["prctl", "watch"])
def test_a_killed_supervisor_leaves_no_worker_and_the_run_goes_on(tmp_path: Path, kernel: str) -> None:
    """Whoever starts another one would have two workers in one place."""
    (tmp_path / "worker.py").write_text(
        "import pathlib, subprocess, sys, time\n"
        "from flows import signals\n"
        f"if {kernel!r} == 'watch': signals.ctypes = None  # as where the C library has no prctl\n"
        "run = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"signals.end_with_supervisor(every={3600 if kernel == 'prctl' else 0.05})\n"
        "pathlib.Path('works').write_text(str(run.pid))\n"
        "time.sleep(60)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE.format(60), "--", sys.executable, "worker.py"], cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    wait_until(lambda: (tmp_path / "works").exists() and bool((tmp_path / "works").read_text()))
    (worker,), run = children(supervisor.pid), int((tmp_path / "works").read_text())
    supervisor.kill()
    supervisor.wait(60)
    try:
        wait_until(lambda: gone(worker), 20)
        assert not gone(run)
    finally:
        os.kill(run, signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_ends_with_its_supervisor(prefect_api: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deployments.worker", "--pool", f"pool-{own_name(tmp_path)}"]
    environment = os.environ | {"PREFECT_API_URL": prefect_api, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        supervisor = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    wait_until(lambda: bool(children(supervisor.pid)))
    (child,) = children(supervisor.pid)
    supervisor.kill()
    supervisor.wait(60)
    wait_until(lambda: gone(child), 60)


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (["--pool", "p"], ["--limit", "2"]),
        (["--pool", "p", "--limit", "5"], []),
        (["--limit=5"], []),
        (["-l", "5"], []),
    ],
)
def test_two_runs_at_once_unless_somebody_says_how_many(options: list[str], more: list[str]) -> None:
    assert limited(options) == options + more


@pytest.mark.parametrize("named", [None, ApiAddress(url="nonsense"), ApiAddress(url="127.0.0.1:4200/api")])
def test_without_an_api_there_is_no_worker_with_a_server_of_its_own(
    named: ApiAddress | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prefect's starts one, with telemetry, and waits there for runs that nobody can hand to it."""
    monkeypatch.setattr("deployments.worker.configured_api", lambda: named)
    monkeypatch.setattr("deployments.worker.supervise", pytest.fail)
    assert main(["--pool", "sluice"]) == 2
    assert capsys.readouterr().err.startswith("error[no-prefect-api]: ")


def test_the_runs_of_a_worker_send_no_telemetry_whatever_its_environment_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an OpenTelemetry SDK configured, Prefect's own spans would carry the reviewer's name and comment."""
    environment = {"PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "true"}
    monkeypatch.setattr("deployments.worker.os.environ", environment)
    monkeypatch.setattr("deployments.worker.configured_api", lambda: ApiAddress("http://127.0.0.1:1/api"))
    monkeypatch.setattr("deployments.worker.supervise", lambda *_, **__: 0)
    assert main(["--pool", "sluice"]) == 0
    assert environment.items() >= QUIET.items()
