"""Find the patient of a resource, and count patients in classes of birth year, sex and region.

In a pass only the hashes of the patients' ids grow with the data.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tasks.release_report.dates import year_of
from tasks.release_report.measured import PatientClass
from tasks.shared.fhir.resource import target_of

_SUBJECTS: Final = ("subject", "patient", "beneficiary")
_TYPED: Final = re.compile(r"(.*/)?[A-Z][A-Za-z]+(/|\?)")


class Patients:
    """The distinct patients of a delivery."""

    def __init__(self, region_prefix: int) -> None:
        self.classes: Counter[PatientClass] = Counter()
        self._region_prefix = region_prefix
        self._known: dict[int, bool] = {}
        """Hash of an id → whether the patient is in a class."""

    def __len__(self) -> int:
        return len(self._known)

    def know(self, own: str) -> int:
        """Count a patient; return the hash of the id."""
        found = hash(own)
        self._known.setdefault(found, False)
        return found

    def classify(self, patient: int, resource: Mapping[str, Any]) -> None:
        """Count a Patient resource in its class, once for each patient."""
        if self._known.get(patient, True):
            return
        self._known[patient] = True
        born, sex = year_of(resource.get("birthDate")), _text(resource.get("gender"))
        self.classes[born, sex, self._region(resource)] += 1

    def _region(self, resource: Mapping[str, Any]) -> str:
        addresses = resource.get("address")
        for address in addresses if isinstance(addresses, list) else ():
            code = _text(address.get("postalCode")) if isinstance(address, dict) else ""
            if code:
                return code[: self._region_prefix]
        return ""


def subject_of(resource: Mapping[str, Any]) -> str | None:
    """Return the reference of a resource to its patient; ``None`` without one."""
    for name in _SUBJECTS:
        value = resource.get(name)
        reference = value.get("reference") if isinstance(value, dict) else None
        if isinstance(reference, str):
            return reference
    return None


def patient_of(reference: str, full_urls: Mapping[str, str]) -> str | None:
    """Return the id of the patient that a reference leads to; ``None`` if it leads to somebody or something else.

    ``full_urls`` are those of the patients on the same line.
    """
    if reference in full_urls:
        return full_urls[reference]
    if reference.startswith("urn:uuid:"):
        return reference.removeprefix("urn:uuid:")
    kind, _, own = (target_of(reference) or "").partition("/")
    return own if kind == "Patient" else None


def is_lost(reference: str) -> bool:
    """Return whether a reference to a patient has lost its type, so that it leads nowhere."""
    return not reference.startswith(("#", "urn:")) and _TYPED.match(reference) is None


def class_sizes(classes: Mapping[PatientClass, int], by: Iterable[bool], *, years: int = 1) -> Counter[int]:
    """Return size of a class → number of patients in such classes. ``by`` has a flag for birth year, sex and region;
    birth years are in bands of ``years``."""
    counts = tuple(by)
    merged: Counter[tuple[str, ...]] = Counter()
    for (birth, *others), patients in classes.items():
        year = str(int(birth) // years * years) if birth else ""
        merged[tuple(part if is_in else "" for part, is_in in zip((year, *others), counts, strict=True))] += patients
    sizes: Counter[int] = Counter()
    for patients in merged.values():
        sizes[patients] += patients
    return sizes


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
