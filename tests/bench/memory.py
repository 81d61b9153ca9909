"""The peak memory of a process, and a process whose peak is that of one load."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20


def peak() -> int:
    """Bytes: ``VmHWM``. ``ru_maxrss`` would begin with what the process had that this one was forked from."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def in_own_process(load: Callable[..., None], *arguments: Any) -> Any:
    """Return what ``load`` in a new process sends through the pipe, its first argument. ``EOFError`` if it fails."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=load, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        return mine.recv()
    finally:
        process.join()
        mine.close()
