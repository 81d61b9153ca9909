"""The models of a lookup file: the keys of each of its objects, and which of its paths fit R4 (document 3 §5).

A key that a model does not have is an error. Null counts as absent, as in a CRTDL. Relations between elements are
checked in ``lookup.py``.

Real runners refuse a path that ends at a bare choice, and a code over a CodeableConcept. The table ``r4_paths.json`` is
made of the published definitions by ``tests/tasks/flattening/test_r4_paths.py``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from annotated_types import Predicate
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from config.fields import problem

SCHEMA_REFERENCE: Final = "lookup-schema-violation"

DEEPEST: Final = 16
"""Levels of clauses below an element's own. Far above every real one; keeps a view from nesting without end."""

TOO_DEEP: Final = f"select clauses are nested more than {DEEPEST} levels deep"

_TYPE = re.compile(r"[A-Z][A-Za-z]*\Z")


class _LookupPart(BaseModel):
    # Most starts of the program read no lookup file: the models are built when the first one is read.
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, defer_build=True)


def _check_type(name: str) -> str:
    if not _TYPE.match(name):
        raise problem(SCHEMA_REFERENCE, "must be the name of a resource type, such as Observation")
    return name


def _check_children(children: tuple[str, ...]) -> tuple[str, ...]:
    if twice := next((child for place, child in enumerate(children) if child in children[:place]), None):
        raise problem(SCHEMA_REFERENCE, f"the child {twice} is listed twice")
    return children


_Text = Annotated[StrictStr, Predicate(lambda text: bool(text.strip()))]
_NULL_IS_EMPTY = BeforeValidator(lambda value: () if value is None else value)
_NULL_IS_THIS = BeforeValidator(lambda value: "$this" if value is None else value)


class ColumnDefinition(_LookupPart):
    """One column. Without a ``path`` it holds what the clause iterates over, FHIRPath's ``$this``."""

    name: _Text
    path: Annotated[_Text, _NULL_IS_THIS] = "$this"
    type: _Text | None = None
    collection: StrictBool | None = None
    description: StrictStr | None = None


class SelectClause(_LookupPart):
    """Columns and clauses below them, once per resource or per item of ``for_each`` (at most one of both).

    The columns come before those of the clauses below, as in the rows of the answer.
    """

    for_each: _Text | None = None
    for_each_or_null: _Text | None = None
    columns: Annotated[list[ColumnDefinition], Field(alias="column"), _NULL_IS_EMPTY] = []
    select: Annotated[list[SelectClause], _NULL_IS_EMPTY] = []

    @field_validator("for_each_or_null")
    @classmethod
    def _check_one_of_both(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is not None and info.data.get("for_each") is not None:
            context = {"message": "has both forEach and forEachOrNull", "hint": "keep one of them", "above": True}
            raise PydanticCustomError(SCHEMA_REFERENCE, "{message}", context)
        return path

    @property
    def iterated(self) -> str | None:
        """Return the path of its ``forEach``, of either kind; ``None`` where it has none."""
        return self.for_each if self.for_each is not None else self.for_each_or_null

    def depth(self) -> int:
        """Return how many levels of clauses are below it."""
        return max((1 + part.depth() for part in self.select), default=0)

    def attach(self, child: SelectClause) -> None:
        """Put a clause below this one: with a ``forEach`` of its own it stays a clause, else it becomes part of it."""
        if child.iterated is not None:
            self.select.append(child)
        else:
            self.columns += child.columns
            self.select += child.select

    def prune(self) -> bool:
        """Drop clauses in which no column is left; whether this one has any."""
        self.select = [part for part in self.select if part.prune()]
        return bool(self.columns or self.select)

    def walk(self) -> Iterator[ColumnDefinition]:
        """Yield the columns in the order of the output."""
        yield from self.columns
        for part in self.select:
            yield from part.walk()

    def make_names_unique(self) -> list[tuple[str, str]]:
        """Give a column whose name an earlier one has a numbered suffix; the old and the new name of each.

        No name that stands in the lookup file is taken away by a suffix: ``code``, ``code``, ``code_2`` become
        ``code``, ``code_3``, ``code_2``.
        """
        written = {column.name for column in self.walk()}
        taken: set[str] = set()
        renamed: list[tuple[str, str]] = []
        for column in self.walk():
            old = column.name
            if old in taken:
                suffixed = (f"{old}_{number}" for number in count(2))
                column.name = next(name for name in suffixed if name not in written | taken)
                renamed.append((old, column.name))
            taken.add(column.name)
        return renamed

    def document(self) -> dict[str, Any]:
        """Return the clause as JSON, with the keys of a ViewDefinition and no empty one."""
        written = self.model_dump(by_alias=True, exclude_none=True, exclude={"columns", "select"})
        columns = [column.model_dump(exclude_none=True) for column in self.columns]
        below = {"column": columns, "select": [part.document() for part in self.select]}
        return written | {key: value for key, value in below.items() if value}


def _check_depth(clause: SelectClause) -> SelectClause:
    if clause.depth() > DEEPEST:
        raise problem(SCHEMA_REFERENCE, TOO_DEEP)
    return clause


class LookupElement(_LookupPart):
    """One element: the clause it becomes, and the elements of the same table that it names."""

    definition: Annotated[SelectClause, Field(alias="viewDefinition"), AfterValidator(_check_depth)]
    children: Annotated[tuple[_Text, ...], _NULL_IS_EMPTY, AfterValidator(_check_children)] = ()
    parent: _Text | None = None


class LookupTable(_LookupPart):
    """The columns for the elements of a profile, by element id; ``url`` is the canonical URL of the profile."""

    url: _Text
    resource_type: Annotated[_Text, AfterValidator(_check_type)]
    elements: dict[_Text, LookupElement]


def known_keys(place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the object at ``place`` below a table may have."""
    model: type[_LookupPart] = SelectClause
    if len(place) in (0, 2):
        model = LookupElement if place else LookupTable
    elif place[-2] == "column":
        model = ColumnDefinition
    return [field.alias or name for name, field in model.model_fields.items()]


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
