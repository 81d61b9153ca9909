"""The README's commands run; installing is compared with what CI runs, not repeated here."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.pages import DEMO, README, TESTS, blocks, example, read
from tests.docs.picture import PICTURE
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
    def test_it_runs_and_prints_what_the_picture_shows(self, tmp_path: Path) -> None:
        line = example("README.md", DEMO)
        printed = ExamplePlace(tmp_path, None).run(line.text.strip().rpartition(" && ")[2], timeout=200)
        picture = re.sub(r"<[^>]*>", "", html.unescape(read(PICTURE))).replace("\xa0", " ")
        for line in printed.splitlines():
            if not re.search(r"\d", line):  # neither time nor size nor path
                assert line.strip() in picture
        listed = dict(line.strip().split(":  ") for line in printed.partition("\nnext:\n")[2].splitlines())
        assert Path(listed["read the release report"].strip()).is_file()
        assert (Path(listed["look at the files of the job"].strip()) / "job.log").is_file()
        assert (ROOT / listed["do it yourself"].strip()).is_file()
        shown = printed.replace(str(tmp_path / ".temporary"), "/tmp").splitlines()
        assert sum(1 + len(line) // 100 for line in shown) <= 40, "it fits a terminal of 100 × 40"
        assert untracked(tmp_path) == []

    @pytest.mark.e2e
    @pytest.mark.timeout(240)
    def test_with_a_review_it_shows_once_what_will_leave_and_asks(self, tmp_path: Path) -> None:
        answers = ("keeps waiting)", "y"), ("Your name", "Ada"), ("Comment", "synthetic data")
        shown = ExamplePlace(tmp_path, None).on_a_terminal("sluice demo --review --keep", *answers)
        assert shown.count("waits for a decision") == 1
        assert "is complete; its files are in" in shown
        assert "csv/Patient.csv:" in shown
        assert "/kept-" in shown
