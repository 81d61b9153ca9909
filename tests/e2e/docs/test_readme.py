"""The README's commands run; installing is compared with what CI runs, not repeated here."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import CHECK_PYTHON, DEMO, README, TESTS, blocks, example, read
from tests.docs.shown import assert_shown
from tests.e2e.docs.place import ExamplePlace, untracked


def test_the_two_commands_stand_in_the_readme_each_on_its_own_line() -> None:
    commands = [line for block in blocks(README, "bash") for line in block.text.splitlines()]
    assert commands.index(DEMO) < commands.index(TESTS)


def test_ci_run_runs_the_second_command_to_the_letter() -> None:
    assert TESTS in [line.strip() for line in read(ROOT / ".ci/run").splitlines()]


@pytest.mark.parametrize(("version", "code"), [("2.7.18", 1), ("3.10.13", 1), ("3.11.0", 0), ("3.14.1", 0)])
def test_an_old_python_gets_one_line_before_anything_is_installed(tmp_path: Path, version: str, code: int) -> None:
    numbers = tuple(map(int, version.split(".")))
    faked = f"import sys\nsys.version_info, sys.version = {numbers}, '{version} (main)'\n"
    (tmp_path / "sitecustomize.py").write_text(faked)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(["bash", "-c", CHECK_PYTHON], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == code
    assert ran.stderr == (f"Sluice needs Python 3.11 or newer. This is {version}\n" if code else "")


def test_every_package_of_the_project_is_pinned_to_one_version() -> None:
    import tomllib

    project = tomllib.loads(read(ROOT / "pyproject.toml"))
    extras = [name for names in project["project"]["optional-dependencies"].values() for name in names]
    wanted = [name for name in project["project"]["dependencies"] + extras if not name.startswith("sluice[")]
    pins = [line for line in read(ROOT / "constraints.txt").splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+]+; python_version >= \"3\.11\"", pin) for pin in pins)
    pinned = {normal(pin.partition("==")[0]) for pin in pins}
    assert {normal(re.split(r"[<>=!~\[ ]", name)[0]) for name in wanted} <= pinned
    assert all("==" in name for name in project["build-system"]["requires"])


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class TestDemo:
    @pytest.mark.e2e
    @pytest.mark.timeout(240)
    def test_it_runs_and_prints_what_the_readme_shows_and_the_paths_of_its_files(self, tmp_path: Path) -> None:
        line = example("README.md", DEMO)
        printed = ExamplePlace(tmp_path, None).run(line.text.strip().rpartition(" && ")[2], timeout=200)
        assert_shown(example("README.md", "Sluice demo in").text, printed)
        head, *listed = printed.partition("\nfiles of job")[2].partition("\n\n")[0].splitlines()
        job = Path(head.rpartition(", in ")[2].removesuffix(":"))
        names = [file.split()[0] for file in listed]
        assert "job.log" in names
        assert all((job / name).is_file() for name in names)
        assert untracked(tmp_path) == []
