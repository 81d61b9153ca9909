"""File names of attribute groups (document 3 §5, "Output")."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

UNNAMED: Final = "group"
"""The name of a file when nothing is left of the group's."""

_LONGEST: Final = 200
"""Bytes of a name in UTF-8: file systems allow 255, and endings are added."""
_PUNCTUATION: Final = frozenset(" .-_()")


def file_names(names: Sequence[str]) -> list[str]:
    """A name of a file, without an ending, for every name: the same list, the same names.

    Letters of all scripts, digits, blanks and ``.-_()`` stay, everything else becomes ``_``. No two are equal in
    whatever case: a name that is taken gets ``-2``, ``-3`` …
    """
    wanted = [_safe(name) for name in names]
    reserved = {name.casefold() for name in wanted}
    given: set[str] = set()
    result: list[str] = []
    for name in wanted:
        free, number = name, 1
        while free.casefold() in given or (number > 1 and free.casefold() in reserved):
            number += 1
            free = f"{name}-{number}"
        given.add(free.casefold())
        result.append(free)
    return result


def _safe(name: str) -> str:
    text = "".join(char if _stays(char) else "_" for char in unicodedata.normalize("NFC", name))
    # A leading dot hides a file, and some file systems drop blanks and dots at the end.
    text = text.lstrip(". ")
    while len(text.encode()) > _LONGEST:
        text = text[:-1]
    return text.rstrip(". ") or UNNAMED


def _stays(char: str) -> bool:
    # Many scripts write vowels as marks that belong to the letter before them.
    return char in _PUNCTUATION or unicodedata.category(char) in _KEPT


_KEPT: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd"})
