"""Sizes, times and counts in the form that people read. JSON has plain numbers."""

from __future__ import annotations

from typing import Final

_SIZES: Final = ("kB", "MB", "GB", "TB")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a formula in a spreadsheet."""


def as_text(cell: str) -> str:
    """Return the text of a table's cell, with an apostrophe before it if a spreadsheet would run it as a formula."""
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def human_bytes(size: float) -> str:
    """Return bytes in a readable unit (powers of 1000), with three figures: ``153 kB``, ``25.3 MB``."""
    if abs(size) < 999.5:
        return f"{size:.0f} B"
    power = 1
    while abs(size) >= 999.5 * 1000**power and power < len(_SIZES):  # 999.5 kB would read 1000 kB
        power += 1
    size /= 1000**power
    return f"{size:.{int(abs(size) < 99.95)}f} {_SIZES[power - 1]}"


def human_rate(per_second: float) -> str:
    """Return bytes per second: ``64.2 MB/s``."""
    return f"{human_bytes(per_second)}/s"


def human_seconds(seconds: float) -> str:
    """Return a time left or a time so far in whole seconds: ``21 s``, ``3 min 5 s``."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def human_duration(seconds: float) -> str:
    """Return a measured time: ``35 ms``, ``21.6 s``; from a minute on as ``human_seconds``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 59.95 else human_seconds(seconds)


def human_count(count: int, one: str, more: str | None = None) -> str:
    """Return a count with its noun: ``1,204 resources``, ``1 file``. ``more`` is the plural (default: an s added)."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"
