"""A select clause of a ViewDefinition, as far as a lookup file may use it (document 3 §5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """One column. Without a ``path`` it holds what the clause iterates over, FHIRPath's ``$this``."""

    name: str
    path: str | None = None
    type: str | None = None
    collection: bool | None = None
    description: str | None = None


@dataclass(frozen=True, slots=True)
class SelectClause:
    """Columns and clauses below them, once per resource or per item of ``for_each`` (at most one of both)."""

    for_each: str | None = None
    for_each_or_null: str | None = None
    columns: tuple[ColumnDefinition, ...] = ()
    select: tuple[SelectClause, ...] = ()

    @property
    def iterates(self) -> bool:
        """Whether it has a ``forEach`` of its own, of either kind."""
        return self.for_each is not None or self.for_each_or_null is not None
