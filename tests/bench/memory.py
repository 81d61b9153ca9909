"""The peak memory of this process."""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20


def peak() -> int:
    """Bytes: ``VmHWM``. ``ru_maxrss`` would begin with what the process had that this one was forked from."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
