"""What may be said of counts of people where others read it (document 5, rules of publication).

One module, so that no page, log or record words a small number in a way of its own.
"""

from __future__ import annotations

from typing import Final

ROUNDED_TO: Final = 5


def people(count: int, k: int) -> str:
    """A count of patients, or of what is theirs: "none", "fewer than ``k``", or rounded to 5 and never below ``k``
    (rules 2 and 3)."""
    if count == 0:
        return "none"
    if count < k:
        return f"fewer than {k}"
    rounded = (count + ROUNDED_TO // 2) // ROUNDED_TO * ROUNDED_TO
    return f"{max(rounded, k):,}"
