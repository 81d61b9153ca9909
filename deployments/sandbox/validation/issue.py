"""Findings of the service, and the OperationOutcome for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

MESSAGES = "urn:sluice:sandbox:validation"
"""System of the message ids, which are specific to this service."""


class Message(Enum):
    """Message id, issue code, and the sentence in ``details.text``."""

    NOT_A_RESOURCE = ("Structure_Not_A_Resource", "structure", "This is not a FHIR R4 resource.")
    UNKNOWN_ELEMENT = ("Structure_Unknown_Element", "structure", "The element is not defined here.")
    WRONG_TYPE = ("Structure_Wrong_Type", "structure", "The value does not have the JSON type of the element.")
    LIST_EXPECTED = ("Structure_List_Expected", "structure", "The element repeats, so its value must be a list.")
    NO_LIST_EXPECTED = (
        "Structure_No_List_Expected",
        "structure",
        "The element occurs at most once, so its value must not be a list.",
    )
    EMPTY = ("Structure_Empty", "structure", "An element must have a value or children; omit an empty one.")
    TOO_DEEP = ("Structure_Too_Deep", "too-long", "Nested too deeply: deeper levels were not checked.")
    CHOICE = ("Structure_One_Of_A_Choice", "structure", "At most one type of a choice is allowed.")
    MINIMUM = ("Profile_Minimum", "required", "A required element is missing.")
    FORMAT = ("Value_Format", "value", "The value does not have the format of its type.")
    CODE = ("Value_Code", "code-invalid", "The code is not in the required list.")
    INVARIANT = ("Invariant", "invariant", "A rule of the specification is broken.")
    NOT_EVALUATED = (
        "Invariant_Not_Evaluated",
        "informational",
        "A rule could not be evaluated here: not checked.",
    )
    NO_FINDING = ("All_OK", "informational", "No issues detected during validation.")
    NOT_CHECKED = ("Not_Checked", "informational", "Checks that this service does not make.")

    def __init__(self, identity: str, code: str, text: str) -> None:
        self.id = identity
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class ElementPlace:
    """An element in a resource, as a chain: its FHIRPath is only computed for a finding."""

    step: str
    above: ElementPlace | None = None
    index: int | None = None

    @property
    def expression(self) -> str:
        """FHIRPath of the element, for example ``Bundle.entry[3].resource.ofType(Patient).name[0]``."""
        steps = []
        place: ElementPlace | None = self
        while place is not None:
            steps.append(place.step if place.index is None else f"{place.step}[{place.index}]")
            place = place.above
        return ".".join(reversed(steps))


@dataclass(frozen=True, slots=True)
class ValidatorIssue:
    """One finding or note."""

    message: Message
    place: ElementPlace | None
    diagnostics: str = field(repr=False)
    """Details for developers. May quote data, as real validators do; never written to a log."""
    severity: str = "error"
    rule: str = ""
    """Name of the invariant, for ``Message.INVARIANT``."""

    def to_json(self) -> dict[str, Any]:
        """Return an issue of an OperationOutcome."""
        message = f"{self.message.id}_{self.rule}" if self.rule else self.message.id
        issue: dict[str, Any] = {
            "severity": self.severity,
            "code": self.message.code,
            "details": {"coding": [{"system": MESSAGES, "code": message}], "text": self.message.text},
            "diagnostics": self.diagnostics,
        }
        if self.place is not None:
            issue["expression"] = [self.place.expression]
        return issue


def operation_outcome(issues: Iterable[ValidatorIssue]) -> bytes:
    """Return the OperationOutcome as JSON."""
    return msgspec.json.encode({"resourceType": "OperationOutcome", "issue": [each.to_json() for each in issues]})
