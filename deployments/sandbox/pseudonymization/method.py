"""Interface of the methods of rules, and the labels for their changes to a resource."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Final, Literal, Protocol

from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.pseudonymization.model import FhirElement
from deployments.sandbox.pseudonymization.problem import MalformedResourceError

Label = Literal["REDACTED", "ABSTRED", "CRYTOHASH", "PERTURBED", "SUBSTITUTED", "GENERALIZED", "PSEUDED"]
"""Kind of change; the spelling of CRYTOHASH is HL7's."""

_SYSTEM = "http://terminology.hl7.org/CodeSystem/v3-ObservationValue"
_CODINGS: Final[dict[Label, dict[str, str]]] = {
    "REDACTED": {"system": _SYSTEM, "code": "REDACTED", "display": "redacted"},
    "ABSTRED": {"system": _SYSTEM, "code": "ABSTRED", "display": "abstracted"},
    "CRYTOHASH": {"system": _SYSTEM, "code": "CRYTOHASH", "display": "cryptographic hash function"},
    "PERTURBED": {"code": "PERTURBED", "display": "exact value is replaced with another exact value"},
    "SUBSTITUTED": {"code": "SUBSTITUTED", "display": "exact value is replaced with a predefined value"},
    "GENERALIZED": {"code": "GENERALIZED", "display": "exact value is replaced with a general value"},
    "PSEUDED": {"system": _SYSTEM, "code": "PSEUDED", "display": "pseudonymized"},
}


def add_labels(resource: dict[str, JsonValue], labels: set[Label]) -> None:
    """Add the labels to a resource, each once, in the order above. Raises ``MalformedResourceError``."""
    if not labels:
        return
    meta = resource.setdefault("meta", {})
    security: Any = meta.setdefault("security", []) if isinstance(meta, dict) else None
    if not isinstance(security, list):
        raise MalformedResourceError("meta.security is not a list of codings.")
    present = {str(coding.get("code")).upper() for coding in security if isinstance(coding, dict)}
    security.extend(dict(_CODINGS[label]) for label in _CODINGS if label in labels and label not in present)


class Reach(Enum):
    """Part of an element that a method changes."""

    VALUES = "values"
    """Every value at and below the element, one by one."""
    NOTHING = "nothing"
    """Nothing: the method only protects the element from later rules."""
    ELEMENT = "element"
    """The element as a whole, with everything in it."""
    SUBSTITUTE = "substitute"
    """The content of the element, which is replaced."""


class MethodContext(Protocol):
    """Context of a method: the resource being processed."""

    def note(self, label: Label) -> None:
        """Add a label for ``meta.security``."""

    def seed(self) -> str:
        """Return the current id of the resource that was sent."""


class Method:
    """A method with the settings of one rule."""

    reach: ClassVar[Reach] = Reach.VALUES

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
        """Return the new value of a primitive, or None to remove it.

        Raises ``ProcessingFailureError`` for a value that cannot be handled.
        """
        del element, work
        return value


class Keep(Method):
    """Method keep: the element stays unchanged, and no later rule handles it."""

    reach = Reach.NOTHING


class Remove(Method):
    """Method remove: the element is removed, including a resource in it."""

    reach = Reach.ELEMENT
