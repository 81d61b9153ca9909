"""Publication rules: numbers of patients that others may read (document 5, rules of publication R1 to R11).

The release report uses this module for small numbers and for quotes from the data. Its functions take exact
numbers of patients, as a measuring pass or a service counts them, and return publishable values: ``Count``, cells,
texts. Their results never determine a number of patients from 1 to ``k`` - 1 (promise 1), not even for a reader who has
the number of all patients, all categories, and these functions.

Numbers below ``k`` are withheld, all others are rounded to 5 (R2). Resources, lines and bytes are not patients, but
their number is the same if each patient has one. They are rounded, a total is the sum of its printed parts, and they
are never printed as fewer than the patients next to them may be (R1).

An alarm is not suppressed (R9): its number is a ``Count`` like any other, and ``fewer`` for a single patient. Two
reports are compared (R10) by the results of these functions, never by the exact numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

ROUNDED_TO: Final = 5
"""R2: the base of all rounding, in patients."""

COARSE: Final = 50
"""R6: the base for resources and lines in the recipient's copy, unless two digits are coarser."""

RECIPIENT_K: Final = 11
"""R2: ``k`` of the recipient's copy, which is made for people outside the hospital."""

QUARTILES_FROM: Final = 4
"""R8 and R11: patients needed, in multiples of ``k``, for quartiles and for "all" next to a code."""

LEFT_OUT: Final = "…"
"""Replaces a withheld name or number in a sentence."""

HIDDEN: Final = "@withheld"
"""Replaces a withheld number or text; the page looks up its word by this name."""


class Count(BaseModel):
    """Number of patients in a form that may be published (R3).

    ``number`` is the rounded count of ``about``, and k where there are ``fewer`` than k, or ``all_but_fewer`` than k.
    ``some`` means at least one; it is used where a more exact word would reveal the number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: Literal["none", "some", "fewer", "about", "all", "all_but_fewer"]
    number: int | None = None


NONE: Final = Count(word="none")
SOME: Final = Count(word="some")
ALL: Final = Count(word="all")


def recipients_k(k: int) -> int:
    """R2: ``k`` of the recipient's copy is 11, or that of the in-house copy if it is larger."""
    return max(k, RECIPIENT_K)


def rounded(number: int, to: int = ROUNDED_TO) -> int:
    """Return the next multiple of 5 (R2), or of ``to``."""
    return (number + to // 2) // to * to


def technical(number: int, *, recipient: bool = False) -> int:
    """Return a number of resources or lines rounded to 5 (R1), and never 0 where there are any.

    In the recipient's copy it is rounded to 50 or to two digits, whichever is coarser (R6).
    """
    base = max(COARSE, 10 ** (len(str(number)) - 2)) if recipient else ROUNDED_TO
    return max(rounded(number, base), base) if number > 0 else 0


def _about(patients: int, k: int) -> int:
    """R3: rounded to 5 and never below ``k``; a ``k`` that would be the only number rounded to it goes up."""
    if k % ROUNDED_TO == 2 and patients == k:
        return k + ROUNDED_TO - 2
    return max(rounded(patients), k)


def possible_range(patients: int, k: int, *, rounded: bool = True) -> tuple[int, int]:
    """Return the least and the most that a printed number from ``k`` on may be; with ``rounded=False`` it is exact."""
    if not rounded or patients < k:
        return patients, patients
    printed = _about(patients, k)
    alike = [n for n in range(max(printed - ROUNDED_TO, k), printed + ROUNDED_TO) if _about(n, k) == printed]
    return alike[0], alike[-1]


def count(patients: int, k: int, *, of: int | None = None, rounded: bool = False) -> Count:
    """Return a number of patients by R3; with ``of``, the number of all, its complement counts too.

    If ``of`` is less than ``k`` (R6), the result is none or fewer than ``k``. If it is ``k`` + 1, "all but fewer" would
    mean exactly ``k``, so "some" is used between none and all. If the reader has ``of`` only ``rounded``, the words
    reveal nothing more about it: the complement is small if it may be for any such number.
    """
    if patients <= 0:
        return NONE
    if of is not None and of >= k:
        if patients >= of:
            return ALL
        if of == k + 1:
            return SOME
        if patients >= k > possible_range(of, k, rounded=rounded)[0] - patients:
            return Count(word="all_but_fewer", number=k + ROUNDED_TO - 1 if rounded else k)
    if patients < k or (of is not None and of < k):
        return Count(word="fewer", number=k)
    return Count(word="about", number=_about(patients, k))


def count_of_text(patients: int, k: int, *, of: int, asked: bool = False, rounded: bool = False) -> Count:
    """R11: the patients with a code or another text from the data, of which at least ``k`` have it.

    "all" reveals the code of each single patient, so it needs a query that ``asked`` for the code, or 4k patients.
    Otherwise "all" and "all but fewer" become "some".
    """
    said = count(patients, k, of=of, rounded=rounded)
    many = possible_range(of, k, rounded=rounded)[0] >= QUARTILES_FROM * k
    if said.word in ("all", "all_but_fewer") and not asked and not many:
        return SOME
    return said


def everybody(patients: int, k: int, *, recipient: bool) -> int | Count:
    """Return the number of all patients (R6): exact from ``k`` on, rounded in the recipient's copy."""
    return count(patients, k) if recipient or not enough(patients, k) else patients


def enough(patients: int, k: int, *, rounded: bool = False) -> bool:
    """Return whether this many patients in all are enough to print more than the alarms (R6). If their number is
    ``rounded``, ``k`` + 2 are needed: ``k`` and ``k`` + 1 look the same but use other words."""
    return patients >= k and (not rounded or possible_range(patients, k)[0] >= k + 2)


@dataclass(frozen=True)
class Cells:
    """Disjoint cells of a known total (R4): those that are ``shown``, and all ``other`` together.

    ``other`` is ``None`` if no cells were combined. ``numbers`` are those of ``shown``, to be printed in other words.
    """

    shown: Mapping[str, Count] = field(default_factory=dict)
    other: Count | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)


