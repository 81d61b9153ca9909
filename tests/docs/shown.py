"""Comparison of a page's output block with printed output, except numbers, sizes, times, ids and paths."""

from __future__ import annotations

import re

_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TOKENS = re.compile(
    rf"""(?P<id>{_ID})
    |(?P<path>…[\w./-]*/)           # "…/jobs": a path whose beginning the page leaves out
    |(?P<rest>…)                    # something that the page leaves out
    |(?P<size>\d[\d.,]*\ [kMG]?B\b) # "153 kB"
    |(?P<time>\d[\d.,]*\ (?:ms|s|min)\b)
    |(?P<number>(?<!\w)\d(?:[\d.,]*\d)?)
    |(?P<space>\ {{2,}})            # columns are as wide as what is in them
    """,
    re.VERBOSE,
)
_MEANT = {
    "id": _ID, "path": r"\S*/", "rest": r".*?", "size": r"\d[\d.,]* [kMG]?B", "time": r"\d[\d.,]* (?:ms|s|min)",
    "number": r"\d[\d.,]*", "space": r" {2,}",
}  # fmt: skip


def line_pattern(line: str) -> str:
    """Return a regular expression for the lines that a shown line matches; ``…`` alone matches any lines."""
    if line.strip() == "…":
        return r"(?:.*\n)*?"
    pattern, end = "", 0
    for token in _TOKENS.finditer(line):
        kind = token.lastgroup
        assert kind is not None
        pattern += re.escape(line[end : token.start()]) + _MEANT[kind]
        end = token.end()
    return pattern + re.escape(line[end:]) + r"\n"


def assert_shown(shown: str, printed: str) -> None:
    """Assert that the printed text is the one on the page."""
    pattern = "".join(line_pattern(line) for line in shown.splitlines())
    assert re.fullmatch(pattern, printed), f"the page shows:\n{shown}\nprinted was:\n{printed}"
