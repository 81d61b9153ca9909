"""The README's commands run; installing is compared with what CI runs, not repeated here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import DEMO, README, TESTS, blocks, example, read
from tests.docs.shown import assert_shown
from tests.e2e.docs.place import ExamplePlace, untracked


def test_the_two_commands_stand_in_the_readme_each_on_its_own_line() -> None:
    commands = [line for block in blocks(README, "bash") for line in block.text.splitlines()]
    assert commands.index(DEMO) < commands.index(TESTS)


def test_ci_run_runs_the_second_command_to_the_letter() -> None:
    assert TESTS in [line.strip() for line in read(ROOT / ".ci/run").splitlines()]


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
