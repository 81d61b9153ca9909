"""The product uses Prefect as its documentation shows it: no private module, no private attribute."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

MODULES = [path for name in ("flows", "tasks", "deployments") for path in sorted((ROOT / name).rglob("*.py"))]


def private_parts(path: Path) -> Iterator[str]:
    """Return the private names of Prefect that a module imports, reads or sets."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "prefect":
            imported |= {alias.asname or alias.name for alias in node.names}
            yield from (part for part in (node.module or "").split(".") if part.startswith("_"))
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "prefect":
                    imported.add((alias.asname or alias.name).split(".")[0])
                    yield from (part for part in alias.name.split(".") if part.startswith("_"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and isinstance(node.value, ast.Name):
            if node.value.id in imported:
                yield node.attr
        elif isinstance(node, ast.ClassDef):
            for base in (base.id for base in node.bases if isinstance(base, ast.Name) and base.id in imported):
                private = (item.name for item in node.body if isinstance(item, ast.FunctionDef))
                yield from (f"{base}.{name}" for name in private if name.startswith("_") and not name.startswith("__"))


def test_no_module_uses_a_private_part_of_prefect() -> None:
    found = {str(path.relative_to(ROOT)): list(private_parts(path)) for path in MODULES}
    assert {name: parts for name, parts in found.items() if parts} == {}
    assert [path.name for path in MODULES if "prefect._internal" in path.read_text(encoding="utf-8")] == []


def test_the_engine_of_flows_is_used_in_one_place() -> None:
    users = [path.name for path in MODULES if "prefect.flow_engine" in path.read_text(encoding="utf-8")]
    assert users == ["runs.py"]
