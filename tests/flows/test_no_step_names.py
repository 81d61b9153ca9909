"""``flows/`` and the release report name no step (docs/decisions/0025): what they need of one, the step declares."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from config import STEPS
from tests.conftest import ROOT

EVENT_KINDS = ("flows/reports/events.py",)
"""A kind of event is called ``wait``; it tells that a person is asked, whatever the step is called."""
PAGE = {"Section": "name", "table": 0}
"""What makes a section or a table of the report, and which argument is the word of its heading."""


def headings(tree: ast.AST) -> Iterator[ast.expr]:
    """Where a section or a table gets its heading, which may be the word that names a step."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PAGE:
            word = PAGE[node.func.id]
            yield from (one.value for one in node.keywords if one.arg == word)
            yield from node.args[:1] if word == 0 else ()


def named(folder: str) -> Iterator[str]:
    """Where a string constant in a folder equals the name of a step."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place not in EVENT_KINDS:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            words = set(map(id, headings(tree)))
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and node.value in STEPS and id(node) not in words:
                    yield f"{place}:{node.lineno}: {node.value}"


@pytest.mark.parametrize("folder", ["flows", "tasks/release_report"])
def test_no_step_is_named(folder: str) -> None:
    assert list(named(folder)) == []
