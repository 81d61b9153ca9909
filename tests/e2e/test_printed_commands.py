"""Every printed command runs as printed, in the reader's directory (4-product.md §2)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Commands, Ran

CONFIG = "services: {local_import: {dir: my data}}\npipeline: {enabled_steps: [local_import, wait]}\n"
SCRIPT = f"#!{sys.executable}\nimport sys\nfrom flows.run import main\nsys.exit(main())\n"


class CommandUser:
    """A user in a directory with a blank in its name, with the program elsewhere and her own paths."""

    def __init__(self, place: Path, api: str, program: str) -> None:
        self.program = program
        self.here, self.elsewhere = place / "my work", place / "elsewhere"
        for directory in (self.here / "my data", self.elsewhere, place / "my env"):
            directory.mkdir(parents=True)
        (self.here / "my data" / "Patient.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n')
        (self.here / "my config.yaml").write_text(CONFIG)
        script = place / "my env" / "sluice"
        script.write_text(SCRIPT)
        script.chmod(0o755)
        self.environment = Commands(place, api).environment

    def types(self, command: str, *, elsewhere: bool = False) -> Ran:
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.elsewhere if elsewhere else self.here, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def called(self, arguments: str) -> Ran:
        return self.types(f"{self.program} {arguments}")


def commands(text: str) -> list[str]:
    """Return the printed commands: after these words, up to the end of the line or sentence."""
    program = r"(?:'[^'\n]*sluice'|\S*sluice|\S*python\S* -m flows\.run)"
    return re.findall(rf"(?:continue with|see): ({program} [^;\n]+)", text)


@pytest.mark.e2e
def test_a_module_is_printed_as_it_was_called(tmp_path: Path, prefect_api: str) -> None:
    person = CommandUser(tmp_path, prefect_api, program := f"{shlex.quote(sys.executable)} -m flows.run")
    started = person.called("pipeline start 'my config.yaml'")
    (line,) = commands(started.out)
    assert line == f"{program} pipeline continue 'my config.yaml' {started.job}"
    assert person.types(f"{line} --approve").code == 0


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_each_runs_where_it_is_read(tmp_path: Path, prefect_api: str) -> None:
    person = CommandUser(tmp_path, prefect_api, program := "'../my env/sluice'")
    started = person.called("pipeline start 'my config.yaml'")
    assert started.code == 0, started.err
    (line,) = commands(started.out)
    assert line == f"{program} pipeline continue 'my config.yaml' {started.job}"

    unknown = person.called("pipeline status 'my config.yaml' ffff --set 'jobs_dir=jobs'")
    assert unknown.code == 2
    status = person.called(f"pipeline status 'my config.yaml' {started.job[:8]}")
    for printed in (unknown.err, status.out):
        (line,) = commands(printed)
        assert line.startswith(f"{program} ")
        ran = person.types(line)
        assert (ran.code, started.job in ran.out) == (0, True), (line, ran.err)

    log = (person.here / "jobs" / started.job / "job.log").read_text()
    lines = set(commands(log + person.called("job unfinished 'my config.yaml'").out))
    assert lines
    for line in lines - {f"{program} pipeline continue 'my config.yaml' {started.job}"}:
        ran = person.types(line, elsewhere=True)
        assert (ran.code, started.job in ran.out) == (0, True), (line, ran.err)
    done = person.types(f"{line} --approve", elsewhere=line not in commands(started.out))
    assert done.code == 0, done.err
