"""A resource under a view, and the elements of it that expressions are evaluated on."""

from __future__ import annotations

from functools import cached_property

from deployments.sandbox.flattening.jsontext import JsonValue


class Resource:
    """One resource of the request."""

    def __init__(self, data: dict[str, JsonValue], *, has_companions: bool) -> None:
        self.data = data
        self.has_companions = has_companions
        """Whether there may be ids and extensions of primitives (``_birthDate``), or nulls that stand for them."""

    @cached_property
    def bare(self) -> JsonValue:
        """The resource without them."""
        return bare(self.data)


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


def bare(value: JsonValue) -> JsonValue:
    """A copy without ids and extensions of primitives.

    The library has the companion of a primitive (``_birthDate``) as a second item beside its value, so that
    ``birthDate = @2000-01-01`` would compare two items with one.
    """
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if key[:1] != "_" and item is not None}
    if isinstance(value, list):
        return [bare(item) for item in value if item is not None]
    return value
