"""Sizes and times as a person reads them."""

from __future__ import annotations


def human_bytes(size: float) -> str:
    """Bytes in the unit a person reads (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def human_rate(per_second: float) -> str:
    """Bytes per second; in MB where that says something."""
    return f"{per_second / 1e6:.1f} MB/s" if per_second >= 1e5 else f"{human_bytes(per_second)}/s"


def human_seconds(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
