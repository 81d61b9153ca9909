"""Print the output of commands. A closed pipe (``| head -1``) never fails a run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from config import Finding
    from tasks.shared.errors import SluiceError

AFTER = 0.5
"""Seconds after which a command prints what it waits for. No command is silent for more than a second."""

_WIPE = "\r\x1b[K"
_lock = threading.RLock()
_drawn = False
"""Whether the last line of the terminal is one that ``draw`` has shown."""


def on_terminal() -> bool:
    """Return whether input and output are a terminal, so that a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_line(text: str, *, err: bool = False) -> None:
    """Print ``text`` and a line break."""
    write(text + "\n", err=err)


def print_json(document: Any) -> None:
    """Print a document in the form of every ``--json``."""
    print_line(json.dumps(document, indent=2, ensure_ascii=False))


def print_findings(findings: Iterable[SluiceError | Finding]) -> None:
    """Print every finding to stderr."""
    for finding in findings:
        print_line(finding.render(), err=True)


def draw(line: str) -> None:
    """Show ``line`` on stderr, a terminal, in place of the line drawn before. Any other output removes the line."""
    global _drawn
    with _lock:
        _put(_WIPE + line, err=True)
        _drawn = True


def wipe() -> None:
    """Remove the line shown by ``draw``, if any."""
    global _drawn
    with _lock:
        if _drawn:
            _drawn = False
            _put(_WIPE, err=True)


def write(text: str, *, err: bool = False) -> None:
    """Print ``text`` unchanged and flush it."""
    with _lock:
        wipe()
        _put(text, err=err)


def _put(text: str, *, err: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    try:
        click.echo(text, file=stream, nl=False)
    except BrokenPipeError:
        # Python flushes the buffer when it exits. If that failed, it would set an exit code of its own.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def patience(text: str, *, after: float = AFTER) -> Iterator[None]:
    """Print ``text`` once on stderr if the block takes longer than ``after`` seconds."""
    timer = threading.Timer(after, print_line, [text], {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
