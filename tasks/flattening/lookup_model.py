"""The models of a lookup file: the keys of each of its objects (document 3 §5).

A key that a model does not have is an error. Null counts as absent, as in a CRTDL. Relations between elements are
checked in ``lookup.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictStr, model_validator
from pydantic.alias_generators import to_camel


class _LookupPart(BaseModel):
    # Most starts of the program read no lookup file: the models are built when the first one is read.
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, defer_build=True)


_Text = Annotated[StrictStr, Field(pattern=r"\S")]
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

    @model_validator(mode="after")
    def _check_one_of_both(self) -> Self:
        if self.for_each is not None and self.for_each_or_null is not None:
            raise ValueError("has both forEach and forEachOrNull: keep one of them")
        return self

    @property
    def iterated(self) -> str | None:
        """Return the path of its ``forEach``, of either kind; ``None`` where it has none."""
        return self.for_each if self.for_each is not None else self.for_each_or_null

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


class LookupElement(_LookupPart):
    """One element: the clause it becomes, and the elements of the same table that it names."""

    definition: Annotated[SelectClause, Field(alias="viewDefinition")]
    children: Annotated[tuple[_Text, ...], _NULL_IS_EMPTY] = ()
    parent: _Text | None = None


class LookupTable(_LookupPart):
    """The columns for the elements of a profile, by element id; ``url`` is the canonical URL of the profile."""

    url: _Text
    resource_type: Annotated[StrictStr, Field(pattern=r"^[A-Z][A-Za-z]*$")]
    elements: dict[_Text, LookupElement]
