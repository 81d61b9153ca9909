"""The examples of the development page: generated files are the checked-in ones, benches run, tests are found."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import example, read
from tests.docs.references import ROOT
from tests.e2e.docs.place import ExamplePlace

SMALL = {
    "import": "--mb 2 --rounds 1 --only {only}", "send": "--mb 2 --rounds 1",
    "pseudonymizer": "--mb 2 --rounds 1 --large 0", "validation": "--mb 2 --rounds 1",
    "flattening": "--mb 2", "s3": "--mb 20 --files 2 --no-curl",
    "sandbox_flattening": "--resources 200", "start": "--runs 1",
    "jobs": "--jobs 1 --seconds 3 --finished 3 --database sqlite",
    "release_report": "--mb 2", "release_job": "--mb 2 --rounds 1",
}  # fmt: skip
"""What makes a bench short; said after what the page says, so it counts."""


def without_comment(line: str) -> str:
    return line.partition(" #")[0].strip()


@pytest.mark.e2e
def test_the_generated_files_are_what_the_commands_write(tmp_path: Path) -> None:
    place = ExamplePlace(tmp_path, None)
    (tmp_path / "docs").mkdir()
    (tmp_path / "config").mkdir()
    lines = example("docs/development.md", ".venv/bin/python -m config.reference").text
    place.lines(lines)
    written = re.findall(r"> (\S+)", lines)
    assert len(written) == len(lines.splitlines())
    for name in written:
        assert read(tmp_path / name) == read(ROOT / name), name


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_every_bench_runs_and_prints_figures(tmp_path: Path) -> None:
    place = ExamplePlace(tmp_path, None)
    lines = example("docs/development.md", ".venv/bin/python -m tests.bench import").text.splitlines()
    benches = {line.split("tests.bench ")[1].split()[0] for line in lines}
    assert benches == SMALL.keys()
    for line in map(without_comment, lines):
        only = line.partition("--only ")[2] or "download"
        small = SMALL[line.split("tests.bench ")[1].split()[0]].format(only=only)
        assert re.search(r"\d", place.run(f"{line} {small}")), line


@pytest.mark.campaign
@pytest.mark.timeout(400)
def test_every_call_of_pytest_finds_tests(tmp_path: Path) -> None:
    first = example("docs/development.md", ".venv/bin/python -m pytest                      #").text
    real = example("docs/development.md", ".venv/bin/python -m pytest tests/real").text
    calls = [without_comment(line) for line in (first + real).splitlines() if "pytest" in line]
    assert len(calls) == 9
    place = ExamplePlace(tmp_path, None)
    for call in calls:
        done = subprocess.run(
            ["bash", "-c", f"{place.here(call)} --collect-only -p no:cacheprovider"], cwd=ROOT, env=place.environment,
            capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        assert re.search(r"[1-9]\d*(/\d+)? tests? (found|collected)|[1-9]\d*/\d+ tests collected", done.stdout), call


def test_what_must_hold_before_a_change_is_what_the_page_says() -> None:
    *_, tools, everything = example(
        "docs/development.md", ".venv/bin/python -m pytest                      #"
    ).text.splitlines()
    script = ROOT / without_comment(everything)
    assert os.access(script, os.X_OK)
    for tool in without_comment(tools).split(" && "):
        assert f"\n{tool} ||" in read(script)
