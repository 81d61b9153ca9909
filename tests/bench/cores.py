"""A core for every process on a machine with fewer: each process gets a share of a core, enforced by the kernel.

A ratio of two rates that is measured so is that of a machine with enough cores, each of them that much slower: the CPU
bandwidth controller lets no process have more than its share, and none takes from another as long as all shares
together are less than the machine. Needs root, and control groups (version 1 or 2) with the ``cpu`` controller.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")
_QUOTA: Final = 1_000
"""Microseconds at a time: the least there is, so that nobody waits long for the next ones."""


class Cores:
    """Gives processes ``share`` of a core each (0…1), until the context is left."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._groups: list[Path] = []
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def give(self, pid: int) -> None:
        """Give this process, with all its threads, a core of its own."""
        root, quota = (_V1, "cpu.cfs_quota_us") if _V1.is_dir() else (_V2, "cpu.max")
        group = root / f"sluice-bench-{pid}"
        group.mkdir(exist_ok=True)
        self._groups.append(group)
        period = int(_QUOTA / self._share)
        if quota == "cpu.max":
            (group / quota).write_text(f"{_QUOTA} {period}")
            (group / "cpu.weight").write_text("10000")  # before whatever else the machine does
        else:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / quota).write_text(str(_QUOTA))
            (group / "cpu.shares").write_text("262144")
        with suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))

    def give_me(self) -> None:
        """Give this process a core of its own."""
        self.give(os.getpid())

    def give_children(self) -> None:
        """Give a core to every process that this one starts from now on."""
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        known: set[int] = set()
        while not self._ended.wait(0.01):
            for task in Path("/proc/self/task").iterdir():
                with suppress(OSError):
                    for pid in set(map(int, (task / "children").read_text().split())) - known:
                        known.add(pid)
                        self.give(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        for group in self._groups:
            for pid in (group / "cgroup.procs").read_text().split():
                with suppress(OSError):
                    (group.parent / "cgroup.procs").write_text(pid)
            with suppress(OSError):
                group.rmdir()
