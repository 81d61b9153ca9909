"""docs/tried-with.md is generated from the record, and the record has the versions that ``get.py`` fetches."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs.pages import read
from tests.docs.references import ROOT
from tests.real.components import COMPONENTS, NAMES
from tests.real.get import PROGRAMS, Program
from tests.real.tried import load, render

TRIED = load()


def test_the_page_is_what_the_command_makes_of_the_record() -> None:
    assert read(ROOT / "docs/tried-with.md") == render(TRIED), "python -m tests.real.tried > docs/tried-with.md"


@pytest.mark.parametrize("program", [one for one in PROGRAMS if one.name in TRIED], ids=lambda one: one.name)
def test_what_was_tried_is_of_the_version_that_is_fetched(program: Program) -> None:
    version = TRIED[program.name].version.removeprefix("RELEASE.")
    first = re.sub(r"[-TZ]", "", version) if program.name == "minio" else version.split(",")[0]
    assert first in json.dumps(program.pins), f"python -m tests.real {program.name} --record"


def test_the_page_names_every_component_and_says_which_was_not_tried() -> None:
    page = render(TRIED)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    for component in COMPONENTS:
        assert any(row.startswith(f"| {component.title} |") for row in rows)
    assert ("not tested with this command" in page) == (TRIED.keys() != NAMES)
    assert "Queries in CQL" in page


def test_what_is_fetched_stands_on_the_page_of_development() -> None:
    page = read(ROOT / "docs/development.md")
    for program in PROGRAMS:
        assert re.search(rf"^\| .*`{program.name}`.*`{program.variable}`", page, re.MULTILINE), program.name


def test_the_record_names_no_place_of_a_machine() -> None:
    text = (ROOT / "tests/real/tried.json").read_text(encoding="utf-8")
    assert not re.search(r"/(?:tmp|home|root|work|var)/", text)
