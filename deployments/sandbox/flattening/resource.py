"""A resource under a view, and the elements of it that expressions are evaluated on."""

from __future__ import annotations

from itertools import zip_longest

from deployments.sandbox.common.json_text import JsonValue


class Dressed(str):
    """A primitive value with its companion (``_birthDate``): id and extensions."""

    __slots__ = ("companion",)
    companion: dict[str, JsonValue]


class Resource:
    """One resource of the request."""

    def __init__(self, data: dict[str, JsonValue], *, has_companions: bool) -> None:
        self.data = data
        self.has_companions = has_companions
        """Whether there may be ids and extensions of primitives (``_birthDate``), or nulls that stand for them."""

        self._bare: dict[int, JsonValue] = {}
        self._whole: dict[int, JsonValue] = {}
        # Each of the two keeps alive what the other one knows by its id.

    def bare(self, value: JsonValue) -> JsonValue:
        """A copy of an element without them; texts know theirs (``Dressed``).

        The library has the companion of a primitive (``_birthDate``) as a second item beside its value, so that
        ``birthDate = @2000-01-01`` would compare two items with one.
        """
        copy = self._bare.get(id(value))
        return self._copied(value) if copy is None else copy

    def whole(self, value: JsonValue) -> JsonValue:
        """The element that a copy was made of; anything else is itself."""
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
    """The copy of a value, or of a list of values, with what stands beside it. Numbers and booleans go without."""
    if isinstance(copy, list) and isinstance(original, list) and isinstance(companion, list):
        beside = [other for each, other in zip_longest(original, companion) if each is not None]
        return [_dressed(each, each, other) for each, other in zip(copy, beside, strict=False)]
    if not isinstance(copy, str) or not isinstance(companion, dict):
        return copy
    dressed = Dressed(copy)
    dressed.companion = companion
    return dressed


class Focus:
    """An element: the root of a resource, or one that ``forEach`` found."""

    __slots__ = ("data", "index", "path", "resource")

    def __init__(self, data: JsonValue, path: str, index: int, resource: Resource) -> None:
        self.data = data
        self.path = path
        """Its FHIR type, or the path of an element defined in place (``Observation.component``)."""
        self.index = index
        """``%rowIndex``."""
        self.resource = resource
