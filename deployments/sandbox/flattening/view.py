"""Check and compile a ViewDefinition. All errors in it are found here, before any resource is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from deployments.sandbox.common.r4 import CONCRETE_TYPES
from deployments.sandbox.flattening.clause import Clause, CompiledColumn, Iteration, Row, repeated
from deployments.sandbox.flattening.definition import (
    SelectDefinition,
    ViewColumnDefinition,
    ViewDefinition,
    read_constants,
    read_definition,
)
from deployments.sandbox.flattening.expression import Focus, InputResource, ViewExpression
from deployments.sandbox.flattening.problem import ResourceError, ViewError


class CompiledView:
    """A compiled view that creates rows from resources. Keeps no data of them."""

    def __init__(self, definition: ViewDefinition) -> None:
        """Compile a definition. Raises ``ViewError``."""
        if definition.resource not in CONCRETE_TYPES:
            raise ViewError(f"resource: {definition.resource!r} is not a resource type of FHIR R4")
        self.resource_type = definition.resource
        builder = _ViewCompiler(read_constants(definition.constant))
        self._where = tuple(
            builder.expression(each.path, f"where[{number}].path") for number, each in enumerate(definition.where)
        )
        clauses = builder.clauses(definition.select, "select")
        self._clause = Clause(cells=(), nested=clauses, union=(), iteration=None, or_null=False)
        self.columns = tuple(cell.name for cell in self._clause.columns)
        """Names of the columns, in order."""
        if not self.columns:
            raise ViewError("select: the view has no column")
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise ViewError(f"select: there is more than one column with the name {', '.join(twice)}")

    @classmethod
    def of(cls, text: bytes) -> CompiledView:
        """Return the view of a ViewDefinition in JSON. Raises ``ViewError``."""
        return cls(read_definition(text))

    def rows(self, resource: InputResource) -> list[Row]:
        """Return the rows of a resource, values in the order of ``columns``. Raises ``ResourceError``."""
        kind = resource.data.get("resourceType")
        if kind != self.resource_type:
            named = kind if isinstance(kind, str) and kind in CONCRETE_TYPES else "something else"
            raise ResourceError(f"the view is for {self.resource_type}, but a resource is {named}")
        focus = Focus(resource.data, self.resource_type, 0, resource)
        if not all(_is_true(condition, focus) for condition in self._where):
            return []
        return self._clause.rows(focus)


def _is_true(condition: ViewExpression, focus: Focus) -> bool:
    """Return True if a condition of ``where`` is true; empty is false. Raises ``ResourceError`` for a non-Boolean."""
    match condition.values(focus):
        case []:
            return False
        case [bool() as decided]:
            return decided
    raise ResourceError(f"where: the result of {condition.text!r} is not a Boolean")


class _ViewCompiler:
    """Compiles the clauses of one view."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._constants = constants

    def expression(self, text: str, place: str) -> ViewExpression:
        return ViewExpression(text, place, self._constants)

    def clauses(self, selects: tuple[SelectDefinition, ...], place: str) -> tuple[Clause, ...]:
        return tuple(self._clause(select, f"{place}[{number}]") for number, select in enumerate(selects))

    def _clause(self, select: SelectDefinition, place: str) -> Clause:
        union = self.clauses(select.union_all, f"{place}.unionAll")
        _check_branches(union, place)
        return Clause(
            cells=tuple(self._cell(column, f"{place}.column[{number}]") for number, column in enumerate(select.column)),
            nested=self.clauses(select.select, f"{place}.select"),
            union=union,
            iteration=self._iteration(select, place),
            or_null=select.for_each_or_null is not None,
        )

    def _cell(self, column: ViewColumnDefinition, place: str) -> CompiledColumn:
        if not column.name:
            raise ViewError(f"{place}.name: must not be empty")
        return CompiledColumn(column.name, self.expression(column.path, f"{place}.path"), bool(column.collection))

    def _iteration(self, select: SelectDefinition, place: str) -> Iteration | None:
        each, or_null = select.for_each, select.for_each_or_null
        if (each is not None) + (or_null is not None) + bool(select.repeat) > 1:
            raise ViewError(f"{place}: only one of forEach, forEachOrNull and repeat is allowed")
        if each is not None:
            return self.expression(each, f"{place}.forEach").elements
        if or_null is not None:
            return self.expression(or_null, f"{place}.forEachOrNull").elements
        if not select.repeat:
            return None
        return repeated(
            tuple(self.expression(path, f"{place}.repeat[{number}]") for number, path in enumerate(select.repeat))
        )


def _check_branches(union: tuple[Clause, ...], place: str) -> None:
    """Raise ``ViewError`` unless all branches of a union have the same columns in the same order."""
    names = [[cell.name for cell in branch.columns] for branch in union]
    for number, each in enumerate(names):
        if each != names[0]:
            raise ViewError(
                f"{place}.unionAll: columns mismatch: branch 0 has {', '.join(names[0]) or 'none'}, "
                f"branch {number} has {', '.join(each) or 'none'}"
            )
