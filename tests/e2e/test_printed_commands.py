"""Every printed command runs as printed, in any directory."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Commands

CONFIG = "services: {local_import: {dir: my data}}\npipeline: {enabled_steps: [local_import, wait]}\n"


@pytest.mark.e2e
def test_each_printed_command_runs_elsewhere(tmp_path: Path, prefect_api: str) -> None:
    here = tmp_path / "my work"
    (here / "my data").mkdir(parents=True)
    (here / "my data" / "Patient.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n')
    (here / "my config.yaml").write_text(CONFIG)
    sluice = Commands(here, prefect_api)
    jobs = ["--set", f"jobs_dir={here / 'jobs'}"]
    started = sluice("pipeline", "start", "my config.yaml", *jobs)
    assert started.code == 0, started.err
    status = sluice("pipeline", "status", "my config.yaml", started.job[:8], *jobs)
    log = (here / "jobs" / started.job / "job.log").read_text()
    texts = (started.out, status.out, log)
    program = r"(?:\S*sluice|\S*python\S* -m flows\.run)"
    printed = {line for text in texts for line in re.findall(rf"continue with: ({program} [^;\n]+)", text)}
    assert printed
    for line in sorted(printed):
        ran = subprocess.run(
            shlex.split(line), cwd=tmp_path, env=sluice.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (ran.returncode, started.job in ran.stdout) == (0, True), (line, ran.stderr)
