"""Section 8: how well patients can be told apart by what is known of them elsewhere.

Patients that agree in birth year, sex and region are a class. What is published of classes are patients by the size of
their class, as disjoint cells (R4), and the risks in bands: the exact mean would tell the number of classes, the exact
highest risk the size of the smallest one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tasks.release_report.report.facts import Facts

Class = tuple[str, str, str]

BIRTH: Final = "Patient.birthDate"
SEX: Final = "Patient.gender"
REGION: Final = "Patient.address.postalCode"

_BANDS: Final = (5, 10, 20, 33, 50)
"""Percent: where the bands of the mean risk end."""


@dataclass(frozen=True)
class Risk:
    """Classes by their size: how many patients are in classes of each size."""

    sizes: Mapping[int, int]

    def between(self, least: int, most: int | None = None) -> int:
        """Patients in classes of these sizes, both ends included."""
        return sum(n for size, n in self.sizes.items() if size >= least and (most is None or size <= most))

    def below(self, k: int) -> int:
        """Patients in classes of fewer than ``k``."""
        return self.between(1, k - 1)

    @property
    def patients(self) -> int:
        """All of them."""
        return sum(self.sizes.values())

    def bands(self, k: int) -> dict[str, int]:
        """Patients alone, with few, with some, with many that are like them, by the words of the page's."""
        many = most_of_some(k)
        return {
            "@alone": self.between(1, 1),
            "@with-few": self.between(2, k - 1),
            "@with-some": self.between(k, many),
            "@with-many": self.between(many + 1),
        }

    def mean(self) -> str:
        """The mean risk to be found as one's class, in a band."""
        classes = sum(n / size for size, n in self.sizes.items())
        percent = 100 * classes / self.patients
        least = 0
        for most in _BANDS:
            if percent <= most:
                return f"{least}–{most} %"
            least = most
        return f"> {least} %"

    def highest(self, k: int) -> str:
        """The highest risk: that of one in the smallest class, exact only where this has ``k`` patients."""
        smallest = min(self.sizes, default=0)
        if smallest == 0:
            return ""
        return f"> 1/{k}" if smallest < k else f"≤ 1/{k}"


def most_of_some(k: int) -> int:
    """Where "k…10" ends: with a ``k`` above 5, at twice as many."""
    return max(10, 2 * k)


def risk_of(classes: Mapping[Class, int]) -> Risk:
    """Patients by the size of their class."""
    sizes: Counter[int] = Counter()
    for patients in classes.values():
        if patients > 0:
            sizes[patients] += patients
    return Risk(dict(sizes))


def classes_of(facts: Facts, *, years: int = 1, region: bool = True) -> dict[Class, int]:
    """The classes by the elements that ``report.quasi_identifiers`` names, with birth years in bands of ``years``."""
    counted = facts.settings.quasi_identifiers
    merged: Counter[Class] = Counter()
    for (birth, sex, place), patients in facts.leaving.classes.items():
        band = _band(birth, years) if BIRTH in counted else ""
        merged[band, sex if SEX in counted else "", place if region and REGION in counted else ""] += patients
    return dict(merged)


def _band(year: str, years: int) -> str:
    return str(int(year) // years * years) if year.isdigit() else year
