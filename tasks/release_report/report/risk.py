"""Section 8: how well patients can be told apart by what is known of them elsewhere.

Patients that agree in birth year, sex and region are a class. The section has the patients by the size of their class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.outline import Parts, fact, table

BIRTH: Final = "Patient.birthDate"
SEX: Final = "Patient.gender"
REGION: Final = "Patient.address.postalCode"


def patients_apart(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 8. Each row is a way to count: as it is, and with birth years in bands."""
    if not facts.leaving.classes:
        yield "no-classes"
        return
    counted = facts.settings.quasi_identifiers
    rows: list[list[Value]] = []
    for name, years in (("@as-it-is", 1), ("@years-5", 5)):
        sizes = class_sizes(facts, years=years)
        alone, few = sizes[1], below_k(sizes, show.k)
        rows.append([name, *map(show.count, (alone, few - alone, sizes.total() - few))])
    yield "outside-knowledge"
    yield fact("quasi_identifiers", ", ".join(counted))
    if REGION in counted:
        yield fact("region_prefix", facts.settings.region_prefix)
    yield table("apart", rows)


def class_sizes(facts: ReportFacts, *, years: int = 1) -> Counter[int]:
    """Return how many patients are in classes of each size.

    Classes are made by the elements that ``report.quasi_identifiers`` names, with birth years in bands of ``years``.
    """
    counted = facts.settings.quasi_identifiers
    merged: Counter[tuple[str, str, str]] = Counter()
    for (birth, sex, place), patients in facts.leaving.classes.items():
        year = str(int(birth) // years * years) if birth.isdigit() else birth
        merged[
            year if BIRTH in counted else "",
            sex if SEX in counted else "",
            place if REGION in counted else "",
        ] += patients
    sizes: Counter[int] = Counter()
    for patients in merged.values():
        if patients > 0:
            sizes[patients] += patients
    return sizes


def below_k(sizes: Mapping[int, int], k: int) -> int:
    """Return the patients in classes of fewer than ``k``."""
    return sum(patients for size, patients in sizes.items() if size < k)
