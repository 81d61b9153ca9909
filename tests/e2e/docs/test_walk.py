"""The walk of ``docs/development.md``, "A job was killed", is where a continued job passes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Commands, started, wait_until
from tests.docs.pages import section
from tests.peers.project import Fhir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROWS = [
    (module, function)
    for module, function in re.findall(
        r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|",
        section(ROOT / "docs/development.md", "A job was killed: where does it go on?"),
        re.MULTILINE,
    )
]

TRACED = """
import json, sys, threading
passed = {}
def record_call(frame, event, _):
    if event == "call":
        passed.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname), len(passed))
from flows.run import main
threading.setprofile(record_call)
sys.setprofile(record_call)
try:
    main(sys.argv[2:])
finally:
    sys.setprofile(None)
    with open(sys.argv[1], "w") as file:
        json.dump(list(passed), file)
"""


def test_it_names_few_modules() -> None:
    assert 4 < len({module for module, _ in ROWS}) <= 8


def test_a_continued_job_passes_them_in_this_order(
    sluice_process: Commands, project: Path, fhir: Fhir, tmp_path: Path
) -> None:
    config = (project / "config.yaml").read_text().replace("[local_import, wait, send]", "[local_import, send]")
    (project / "config.yaml").write_text(config.replace("url:", "batch_size: 2, url:"))
    fhir.faults({"action": "delay", "at": "applied", "seconds": 2, "path": "/fhir*", "method": "POST", "times": None})
    child = sluice_process.start("pipeline", "start", "config.yaml")
    job = started(child)
    wait_until(lambda: any(file.stat().st_size for file in (project / "jobs" / job).rglob("ledger.ndjson")), 60)
    child.kill()
    child.communicate(timeout=30)
    fhir.faults()

    ran = subprocess.run(
        [sys.executable, "-c", TRACED, tmp_path / "passed.json", "pipeline", "continue", "config.yaml", job],
        cwd=project, env=sluice_process.environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert fhir.total() == 19
    passed = {
        (Path(file).relative_to(ROOT).as_posix(), function): at
        for at, (file, function) in enumerate(json.loads((tmp_path / "passed.json").read_text()))
        if Path(file).is_relative_to(ROOT)
    }
    assert [row for row in ROWS if row not in passed] == []
    assert sorted(ROWS, key=passed.__getitem__) == ROWS
