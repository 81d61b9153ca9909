"""Rules for imports: no cycle, none upward, none from step to step (docs/development.md, *Where things are*)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

from config import STEPS
from tests.conftest import ROOT
from tests.sources import syntax_tree

LAYERS = ("config", "tasks", "flows")
"""Bottom to top."""

METHODS = 15
"""Methods that a class of ``flows`` has at most; what else there is becomes functions over it, by concern."""

EXTRACTION = "flows.commands.extraction"
"""The commands about an extraction server call it without a job, so they import the step. No other flow does."""

Edge = tuple[str, str]


@cache
def modules() -> dict[str, ast.Module]:
    """Return the modules of the layers, by their names."""
    found = {}
    for path in (path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = syntax_tree(path)
    return found


@cache
def edges() -> frozenset[Edge]:
    """Return the imports between modules, also within functions, without those for the type checker alone."""
    return frozenset(
        (name, found) for name, tree in modules().items() for found in _imported(tree) if found not in {None, name}
    )


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                for other in node.orelse:
                    yield from _imported(other)
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name in modules())
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    below = f"{module}.{alias.name}"
                    yield from (
                        one for one in (below, module) if one in modules() and (one == below or below not in modules())
                    )
            case ast.ImportFrom():
                raise AssertionError(f"a relative import in line {node.lineno}")
            case _:
                yield from _imported(node)


def _step(module: str) -> str | None:
    """Return the step that a module belongs to; ``release_report`` is none in the catalogue, and kept apart as one."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "tasks" and parts[1] != "shared" else None


def test_there_are_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for name, found in edges():
        graph[name].add(found)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        raise AssertionError(" imports ".join(reversed(cycle.args[1]))) from None


def test_no_layer_imports_one_above_it() -> None:
    level = {layer: number for number, layer in enumerate(LAYERS)}
    upward = {(a, b) for a, b in edges() if level[a.partition(".")[0]] < level[b.partition(".")[0]]}
    # What all steps share knows no step; the catalogue, tasks/__init__.py, finds them by their names.
    upward |= {(a, b) for a, b in edges() if a.startswith("tasks.shared") and _step(b) is not None}
    assert sorted(upward) == []


def test_no_step_imports_another_step() -> None:
    found = {(a, b) for a, b in edges() if _step(a) and _step(b) and _step(a) != _step(b)}
    assert found == set()


def test_flows_import_no_step_but_for_the_commands_about_extractions() -> None:
    found = {(a, _step(b)) for a, b in edges() if a.startswith("flows.") and _step(b) in STEPS}
    assert found == {(EXTRACTION, "extractor"), ("flows.session", "extractor")}


def test_no_class_of_the_flows_has_too_many_methods() -> None:
    found = {
        f"{name}.{node.name}": count
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if name.startswith("flows.") and isinstance(node, ast.ClassDef) and (count := _methods(node)) > METHODS
    }
    assert found == {}


def _methods(defined: ast.ClassDef) -> int:
    return sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in defined.body)
