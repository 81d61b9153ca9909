"""A module that a docstring or a comment names exists: in the same directory, in tasks/shared, or at that path."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("package", ["config", "flows", "tasks", "deployments"])
def test_every_module_that_is_named_in_the_sources_is_there(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        for name in re.findall(r"``([\w/]+\.py)``", path.read_text(encoding="utf-8")):
            there = (path.parent / name).is_file() or (ROOT / name).is_file()
            assert there or any((ROOT / "tasks" / "shared").rglob(name)), f"{path.relative_to(ROOT)}: {name}"
