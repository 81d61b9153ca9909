"""An interpreter that is too old gets one line that names the version needed."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flows
from tests.conftest import ROOT

PACKAGE = ROOT / "flows" / "__init__.py"


def test_it_is_the_version_that_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = ".".join(map(str, flows.OLDEST))
    assert project["requires-python"] == f">={oldest}"
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(pin.endswith(f'; python_version >= "{oldest}"') for pin in pins)


def test_the_line_is_said_before_anything_newer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(PACKAGE))
    assert left.value.code == f"Sluice needs CPython 3.11 or newer; this is 3.9: {sys.executable}"
    ast.parse(PACKAGE.read_text(), feature_version=(3, 0))
    assert "__future__" not in PACKAGE.read_text()


def others() -> list[str]:
    """Interpreters of this machine that are too old."""
    homes = [*Path.home().glob(".pyenv/versions/[23].*/bin"), *map(Path, os.environ.get("PATH", "").split(":"))]
    found = {str(path): path.name[6:] for home in homes for path in home.glob("python[23].[0-9]*")}
    versions = {
        path: tuple(map(int, name.split("."))) for path, name in found.items() if re.fullmatch(r"\d\.\d+", name)
    }
    return sorted(path for path, version in versions.items() if version < flows.OLDEST)


@pytest.mark.real
@pytest.mark.e2e
def test_old_interpreters_say_it_in_one_line() -> None:
    said = []
    for python in others():
        ran = subprocess.run(
            [python, "-B", "-m", "flows.run", "demo"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if ran.returncode == 127:
            continue  # it stands for an interpreter that is switched off
        assert ran.returncode == 1
        said.append(ran.stderr)
        assert re.fullmatch(r"Sluice needs CPython 3\.11 or newer; this is [23]\.\d+: \S+\n", ran.stderr), ran.stderr
    if not said:
        pytest.skip("no interpreter here is too old")
