"""The error references of the source, collected from its syntax trees: a new one is found without being run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

_REFERENCE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

# Arguments of these are names of other people's things: headers, codecs, loggers.
_FOREIGN = {"get", "decode", "encode", "getLogger", "getincrementaldecoder", "split", "partition", "strip", "Literal"}
_FOREIGN |= {"startswith", "endswith", "removeprefix", "removesuffix", "replace", "setdefault", "pop", "join", "option"}
_FOREIGN |= {"str", "add_argument", "argument", "Choice", "group", "command", "environ", "getenv", "header", "Header"}
_FOREIGN |= {"_only", "get_list", "getlist"}  # a type of filter, a header

# Calls that make an error or a finding: there, a reference may also be one word.
_MAKERS = {"Finding", "problem", "Problem", "error"}

# References that only ``config.enrichments`` puts together: those of its readers and of pydantic, behind a prefix.
ENRICHMENT = {"required-key", "unknown-key", "wrong-type", "out-of-range", "control-character"}


_WORDED = {
    "build.py",
    "changes.py",
    "completeness.py",
    "facts.py",
    "findings.py",
    "kinds.py",
    "outline.py",
    "risk.py",
    "disclosure.py",
}


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module, which several tests look at."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def references() -> frozenset[str]:
    """Return every reference that the program can show."""
    found = {reference for path in _sources() for reference in _in(syntax_tree(path))}
    return frozenset(found - {"enrichment-enrichment"} | {f"enrichment-{name}" for name in ENRICHMENT} | {"usage"})


def _sources() -> Iterator[Path]:
    for package in ("config", "tasks", "flows", "deployments"):
        for path in (ROOT / package).rglob("*.py"):
            if "sandbox" not in path.parts and not _is_worded(path):  # the sandbox is no part of the client
                yield path


def _is_worded(path: Path) -> bool:
    """Return whether a module names words of the release report, which test_words compares with the word list."""
    return path.parent.name == "sections" or (path.parent.parent.name == "release_report" and path.name in _WORDED)


def _in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            one_word = name.endswith("Error") or name in _MAKERS
            if name not in _FOREIGN:
                for argument in node.args[:3]:
                    yield from _texts(argument, one_word=one_word and argument is not node.args[0])
                if one_word and node.args:
                    yield from _texts(node.args[0], one_word=len(node.args) > 1)
            for keyword in node.keywords:
                if keyword.arg == "reference":
                    yield from _texts(keyword.value, one_word=True)
        elif isinstance(node, ast.Assign):
            if any("reference" in ast.unparse(target).lower() for target in node.targets):
                yield from _texts(node.value, one_word=True)
        elif isinstance(node, ast.Tuple) and node.elts:
            yield from _texts(node.elts[0], one_word=False)
        elif isinstance(node, ast.arguments):
            yield from _defaults(node)


def _defaults(parameters: ast.arguments) -> Iterator[str]:
    for one, default in zip(reversed(parameters.args), reversed(parameters.defaults), strict=False):
        if one.arg == "reference":
            yield from _texts(default, one_word=True)


def _texts(node: ast.expr, *, one_word: bool) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body, one_word=one_word)
        yield from _texts(node.orelse, one_word=one_word)
    elif isinstance(node, ast.Tuple) and node.elts:
        yield from _texts(node.elts[0], one_word=one_word)
    elif (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _REFERENCE.fullmatch(node.value)
        and (one_word or "-" in node.value)
    ):
        yield node.value
