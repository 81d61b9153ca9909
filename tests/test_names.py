"""Names and docstrings that a program can judge (style.md, *Code* 2 and 4)."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

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
_Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _modules() -> list[tuple[str, ast.Module]]:
    """Return each Python file of the project, by its path from the root, with its syntax tree."""
    paths = sorted(path for directory in _DIRECTORIES for path in (ROOT / directory).rglob("*.py"))
    return [(str(path.relative_to(ROOT)), syntax_tree(path)) for path in paths]


def _definitions() -> Iterator[tuple[str, _Defined]]:
    """Yield every class and function, nested ones too, with its ``path:line``."""
    for path, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, _Defined):
                yield f"{path}:{node.lineno}", node


def _functions() -> Iterator[tuple[str, str]]:
    """Yield the name of every function with its ``path:line``."""
    for place, node in _definitions():
        if isinstance(node, _FUNCTIONS):
            yield place, node.name


def test_a_class_name_is_unique_in_the_project() -> None:
    places = defaultdict(list)
    for place, node in _definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(place)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_docstring_does_not_begin_with_a_question_word() -> None:
    texts = [(path, ast.get_docstring(tree) or "") for path, tree in _modules()]
    texts += [(place, ast.get_docstring(node) or "") for place, node in _definitions()]
    question = re.compile(r"(What|Whether|How|Where|Who|Why|When|Which)\b")
    assert [f"{place}: {text[:60]}" for place, text in texts if question.match(text)] == []


def test_no_function_is_named_by_a_bare_verb_of_saying_or_taking() -> None:
    bare = BARE_VERBS - FILE_PROTOCOL
    assert [f"{place}: {name}" for place, name in _functions() if name.strip("_") in bare] == []


def test_the_names_of_tests_are_short_enough_to_read() -> None:
    assert [f"{place}: {name}" for place, name in _functions() if len(name) > _LONGEST_NAME] == []


def test_the_checks_read_every_package() -> None:
    read = {path.split("/")[0] for path, _ in _modules()}
    assert read == set(_DIRECTORIES)
