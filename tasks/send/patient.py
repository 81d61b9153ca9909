"""Whom a resource on a line of its own concerns: what is sent of one patient goes in one sequence (document 3 §7)."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tasks.shared.fhir.bundle import Resource

_PATIENT: Final = re.compile(r"(?:.*/)?Patient/([A-Za-z0-9\-.]{1,64})(?:/_history/.*)?")


class _Concerns(msgspec.Struct, gc=False):
    """The elements of R4 that name the patient of a resource."""

    subject: Any = None
    patient: Any = None
    beneficiary: Any = None


_concerns = msgspec.json.Decoder(_Concerns)


def patient_of(resource: Resource) -> str | None:
    """The id of the Patient that it is, or refers to as its own; ``None`` when nobody knows."""
    if resource.type == "Patient":
        return resource.id
    try:
        found = _concerns.decode(resource.raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    for value in (found.subject, found.patient, found.beneficiary):
        reference = value.get("reference") if isinstance(value, dict) else None
        match = _PATIENT.fullmatch(reference) if isinstance(reference, str) else None
        if match:
            return match[1]
    return None
