"""Markdown for the Prefect UI: text, code and tables that show what is in them, whatever it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tasks.shared.errors import SluiceError
from tasks.shared.log import logger

_SPECIAL = re.compile(
    r"[\\`*\[\]<>|!~@]"  # wherever they stand
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; not within a word
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<=\w):(?=//)"  # a URL becomes no link
    r"|(?m:^)[ \t]*(?:[#+=-](?=[\s#+=-]|$)|\d+(?=[.)](?:\s|$)))"  # heading, list, rule
)


def literal(text: str) -> str:
    """Return Markdown that is shown as ``text``."""
    return _SPECIAL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    piece = found.group()
    # A number at the beginning of a line makes a list of it through the character behind.
    return f"{piece}\\" if piece[-1].isdigit() else f"{piece[:-1]}\\{piece[-1]}"


def code(text: str) -> str:
    """Return a path or a name as code."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of literal texts; columns without any value are left out, except the first two."""
    keep = [n for n in range(len(header)) if n < 2 or any(cells[n] for cells in rows)]
    lines = ["| " + " | ".join(header[n] for n in keep) + " |", "|" + "---|" * len(keep)]
    lines += ["| " + " | ".join(literal(cells[n]).replace("\n", " ") for n in keep) + " |" for cells in rows]
    return "\n".join(lines)


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """Log an error while writing for people instead of failing the run."""
    try:
        yield
    except SluiceError as error:
        logger.warning("%s is not written: %s", what, error.message)
