"""``flows/`` names no step (docs/decisions/0025): what it must know of one, the step declares."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from config import STEPS
from tests.conftest import ROOT

EVENT_KINDS = ("flows/reports/events.py",)
"""A kind of event is called ``wait``; it tells that a person is asked, whatever the step is called."""


def named() -> Iterator[str]:
    """Where a string constant in ``flows/`` equals the name of a step."""
    for path in sorted((ROOT / "flows").rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place not in EVENT_KINDS:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and node.value in STEPS:
                    yield f"{place}:{node.lineno}: {node.value}"


def test_no_step_is_named() -> None:
    assert list(named()) == []
