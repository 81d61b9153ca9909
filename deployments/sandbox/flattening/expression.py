"""A path of a view, parsed once and evaluated on many elements of resources."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from deployments.sandbox.common.fhirpath import (
    EvaluationError,
    ExpressionError,
    Item,
    Node,
    data_of,
    element,
    evaluate,
    name_of,
    nodes,
    path_of,
    read,
)
from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.flattening.definition import PER_ELEMENT
from deployments.sandbox.flattening.functions import OWN, check
from deployments.sandbox.flattening.problem import ResourceError, ViewError


class StringWithExtensions(str):
    """A primitive value with its companion (``_birthDate``): id and extensions."""

    __slots__ = ("companion",)
    companion: dict[str, JsonValue]


class InputResource:
    """One resource of the request."""

    def __init__(self, data: dict[str, JsonValue], *, has_companions: bool) -> None:
        self.data = data
        self.has_companions = has_companions
        """True if there may be ids and extensions of primitives (``_birthDate``), or nulls that stand for them."""

        self._bare: dict[int, JsonValue] = {}
        self._whole: dict[int, JsonValue] = {}
        # The keys of each dictionary are ids of objects that the other dictionary keeps alive.

    def bare(self, value: JsonValue) -> JsonValue:
        """Return a copy of an element without companions; texts keep theirs (``StringWithExtensions``).

        The library treats the companion of a primitive (``_birthDate``) as a second item after its value, so that
        ``birthDate = @2000-01-01`` would compare two items with one.
        """
        copy = self._bare.get(id(value))
        return self._copied(value) if copy is None else copy

    def whole(self, value: JsonValue) -> JsonValue:
        """Return the original element of a copy; other values are returned unchanged."""
        return self._whole.get(id(value), value)

    def _copied(self, value: JsonValue) -> JsonValue:
        if isinstance(value, list):
            return [self._copied(item) for item in value if item is not None]
        if not isinstance(value, dict):
            return value
        copy = {
            key: _dressed(self._copied(item), item, value.get(f"_{key}"))
            for key, item in value.items()
            if key[:1] != "_" and item is not None
        }
        self._bare[id(value)], self._whole[id(copy)] = copy, value
        return copy


def _dressed(copy: JsonValue, original: JsonValue, companion: JsonValue) -> JsonValue:
    """Return the copy of a value, or of a list, with companions. Numbers and booleans cannot have one."""
    if isinstance(copy, list) and isinstance(original, list) and isinstance(companion, list):
        beside = [other for each, other in zip_longest(original, companion) if each is not None]
        return [_dressed(each, each, other) for each, other in zip(copy, beside, strict=False)]
    if not isinstance(copy, str) or not isinstance(companion, dict):
        return copy
    dressed = StringWithExtensions(copy)
    dressed.companion = companion
    return dressed


class Focus:
    """An element for expressions: the root of a resource, or a result of ``forEach``."""

    __slots__ = ("data", "index", "path", "resource")

    def __init__(self, data: JsonValue, path: str, index: int, resource: InputResource) -> None:
        self.data = data
        self.path = path
        """FHIR type, or the path of an element defined in place (``Observation.component``)."""
        self.index = index
        """Value of ``%rowIndex``."""
        self.resource = resource


_COMPANIONS = frozenset({"extension", "children", "descendants"})
"""Names that read extensions of primitives. Other expressions do not see extensions, because the library treats
``_gender`` as a second item after ``gender``, and ``gender = 'other'`` would be false."""


class ViewExpression:
    """A FHIRPath expression with the constants of its view."""

    def __init__(self, text: str, place: str, constants: Mapping[str, Any]) -> None:
        """Parse the expression. Raises ``ViewError``."""
        try:
            self._tree = read(text)
            check(self._tree, text, PER_ELEMENT.union(constants))
        except ExpressionError as error:
            raise ViewError(f"{place}: {error}") from None
        self.text = text
        self._constants = constants
        self._with_companions = any(_names(node) in _COMPANIONS for node in nodes(self._tree))
        self.is_row_index = text.strip() == "%rowIndex"

    def values(self, focus: Focus) -> list[JsonValue]:
        """Return the result on an element. Raises ``ResourceError``."""
        if self.is_row_index:
            return [focus.index]
        return [_plain(_data(item, focus.resource)) for item in self._evaluate(focus)]

    def elements(self, focus: Focus) -> list[Focus]:
        """Return the results as elements for further expressions, with their positions. Raises ``ResourceError``."""
        return [_focus(item, index, focus.resource) for index, item in enumerate(self._evaluate(focus))]

    def _evaluate(self, focus: Focus) -> list[Item]:
        resource, data = focus.resource, focus.data
        root: JsonValue = resource.data
        if resource.has_companions and not self._with_companions:
            root, data = resource.bare(root), resource.bare(data)
        # The library recognizes a resource by its type (Patient.name) only in the object itself.
        is_resource = isinstance(data, dict) and "resourceType" in data
        start = data if is_resource else element(data, focus.path)
        variables = {
            **self._constants,
            "resource": root,
            "rootResource": root,
            "rowIndex": focus.index,
        }
        starts = [start]
        if self._with_companions and isinstance(data, StringWithExtensions):
            starts.append(element(data.companion, focus.path))  # as in the library
        try:
            return evaluate(self._tree, starts, variables, OWN)
        except EvaluationError as error:
            raise ResourceError(f"the expression {self.text!r} cannot be evaluated: {error}") from None


def _focus(item: Item, index: int, resource: InputResource) -> Focus:
    """Return an item as an element; a computed value has no type."""
    return Focus(_data(item, resource), path_of(item), index, resource)


def _data(item: Item, resource: InputResource) -> JsonValue:
    """Return an item as complete JSON, including parts that the expression did not see."""
    return resource.whole(data_of(item))


def _plain(value: JsonValue) -> JsonValue:
    return str(value) if isinstance(value, StringWithExtensions) else value


def _names(node: Node) -> str | None:
    return name_of(node) if node["type"] == "Identifier" else None
