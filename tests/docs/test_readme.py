"""The README's commands run (architecture.md, rule 10); installing is compared with what CI runs, not repeated here."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flows.demo import STEPS
from tests.conftest import ROOT, Commands, wait_until
from tests.docs.pages import README, Block, blocks, read

INSTALL = "python3 -m venv .venv && .venv/bin/pip install --quiet -c constraints.txt -e {} && .venv/bin/python -m {}"
DEMO = INSTALL.format(".", "flows.run demo")
TESTS = INSTALL.format("'.[dev]'", "pytest")


def lines(*languages: str) -> list[str]:
    return [line for block in blocks(README, *languages) for line in block.text.splitlines()]


def test_the_two_commands_stand_in_the_readme_each_on_its_own_line() -> None:
    commands = lines("bash")
    assert commands.index(DEMO) < commands.index(TESTS)


def test_every_package_of_the_project_is_pinned_to_one_version() -> None:
    import tomllib

    project = tomllib.loads(read(ROOT / "pyproject.toml"))
    extras = [name for names in project["project"]["optional-dependencies"].values() for name in names]
    wanted = [name for name in project["project"]["dependencies"] + extras if not name.startswith("sluice[")]
    pins = [line for line in read(ROOT / "constraints.txt").splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+]+", pin) for pin in pins)
    pinned = {normal(pin.partition("==")[0]) for pin in pins}
    assert {normal(re.split(r"[<>=!~\[ ]", name)[0]) for name in wanted} <= pinned
    assert all("==" in name for name in project["build-system"]["requires"])


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.timeout(240)
def test_the_demo_runs_and_ends_with_a_table_of_steps_and_the_paths_of_its_files(tmp_path: Path) -> None:
    demo = Commands(tmp_path, None)
    ran = demo(*DEMO.rpartition("flows.run ")[2].split(), env={"TMPDIR": str(tmp_path)}, timeout=200)
    assert ran.code == 0, ran.err
    _, _, table = ran.out.partition("\n#  step")
    steps, _, files = table.partition("\nfiles of job")
    for step in set(STEPS) - {"wait"}:
        assert re.search(rf"^\d  {step} +completed", steps, re.MULTILINE)
    shown = [Path(line.split()[0]) for line in files.splitlines()[1:]]
    assert shown
    assert all(path.is_file() for path in shown)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("mode", "shown"), [("s3", "Patient.csv  "), ("transfer", "Binary/")])
def test_the_demo_shows_the_other_ways_to_send(tmp_path: Path, mode: str, shown: str) -> None:
    demo = Commands(tmp_path, None)
    ran = demo("demo", "--send", mode, env={"TMPDIR": str(tmp_path)}, timeout=200)
    assert ran.code == 0, ran.err
    assert shown in ran.out.partition("\nfiles of job")[2].partition("\nobjects in")[2 if mode == "s3" else 0]
    assert "sandbox-secret" not in ran.out + ran.err


class First:
    """The section "A first configuration of your own", done as it says."""

    def __init__(self, directory: Path, sluice: Commands, port: int) -> None:
        self.directory, self.sluice, self.port, self.job = directory, sluice, port, "JOB"
        binaries = directory / "bin"
        binaries.mkdir()
        (binaries / "sluice").write_text(f'#!/bin/sh\nexec {sys.executable} -m flows.run "$@"\n')
        (binaries / "sluice").chmod(0o755)
        self.environment = sluice.environment | {"PATH": f"{binaries}:{sluice.environment['PATH']}"}

    def run(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line.replace("JOB", self.job)],
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        if match := re.match(r"job (\S+)$", done.stdout, re.MULTILINE):
            self.job = match[1]
        return done.stdout

    def do(self, block: Block) -> list[str]:
        return [self.run(line) for line in block.text.splitlines()]


@pytest.mark.timeout(240)
def test_the_first_configuration_runs_as_the_readme_says(tmp_path: Path, sluice: Commands) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    first = First(tmp_path, sluice, port)
    _, _, data, sandbox, before, after = blocks(README, "bash")
    (configuration,) = blocks(README, "yaml")
    first.do(data)
    # The port of the README may be taken on this machine.
    (tmp_path / "first.yaml").write_text(configuration.text.replace("8090", str(port)))
    service = sluice.start(*sandbox.text.replace("8090", str(port)).split()[1:], env={"TMPDIR": str(tmp_path)})
    wait_until(lambda: answers(port))

    check, plan, start = first.do(before)
    assert check == "first.yaml: valid; steps: local_import, wait, send\n"
    assert plan == "nothing found: the job can start\n"
    assert "2 wait: waiting for approval" in start
    assert_shown(start)
    status, done, jobs = first.do(after)
    assert f"job {first.job}: waiting" in status
    assert f"job {first.job} is complete" in done
    assert re.search(rf"^{first.job}  completed", jobs, re.MULTILINE)

    service.send_signal(signal.SIGINT)
    assert service.wait(timeout=20) == 0


def assert_shown(printed: str) -> None:
    """What was printed is what the README shows, ids, paths, sizes and times aside."""
    shown = next(block.text for block in blocks(README, "") if "continue with:" in block.text)

    def skeleton(text: str) -> list[str]:
        text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
        text = re.sub(r"(?<= )\S*(?=/(jobs/ID|first\.yaml))", "…", text)
        return re.sub(r"[\d.,]+ [kM]?B(/s)?|[\d.]+ s", "N", text).splitlines()

    assert skeleton(printed) == skeleton(shown)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
