"""The models of a lookup file: which keys each of its objects has, and what stands under them (document 3 §5).

A key that a model does not have is an error. Null counts as absent, as in a CRTDL. What elements say about each other
is checked in ``hierarchy.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from typing import Annotated, Any, Final

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
