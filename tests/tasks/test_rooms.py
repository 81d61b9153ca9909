"""Who imports whom among the steps (docs/development.md, "Where things are"): read from the sources, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from config import STEPS
from tests.conftest import ROOT

EXTRACTION = "flows/commands/extraction.py"
"""The commands about an extraction server talk to it without a job; there is no declaration for that."""


def imported(path: Path) -> Iterator[str]:
    """The steps whose rooms a module names in an import, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, room = name.partition(".")
            if package == "tasks" and room.split(".")[0] in STEPS:
                yield room.split(".")[0]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_imports_no_other_step(name: str) -> None:
    for path in (ROOT / "tasks" / name).rglob("*.py"):
        assert set(imported(path)) <= {name}, path


def test_the_workshop_and_the_flows_import_no_step_but_through_its_declaration() -> None:
    for package in ("tasks/shared", "flows"):
        for path in (ROOT / package).rglob("*.py"):
            if str(path.relative_to(ROOT)) != EXTRACTION:
                assert set(imported(path)) == set(), path
