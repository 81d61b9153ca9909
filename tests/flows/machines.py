"""Processes of another machine: those that ``flock`` does not hold between, and that know it."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import ROOT

_OTHER = """
import fcntl
import flows.lock
flows.lock.this_machine = lambda: "the other machine"
class WithoutFlock:
    LOCK_EX, LOCK_NB, LOCK_SH = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_SH
    @staticmethod
    def flock(handle, how):
        pass
flows.lock.fcntl = WithoutFlock
"""


def other_machine(directory: Path) -> dict[str, str]:
    """The environment of processes on another machine; their start-up code lies in ``directory``."""
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(_OTHER)
    return {"PYTHONPATH": f"{directory}:{ROOT}"}
