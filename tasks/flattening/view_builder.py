"""A select clause while a view is being put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from tasks.flattening.where_clause import ColumnDefinition, SelectClause


@dataclass(slots=True)
class Draft:
    """A clause that grows. Its columns come before those of the clauses below it, as in the rows of the answer."""

    for_each: str | None = None
    for_each_or_null: str | None = None
    columns: list[ColumnDefinition] = field(default_factory=list)
    selects: list[Draft] = field(default_factory=list)

    @classmethod
    def of(cls, clause: SelectClause) -> Draft:
        """A draft of a clause of the lookup file."""
        below = [cls.of(part) for part in clause.select]
        return cls(clause.for_each, clause.for_each_or_null, list(clause.columns), below)

    def attach(self, child: Draft) -> None:
        """Put a clause below this one: with a ``forEach`` of its own it stays a clause, else it becomes part of it."""
        if child.for_each is not None or child.for_each_or_null is not None:
            self.selects.append(child)
        else:
            self.columns += child.columns
            self.selects += child.selects

    def prune(self) -> bool:
        """Drop clauses in which no column is left; whether this one has any."""
        self.selects = [part for part in self.selects if part.prune()]
        return bool(self.columns or self.selects)

    def walk(self) -> Iterator[ColumnDefinition]:
        """The columns in the order of the output."""
        yield from self.columns
        for part in self.selects:
            yield from part.walk()

    def make_names_unique(self) -> list[tuple[str, str]]:
        """Give a column whose name an earlier one has a numbered suffix; the old and the new name of each.

        No name that stands in the lookup file is taken away by a suffix: ``code``, ``code``, ``code_2`` become
        ``code``, ``code_3``, ``code_2``.
        """
        renamed: list[tuple[str, str]] = []
        self._rename({column.name for column in self.walk()}, set(), renamed)
        return renamed

    def _rename(self, written: set[str], taken: set[str], renamed: list[tuple[str, str]]) -> None:
        for position, column in enumerate(self.columns):
            name = column.name
            if name in taken:
                suffixed = (f"{name}_{number}" for number in count(2))
                name = next(candidate for candidate in suffixed if candidate not in written | taken)
                renamed.append((column.name, name))
                self.columns[position] = replace(column, name=name)
            taken.add(name)
        for part in self.selects:
            part._rename(written, taken, renamed)  # noqa: SLF001 - of the same class

    def document(self) -> dict[str, Any]:
        """The clause as JSON, with the keys of a ViewDefinition and no empty one."""
        document: dict[str, Any] = {}
        if self.for_each is not None:
            document["forEach"] = self.for_each
        if self.for_each_or_null is not None:
            document["forEachOrNull"] = self.for_each_or_null
        if self.columns:
            document["column"] = [_column(column) for column in self.columns]
        if self.selects:
            document["select"] = [part.document() for part in self.selects]
        return document


def _column(column: ColumnDefinition) -> dict[str, Any]:
    document: dict[str, Any] = {"name": column.name, "path": column.path or "$this"}
    optional = {"type": column.type, "collection": column.collection, "description": column.description}
    return document | {key: value for key, value in optional.items() if value is not None}
