"""Text for the Prefect UI, which renders descriptions, pages and every cell of a table as markdown, HTML included.

A name from outside (a group of a CRTDL, a file of a server) must stand there as it is: not as a heading, and not as an
image that a browser in the hospital would fetch from somewhere else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPECIAL = re.compile(
    r"[\\`*\[\]<>|!~@]"  # wherever they stand
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; not within a word
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<=\w):(?=//)"  # a URL becomes no link
    r"|(?m:^)[ \t]*(?:[#+=-](?=[\s#+=-]|$)|\d+(?=[.)](?:\s|$)))"  # heading, list, rule
)


def literal(text: str) -> str:
    """Markdown that is shown as ``text``."""
    return _SPECIAL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    piece = found.group()
    # A number at the beginning of a line makes a list of it through the character behind.
    return f"{piece}\\" if piece[-1].isdigit() else f"{piece[:-1]}\\{piece[-1]}"


def code(text: str) -> str:
    """A path or a name in the typeface of code."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of literal texts; columns without any value are left out, except the first two."""
    keep = [n for n in range(len(header)) if n < 2 or any(cells[n] for cells in rows)]
    lines = ["| " + " | ".join(header[n] for n in keep) + " |", "|" + "---|" * len(keep)]
    lines += ["| " + " | ".join(literal(cells[n]).replace("\n", " ") for n in keep) + " |" for cells in rows]
    return "\n".join(lines)
