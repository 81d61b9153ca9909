"""``flows/`` and the release report name no step (docs/decisions/0025): what they need of one, the step declares."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from config import STEPS
from tests.conftest import ROOT
from tests.sources import syntax_tree

EVENT_KINDS = ("flows/reports/events.py",)
"""A kind of event is called ``wait``; it tells that a person is asked, whatever the step is called."""
HEADINGS = {"SectionRule": 1, "table": 0}
"""What declares a section or makes a table of the report, and which argument is the word of its heading."""


def headings(tree: ast.AST) -> Iterator[ast.expr | None]:
    """Yield the heading arguments of sections and tables, which may equal the name of a step."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in HEADINGS:
                yield from node.args[HEADINGS[name] :][:1]
            case ast.Dict():  # the rules of the tables, by the words of their headings
                for key, value in zip(node.keys, node.values, strict=True):
                    if (
                        isinstance(value, ast.Call)
                        and isinstance(value.func, ast.Name)
                        and value.func.id == "TableRule"
                    ):
                        yield key


def named(folder: str) -> Iterator[str]:
    """Yield the places in a folder where a string constant equals the name of a step."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place not in EVENT_KINDS:
            tree = syntax_tree(path)
            words = set(map(id, headings(tree)))
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and node.value in STEPS and id(node) not in words:
                    yield f"{place}:{node.lineno}: {node.value}"


@pytest.mark.parametrize("folder", ["flows", "tasks/release_report"])
def test_no_step_is_named(folder: str) -> None:
    assert list(named(folder)) == []
