"""Section 8: how well patients can be told apart by what is known of them elsewhere.

Patients that agree in birth year, sex and region are a class. What is published of classes are patients by the size of
their class, as disjoint cells (R4), and the risks in bands: the exact mean would tell the number of classes, the exact
highest risk the size of the smallest one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tasks.release_report.publication import HIDDEN, QUARTILES_FROM, possible_range
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.outline import Parts, fact, table

BIRTH: Final = "Patient.birthDate"
SEX: Final = "Patient.gender"
REGION: Final = "Patient.address.postalCode"

_BANDS: Final = (5, 10, 20, 33, 50)
"""Percent: where the bands of the mean risk end."""


def patients_apart(facts: ReportFacts, show: Disclosure) -> Parts:
    """Yield section 8. Each row is a way to count: as it is, with birth years in bands, without the region."""
    if not facts.leaving.classes:
        yield "no-classes"
        return
    counted = facts.settings.quasi_identifiers
    regions = REGION in counted and any(region for _, _, region in facts.leaving.classes)
    rows: list[list[Value]] = []
    withheld = False
    for name, years, region in (
        ("@as-it-is", 1, True),
        ("@years-5", 5, True),
        ("@years-10", 10, True),
        *((("@without-region", 1, False), ("@years-10-without-region", 10, False)) if regions else ()),
    ):
        sizes = class_sizes(facts, years=years, region=region)
        bands = size_bands(sizes, show.k)
        cells = show.cells(bands)
        many = possible_range(sizes.total(), show.k, rounded=show.recipient)[0] >= QUARTILES_FROM * show.k
        withheld = withheld or cells.other is not None
        shown = [cells.shown.get(band, HIDDEN) for band in bands]
        rows.append([name, *shown, mean_risk(sizes) if many else HIDDEN, _highest_risk(sizes, show.k)])
    yield "outside-knowledge"
    yield fact("quasi_identifiers", ", ".join(counted))
    if regions:
        yield fact("region_prefix", facts.settings.region_prefix)
    yield table("apart", rows, withheld=withheld)


def class_sizes(facts: ReportFacts, *, years: int = 1, region: bool = True) -> Counter[int]:
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
            place if region and REGION in counted else "",
        ] += patients
    sizes: Counter[int] = Counter()
    for patients in merged.values():
        if patients > 0:
            sizes[patients] += patients
    return sizes


def size_bands(sizes: Mapping[int, int], k: int) -> dict[str, int]:
    """Return the patients alone, with few, with some, with many that are like them, by the words of the page's."""
    bands = {"@alone": 1, "@with-few": k - 1, "@with-some": most_of_some(k)}
    found = dict.fromkeys([*bands, "@with-many"], 0)
    for size, patients in sizes.items():
        found[next((name for name, most in bands.items() if size <= most), "@with-many")] += patients
    return found


def below_k(sizes: Mapping[int, int], k: int) -> int:
    """Return the patients in classes of fewer than ``k``."""
    return sum(patients for size, patients in sizes.items() if size < k)


def mean_risk(sizes: Counter[int]) -> str:
    """Return the mean risk to be found as one's class, in a band."""
    classes = sum(patients / size for size, patients in sizes.items())
    percent = 100 * classes / sizes.total()
    least = 0
    for most in _BANDS:
        if percent <= most:
            return f"{least}–{most} %"
        least = most
    return f"> {least} %"


def _highest_risk(sizes: Mapping[int, int], k: int) -> str:
    """Return the risk of a patient in the smallest class, exact only where this has ``k`` patients."""
    if not sizes:
        return HIDDEN
    return f"> 1/{k}" if min(sizes) < k else f"≤ 1/{k}"


def most_of_some(k: int) -> int:
    """Return where "k…10" ends: with a ``k`` above 5, at twice as many."""
    return max(10, 2 * k)
