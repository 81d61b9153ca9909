"""Numbers of patients as the release report prints them (docs/review.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

ROUNDED_TO: Final = 5


class Count(BaseModel):
    """A number of patients as it is printed. ``number`` is k, or the rounded one of ``about``.

    ``lines`` are exact: of "k or more patients (1,204 lines)", and of a finding that counts lines only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: Literal["none", "fewer", "about", "all", "least", "nobody"]
    number: int | None = None
    lines: int | None = None


NONE: Final = Count(word="none")


@dataclass(frozen=True)
class Tally:
    """Where something was found: patients (at most k where that is not ``exact``), all lines, and lines of nobody."""

    patients: int = 0
    exact: bool = True
    lines: int = 0
    nobody: int = 0


NOTHING: Final = Tally()


def banded(patients: int, k: int, of: int | None = None) -> Count:
    """Return "none", "fewer than ``k``", "all" of ``of``, or a number rounded to 5 and never below ``k``."""
    if patients <= 0:
        return NONE
    if patients < k:
        return Count(word="fewer", number=k)
    if patients == of:
        return Count(word="all")
    return Count(word="about", number=max((patients + ROUNDED_TO // 2) // ROUNDED_TO * ROUNDED_TO, k))


def counted(tally: Tally, k: int, of: int | None = None) -> Count:
    """Return a tally as it is printed: banded, or "``k`` or more" where patients were counted up to k only."""
    if not tally.patients and tally.nobody:
        return Count(word="nobody", lines=tally.nobody)
    if not tally.exact and tally.patients >= k:
        return Count(word="least", number=k, lines=tally.lines)
    return banded(tally.patients, k, of)
