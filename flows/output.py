"""What commands print. A reader that went away, or a terminal that cannot show a sign, never fails a run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

AFTER = 0.5
"""Seconds of waiting until a person is told; nothing is silent for more than one (``4-product.md`` §5)."""

_WIPE = "\r\x1b[K"
_lock = threading.RLock()
_written = 0
"""How many times something was printed."""
_drawn = False
"""Whether the last line of the terminal is one that changes in place (``draw``)."""
_quiet = False
"""Whether a person wants nothing but answers, warnings and errors (``-q``)."""


class Rendered(Protocol):
    """Something with the one form of an error (``4-product.md`` §2)."""

    def render(self) -> str:
        """Reference and message, context, hint."""
        ...


def prepare_streams() -> None:
    """Let signs that the terminal's encoding lacks appear as question marks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_line(text: str, *, err: bool = False) -> None:
    """Print ``text`` and a line break."""
    write(text + "\n", err=err)


@contextmanager
def hushed() -> Iterator[None]:
    """Leave out what only tells how far a command is, and that all went well."""
    global _quiet
    _quiet = True
    try:
        yield
    finally:
        _quiet = False


def account(text: str, *, aside: bool = False) -> None:
    """Print what was done, ``aside`` on stderr where stdout is for JSON; nothing where a person wants none (``-q``)."""
    if not _quiet:
        print_line(text, err=aside)


def say_in_passing(text: str) -> None:
    """Print ``text`` on stderr; who ends the process does not wait for a terminal that takes nothing (Ctrl-S)."""
    saying = threading.Thread(target=print_line, args=(text,), kwargs={"err": True}, name="words", daemon=True)
    saying.start()
    saying.join(AFTER)


def print_json(document: Any) -> None:
    """Print a document as every ``--json`` does."""
    print_line(json.dumps(document, indent=2, ensure_ascii=False))


def draw(line: str) -> None:
    """Show ``line`` on the terminal at stderr in place of the one shown before; whatever is printed wipes it."""
    global _drawn
    if _quiet:
        return
    with _lock:
        _put(_WIPE + line, err=True)
        _drawn = True


def wipe() -> None:
    """Remove the line that ``draw`` left, if one did; but for a terminal that takes nothing (Ctrl-S) nobody waits."""
    global _drawn
    if not _lock.acquire(timeout=AFTER):
        return
    try:
        if _drawn:
            _drawn = False
            _put(_WIPE, err=True)
    finally:
        _lock.release()


def write(text: str, *, err: bool = False) -> None:
    """Print ``text`` as it is, now."""
    with _lock:
        wipe()
        _put(text, err=err)


def _put(text: str, *, err: bool) -> None:
    global _written
    _written += 1
    stream = sys.stderr if err else sys.stdout
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # The reader went away (``| head -1``), and there is nobody left to tell. What is still in the buffer must go
        # somewhere, else Python ends with an exit code of its own.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except ValueError:
        return  # closed by the caller


def one_line(text: str) -> str:
    """What a person wrote, or the name of a file, as a terminal may show it: control characters become escapes."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def complain(findings: Iterable[Rendered]) -> None:
    """Print every finding to stderr."""
    for finding in findings:
        print_line(finding.render(), err=True)


@contextmanager
def patience(text: str, *, after: float = AFTER, first: bool = False) -> Iterator[None]:
    """Print on stderr what is waited for, once, when it takes longer than ``after`` seconds; with ``first`` only if
    nothing was printed before.
    """
    before = _written

    def due() -> None:
        if not first or _written == before:
            account(text, aside=True)

    timer = threading.Timer(after, due)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
