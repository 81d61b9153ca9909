"""Escape any text so that a terminal or Markdown shows it as it is."""

from __future__ import annotations

import re
from typing import Final

_SPECIAL: Final = re.compile(r"[\\`*\[\]<>|!~@&#]|(?<![^\W_])_|_(?![^\W_])|(?<=\w):(?=//)|^\s*(?:[-+=]|\d+[.)](?=\s))")
"""Characters that Markdown would interpret. An underscore within a word is not one of them."""


def visible(text: str) -> str:
    """Escape invisible characters and those that change the direction of text."""
    return "".join(sign if sign.isprintable() or sign == "\N{NO-BREAK SPACE}" else ascii(sign)[1:-1] for sign in text)


def literal(text: str) -> str:
    """Return Markdown that is shown as ``text``, on one line."""
    line = visible(re.sub(r"\s+", " ", text))
    return _SPECIAL.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", line)


def code(text: str) -> str:
    """Return a path, a name or a command as code."""
    shown = visible(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    space = " " if "`" in shown else ""
    return f"{fence}{space}{shown}{space}{fence}"
