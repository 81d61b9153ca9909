"""What a method is to the run of the rules over a resource."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Protocol

from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.pseudonymization.model import Element
from deployments.sandbox.pseudonymization.security import Label


class Reach(Enum):
    """What a method acts upon."""

    VALUES = "values"
    """Every value at and below the element, one by one."""
    NOTHING = "nothing"
    """It only protects the element from later rules."""
    ELEMENT = "element"
    """The element goes as a whole, with everything in it."""
    SUBSTITUTE = "substitute"
    """The element gets a given content."""


class Work(Protocol):
    """The request that a method works for."""

    def note(self, label: Label) -> None:
        """Remember for ``meta.security`` what was done."""

    def seed(self) -> str:
        """The id of the resource that was sent, as it is now."""


class Method:
    """One method with the settings of one rule."""

    reach: ClassVar[Reach] = Reach.VALUES

    def value(self, value: JsonValue, element: Element, work: Work) -> JsonValue | None:
        """The value in the place of a primitive one, None to take it away.

        Raises ``ProcessingFailureError`` for a value that cannot be handled.
        """
        del element, work
        return value


class Keep(Method):
    """keep: the element stays, and no later rule touches it."""

    reach = Reach.NOTHING


class Remove(Method):
    """remove: the element goes, including a resource in it."""

    reach = Reach.ELEMENT
