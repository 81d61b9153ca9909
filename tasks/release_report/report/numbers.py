"""Numbers of patients and texts of the data as the release report prints them (document 5, section 2)."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

ROUNDED_TO: Final = 5

HIDDEN: Final = "@withheld"
"""Replaces a text that fewer than k patients have; the page looks up its word by this name."""


class Count(BaseModel):
    """Number of patients as it is printed. ``number`` is the rounded one of ``about``, and k of ``fewer``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    word: Literal["none", "fewer", "about", "all"]
    number: int | None = None


NONE: Final = Count(word="none")


def banded(patients: int, k: int, of: int | None = None) -> Count:
    """Return "none", "fewer than ``k``", "all" of ``of``, or a number rounded to 5 and never below ``k``."""
    if patients <= 0:
        return NONE
    if patients < k:
        return Count(word="fewer", number=k)
    if patients == of:
        return Count(word="all")
    return Count(word="about", number=max((patients + ROUNDED_TO // 2) // ROUNDED_TO * ROUNDED_TO, k))


def printable(value: str) -> bool:
    """Return whether a text can be shown on one line: no control characters, and not too long."""
    return 0 < len(value) <= 300 and all(sign.isprintable() for sign in value)
