"""Elements of R4 with a choice of types or with a concept as type, to check the paths of a lookup file.

Real runners refuse a path that ends at a bare choice, and a code over a CodeableConcept (document 3 §5). The table
``r4_paths.json`` is made of the published definitions by ``tests/tasks/flattening/test_r4_paths.py``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tasks.flattening.lookup_model import SelectClause

_STEP: Final = re.compile(r"([A-Za-z_]\w*|\$this)(\((?:[^()']|'[^']*'|\([^()]*\))*\))?(?:\[\d+\])?(?:\.|$)")
_SAME: Final = frozenset({"first", "last", "single", "where", "tail", "skip", "take"})
"""Functions whose result is of the type that they are called on."""


class Elements(msgspec.Struct, frozen=True):
    """Those of one type, as paths below it: with a choice of types, and of the type CodeableConcept."""

    choices: frozenset[str] = frozenset()
    concepts: frozenset[str] = frozenset()


@functools.cache
def elements() -> dict[str, Elements]:
    """Elements by resource or data type; what has neither kind is missing."""
    return msgspec.json.decode((Path(__file__).parent / "r4_paths.json").read_bytes(), type=dict[str, Elements])


def oddities(resource_type: str | None, clause: SelectClause, context: str = "") -> Iterator[tuple[str, str]]:
    """Yield a reference and a sentence for each doubtful path of a clause.

    ``context`` is the path of what the clauses around it iterate over. Where that is a choice nothing more is odd.
    """
    each, outer = clause.iterated, context
    told = _kind(resource_type, context) == "choice"
    context = _joined(context, each) if each is not None else context
    if _kind(resource_type, context) == "choice":
        if each is not None and not told:
            yield _choice(each, _typed(resource_type, outer, each, None))
        return
    for column in clause.columns:
        path = column.path
        kind = _kind(resource_type, _joined(context, path))
        if kind == "choice":
            yield _choice(path, _typed(resource_type, context, path, column.type))
        elif kind == "concept" and (column.type or "").rpartition("/")[2][:1].islower():
            message = (
                f"the column {column.name} has the type {column.type}, and its path {path} leads to a CodeableConcept; "
                "a flattening service may refuse it: coding.code is a code, text a string"
            )
            yield "code-of-concept", message
    for below in clause.select:
        yield from oddities(resource_type, below, context)


def _choice(path: str, typed: str) -> tuple[str, str]:
    message = (
        f"the path {path} leads to an element with a choice of types; a flattening service may refuse it: "
        f"name the type, {typed}"
    )
    return "bare-choice", message


def _typed(resource_type: str | None, context: str, path: str, kind: str | None) -> str:
    """Return a path with the type of its first choice; ``kind`` is the type of its column."""
    at = 0
    while (step := _STEP.match(path, at)) is not None:
        at = step.end()
        before, behind = path[:at].removesuffix("."), path[at:]
        if _kind(resource_type, _joined(context, before)) == "choice":
            name = (kind or "").rpartition("/")[2] if not behind and "System." not in (kind or "") else ""
            typed = f"{before}.ofType({name or 'TYPE'})" + (f".{behind}" if behind else "")
            return typed if name else f"{typed}, as in effective.ofType(dateTime)"
    return "as in effective.ofType(dateTime)"


def _joined(context: str, path: str) -> str:
    return f"{context}.{path}" if context else path


def _kind(resource_type: str | None, path: str) -> str | None:
    """``choice`` for a path to or through a bare choice, ``concept`` for one to a CodeableConcept; ``None`` for all
    others, also where there is more in the path than names and the functions known here.
    """
    kind, names, at = resource_type or "", "", 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return None
        at = step.end()
        name, arguments = step[1], step[2]
        if name == "$this" or (arguments and name in _SAME) or (not names and name == kind):
            continue
        if arguments and name == "ofType":
            kind, names = arguments.strip("() ").removeprefix("FHIR."), ""
            continue
        if arguments and name != "extension":
            return None
        if _is_choice(kind, names):
            return "choice"
        if name in ("extension", "modifierExtension"):
            kind, names = "Extension", ""
        else:
            names = _joined(names, name)
    if _is_choice(kind, names):
        return "choice"
    concept = kind == "CodeableConcept" if not names else names in elements().get(kind, Elements()).concepts
    return "concept" if concept else None


def _is_choice(kind: str, names: str) -> bool:
    return names in elements().get(kind, Elements()).choices
