"""What a method is to the run of the rules over a resource, and the labels that say what it did to one."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Final, Literal, Protocol

from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.pseudonymization.model import FhirElement
from deployments.sandbox.pseudonymization.problem import MalformedResourceError

Label = Literal["REDACTED", "ABSTRED", "CRYTOHASH", "PERTURBED", "SUBSTITUTED", "GENERALIZED", "PSEUDED"]
"""What happened; the spelling of CRYTOHASH is HL7's."""

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
    """Write the labels into a resource, each once, in the order above. Raises ``MalformedResourceError``."""
    if not labels:
        return
    meta = resource.setdefault("meta", {})
    security: Any = meta.setdefault("security", []) if isinstance(meta, dict) else None
    if not isinstance(security, list):
        raise MalformedResourceError("meta.security is not a list of codings.")
    present = {str(coding.get("code")).upper() for coding in security if isinstance(coding, dict)}
    security.extend(dict(_CODINGS[label]) for label in _CODINGS if label in labels and label not in present)


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


class MethodContext(Protocol):
    """The request that a method works for."""

    def note(self, label: Label) -> None:
        """Remember for ``meta.security`` what was done."""

    def seed(self) -> str:
        """The id of the resource that was sent, as it is now."""


class Method:
    """One method with the settings of one rule."""

    reach: ClassVar[Reach] = Reach.VALUES

    def value(self, value: JsonValue, element: FhirElement, work: MethodContext) -> JsonValue | None:
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
