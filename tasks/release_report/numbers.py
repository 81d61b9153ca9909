"""Numbers of patients as the release report prints them (docs/review.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

ROUNDED_TO: Final = 5


class Count(BaseModel):
    """A number of patients, or of lines with a finding of the pseudonymizer step, as it is printed.

    ``number`` is k or, for ``about``, the rounded number. ``lines`` is exact, for ``least`` ("k or more patients (1,204
    lines)") and ``nobody`` (values that belong to no patient).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: Literal["patients", "lines"] = "patients"
    word: Literal["none", "fewer", "about", "all", "least", "nobody"]
    number: int | None = None
    lines: int | None = None


@dataclass(frozen=True)
class Tally:
    """Counts of one kind of value: patients (up to k if not ``exact``), all lines, and lines without a patient."""

    patients: int = 0
    exact: bool = True
    lines: int = 0
    nobody: int = 0


NOTHING: Final = Tally()


def banded(number: int, k: int, of: int | None = None, *, unit: Literal["patients", "lines"] = "patients") -> Count:
    """Return "none", "fewer than ``k``", "all" of ``of``, or a number rounded to 5 and never below ``k``."""
    if number <= 0:
        return Count(word="none")
    if number < k:
        return Count(unit=unit, word="fewer", number=k)
    if number == of:
        return Count(unit=unit, word="all")
    rounded = (number + ROUNDED_TO // 2) // ROUNDED_TO * ROUNDED_TO
    return Count(unit=unit, word="about", number=max(rounded, k))


def counted(tally: Tally, k: int, of: int | None = None) -> Count:
    """Return a tally as it is printed: banded, or "``k`` or more" where patients were counted up to k only."""
    if not tally.patients and tally.nobody:
        return Count(word="nobody", lines=tally.nobody)
    if not tally.exact and tally.patients >= k:
        return Count(word="least", number=k, lines=tally.lines)
    return banded(tally.patients, k, of)
