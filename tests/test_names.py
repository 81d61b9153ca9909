"""Names and docstrings that a program can judge (style.md, *Code* 2 and 4)."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from tests.conftest import ROOT
from tests.docs.references import syntax_tree

_DIRECTORIES = ("config", "tasks", "flows", "deployments", "tests")
_LONGEST_NAME = 79

BARE_VERBS = frozenset(
    {
        "ask",
        "asked",
        "asks",
        "asking",
        "gave",
        "give",
        "given",
        "gives",
        "giving",
        "hear",
        "heard",
        "hears",
        "keep",
        "keeping",
        "keeps",
        "kept",
        "knew",
        "know",
        "known",
        "knows",
        "leave",
        "leaves",
        "leaving",
        "left",
        "look",
        "looked",
        "looking",
        "looks",
        "said",
        "saw",
        "say",
        "saying",
        "says",
        "see",
        "seeing",
        "seen",
        "sees",
        "speak",
        "speaks",
        "spoke",
        "take",
        "taken",
        "takes",
        "taking",
        "tell",
        "telling",
        "tells",
        "told",
        "took",
        "want",
        "wanted",
        "wants",
    }
)
"""Verbs of saying and taking, which name nothing without an object."""

FILE_PROTOCOL = frozenset({"tell"})
"""Methods that Python's file objects have."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_QUESTION = re.compile(r"(What|Whether|How|Where|Who|Why|When|Which)\b")


def _modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield each Python file of the project, by its path from the root, with its syntax tree."""
    for directory in _DIRECTORIES:
        paths = sorted((ROOT / directory).rglob("*.py"))
        assert paths, directory
        yield from ((str(path.relative_to(ROOT)), syntax_tree(path)) for path in paths)


def test_every_name_and_docstring_of_the_project_keeps_the_rules() -> None:
    """In one test, since parallel runs of several would each read all files."""
    classes, found = defaultdict(list), []
    for path, tree in _modules():
        for node in ast.walk(tree):
            if not isinstance(node, _Documented):
                continue
            place = f"{path}:{getattr(node, 'lineno', 1)}"
            if _QUESTION.match(text := ast.get_docstring(node) or ""):
                found.append(f"{place}: the docstring begins with a question word: {text[:60]}")
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(place)
            elif isinstance(node, _FUNCTIONS):
                if node.name.strip("_") in BARE_VERBS - FILE_PROTOCOL:
                    found.append(f"{place}: {node.name} is a bare verb of saying or taking")
                if len(node.name) > _LONGEST_NAME:
                    found.append(f"{place}: {node.name} has more than {_LONGEST_NAME} characters")
    found += [f"{name} is the name of several classes: {places}" for name, places in classes.items() if places[1:]]
    assert found == []
