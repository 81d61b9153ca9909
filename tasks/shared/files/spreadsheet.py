"""Cells of the CSV files that we write ourselves: no text in them is a formula when a spreadsheet opens the file."""

from __future__ import annotations

from typing import Final

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a formula in a spreadsheet."""


def as_text(cell: str) -> str:
    """Return the text of a cell, after an apostrophe if a spreadsheet would run it."""
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