def cells(patients: Mapping[str, int], k: int, *, rounded: bool = False) -> Cells:
    """Return disjoint cells, whose sum the reader may have (R4): small ones are combined as "other", and the smallest
    published one joins while "other" is below ``k``. Empty cells are "none" if no cells are combined.

    Not even a reader with all categories, the sum, and this function can infer a small cell: empty cells join the small
    ones, cells printed with the same number join together, and one always joins if the sum of the small ones nearly
    reveals them. If the reader has the sum only ``rounded``, the cells reveal nothing more about it.
    """
    total = sum(patients.values())
    small = sum(1 for number in patients.values() if 0 < number < k)
    if not small:
        return _fitting(patients, 0, total, k, rounded=rounded)
    hidden = sum(number for number in patients.values() if number < k)
    large = {name: number for name, number in patients.items() if number >= k}
    while large and (hidden < k or _reveals(hidden, small, k)):
        least = _about(min(large.values()), k)
        joining = {name for name, number in large.items() if _about(number, k) == least}
        hidden += sum(large.pop(name) for name in joining)
        small = 0
    return _fitting({name: large[name] for name in patients if name in large}, hidden, total, k, rounded=rounded)


def _fitting(shown: Mapping[str, int], hidden: int, total: int, k: int, *, rounded: bool) -> Cells:
    """Return cells whose bounds allow each total that is rounded like this one: the largest takes the difference. Where
    none do, they are all put together."""
    numbers = dict(shown)
    if rounded and total >= k and max([*numbers.values(), hidden]) < total:
        largest = max(numbers, key=lambda name: numbers[name])
        most = numbers[largest]
        for step in (0, -ROUNDED_TO, ROUNDED_TO):
            numbers[largest] = most + step
            bounds = [possible_range(number, k) for number in (*numbers.values(), hidden) if number]
            (low, high), (least, greatest) = map(sum, zip(*bounds, strict=True)), possible_range(total, k)
            # "all but fewer" of one cell would reveal the total, too, if another cell has k.
            words = numbers[largest] >= k and possible_range(max(numbers.values()), k)[1] <= least - k
            if words and low <= least and high >= greatest:
                break
        else:
            numbers, hidden = {}, total
    said = {name: count(number, k, of=total, rounded=rounded) for name, number in numbers.items()}
    return Cells(said, count(hidden, k, of=total, rounded=rounded) if hidden else None, numbers)


def _reveals(hidden: int, small: int, k: int) -> bool:
    """Return whether the sum ``hidden`` of ``small`` cells is near the least or the most it can be, or rounded with
    few."""
    return (small > 0 and (hidden < 2 * k or hidden > small * (k - 2))) or (
        k % ROUNDED_TO in (1, 2) and hidden <= k + 1
    )


def share(said: Count, of: int) -> int | None:
    """R5: a percentage made from the published count; ``None`` where it would be finer than 5 patients.

    Its step is the least of 1, 5, 10 and 25 that is 5 patients or more; 0 and 100 are for none and all only.
    """
    if said.word in ("none", "all"):
        return 0 if said.word == "none" else 100
    step = next((step for step in (1, 5, 10, 25) if step * of >= 100 * ROUNDED_TO), None)
    if said.word != "about" or said.number is None or step is None:
        return None
    return min(max(round(100 * said.number / of / step) * step, step), 100 - step)


