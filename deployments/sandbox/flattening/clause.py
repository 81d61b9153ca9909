"""A compiled select clause, and the rows it creates from an element (SQL on FHIR v2, "Processing algorithm")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deployments.sandbox.common.json_text import JsonValue, encode
from deployments.sandbox.flattening.expression import Focus, ViewExpression
from deployments.sandbox.flattening.problem import CollectionValueError, ResourceError

Row = tuple[JsonValue, ...]
Iteration = Callable[[Focus], list[Focus]]
"""Returns the elements that a clause creates rows from."""
_DEEPEST = 200
_SHOWN = 200


@dataclass(frozen=True)
class CompiledColumn:
    """A compiled column."""

    name: str
    expression: ViewExpression
    collection: bool

    def value(self, focus: Focus) -> JsonValue:
        """Return the value, or None. Raises ``ResourceError``, ``CollectionValueError`` for several values."""
        values = self.expression.values(focus)
        if self.collection:
            return values
        if len(values) > 1:
            shown = encode(values).decode()[:_SHOWN]
            raise CollectionValueError(self.name, self.expression.text, shown)
        return values[0] if values else None


@dataclass(frozen=True)
class Clause:
    """Columns, nested clauses and the branches of a union, all combined with each other."""

    cells: tuple[CompiledColumn, ...]
    nested: tuple[Clause, ...]
    union: tuple[Clause, ...]
    iteration: Iteration | None
    """None: the element itself."""
    or_null: bool
    """True if no element creates one row without values."""

    @property
    def columns(self) -> tuple[CompiledColumn, ...]:
        """All columns in the order of the row; the branches of a union share columns."""
        below = [*self.nested, *self.union[:1]]
        return self.cells + tuple(cell for clause in below for cell in clause.columns)

    def rows(self, focus: Focus) -> list[Row]:
        """Return the rows of an element. Raises ``ResourceError``."""
        if self.iteration is None:
            return self._rows(focus)
        elements = self.iteration(focus)
        if not elements and self.or_null:
            return [tuple(0 if cell.expression.is_row_index else None for cell in self.columns)]
        return [row for element in elements for row in self._rows(element)]

    def _rows(self, focus: Focus) -> list[Row]:
        rows: list[Row] = [tuple([cell.value(focus) for cell in self.cells])]
        for clause in self.nested:
            rows = _product(rows, clause.rows(focus))
        if self.union:
            rows = _product(rows, [row for branch in self.union for row in branch.rows(focus)])
        return rows


def _product(left: list[Row], right: list[Row]) -> list[Row]:
    return [first + second for first in left for second in right]


def repeated(paths: tuple[ViewExpression, ...]) -> Iteration:
    """Return the iteration of ``repeat``: results of the paths, recursively, depth first, counted together."""

    def iterate(focus: Focus) -> list[Focus]:
        found: list[Focus] = []
        _descend(paths, focus, found, _DEEPEST)
        for index, element in enumerate(found):
            element.index = index
        return found

    return iterate


def _descend(paths: tuple[ViewExpression, ...], focus: Focus, found: list[Focus], depth: int) -> None:
    for path in paths:
        for element in path.elements(focus):
            if depth == 0:
                raise ResourceError(f"repeat of {path.text!r} goes deeper than {_DEEPEST} levels")
            found.append(element)
            _descend(paths, element, found, depth - 1)