def flow(
    patients: int, figures: Iterable[tuple[str, int]], k: int, *, rounded: bool = False
) -> dict[str, Count | None]:
    """R6: figures on the way of the patients, such as a cohort, next to the exact final number.

    A figure is returned, rounded, if it differs from ``patients`` and from each figure before it by 0 or by at least
    ``k``, otherwise ``None``. A figure equal to ``patients`` is "all". If the reader has ``patients`` only ``rounded``,
    the difference must be ``k`` for every such number.
    """
    said: dict[str, Count | None] = {}
    kept = {patients}

    def apart(one: int, other: int) -> bool:
        (low, high), (least, most) = possible_range(one, k, rounded=rounded), possible_range(other, k, rounded=rounded)
        return one == other or low - most >= k or least - high >= k

    for name, figure in figures:
        if all(apart(figure, other) for other in kept) and (figure == 0 or figure >= k):
            kept.add(figure)
            said[name] = ALL if figure == patients else count(figure, k)
        else:
            said[name] = None
    return said


def text(value: str, patients: int, k: int) -> str | None:
    """R7: a text from the data, as far as ``k`` patients share it in this spelling; else ``None``."""
    return value if patients >= k and printable(value) else None


def printable(value: str) -> bool:
    """Return whether a text can be shown on one line: no control characters, and not too long."""
    return 0 < len(value) <= 300 and all(sign.isprintable() for sign in value)


def texts(patients: Mapping[str, int], k: int) -> dict[str, int]:
    """R7: those texts that at least ``k`` patients share, most patients first and then by name."""
    shared = ((value, number) for value, number in patients.items() if text(value, number, k) is not None)
    return dict(sorted(shared, key=lambda one: (-rounded(one[1]), one[0])))


_NUMBER: Final = re.compile(r"(?:\bfewer than )?(?<![\w./:@#-])\d[\d,]*(?:\.\d+)?(?![\w/:@-])(?!\.\w)")


def without_numbers(sentence: str) -> str:
    """Return a step's sentence without its numbers (R1 and R3): their unit and their ``k`` are unknown here."""
    return _NUMBER.sub(LEFT_OUT, sentence)


_OWN: Final = re.compile(
    r"(?:[a-z_]+/)*(?:(?:core|batch-\d+|patients?|ledger|events|\d+-[a-z]+)\.(?:ndjson|csv)(?:\.zst)?)?"
)


def own_name(name: str) -> bool:
    """Return whether a file, or a folder of the job, is named as the pipeline and the extraction server call them, and
    not by a person."""
    return _OWN.fullmatch(name) is not None


def two_digits(value: float) -> float:
    """R8: a number with two significant digits."""
    if not math.isfinite(value) or value == 0:
        return 0.0
    return float(f"{value:.1e}")


def quartiles(
    values: tuple[float, float, float] | None, patients: int, k: int, *, rounded: bool = False
) -> tuple[float, float, float] | None:
    """R8: quartiles of one value a patient, from 4k patients on, in two digits; else ``None``."""
    if values is None or possible_range(patients, k, rounded=rounded)[0] < QUARTILES_FROM * k:
        return None
    return two_digits(values[0]), two_digits(values[1]), two_digits(values[2])


def over_time(years: Mapping[str, int], k: int) -> tuple[dict[str, int], bool]:
    """R8: patients by year, and whether any were left out.

    Years of fewer than ``k`` patients are left out: a year is a text from the data (R7). The returned numbers are
    exact and must be printed as counts.
    """
    shared = {year: number for year, number in sorted(years.items()) if number >= k}
    return shared, len(shared) < len(years)


def span(periods: Mapping[str, int], k: int, *, rounded: bool = False) -> tuple[str, str] | None:
    """R8: the first and the last of the quarters (``2020-Q1``), or months, if patients may be printed by them: at most
    three years without a gap, and 2k patients in each. Otherwise ``None``: years are printed.

    Their absence is information, too: a report without them had a period of fewer than 2k patients. With ``k`` as the
    limit, one patient more in the next report would reveal k - 1 in the first; with 2k, a reader who can identify up to
    k new patients still cannot infer a number below k.
    """
    places = {place for place in map(_place, periods) if place is not None}
    if (
        not periods
        or len(places) < len(periods)
        or possible_range(min(periods.values()), k, rounded=rounded)[0] < 2 * k
    ):
        return None
    first, last = min(periods), max(periods)
    most = _LONGEST_YEARS * (4 if "Q" in first else 12)
    return (first, last) if max(places) - min(places) + 1 == len(places) <= most else None


def _place(period: str) -> int | None:
    """Return a quarter, or a month, as a consecutive number."""
    found = _PERIOD.fullmatch(period)
    if found is None:
        return None
    return int(found[1]) * 4 + int(found[2]) if found[2] else int(found[1]) * 12 + int(found[3])


_PERIOD: Final = re.compile(r"([0-9]{4})-(?:Q([1-4])|(0[1-9]|1[0-2]))")
_LONGEST_YEARS: Final = 3
