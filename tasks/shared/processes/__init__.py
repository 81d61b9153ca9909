"""Processes that share the work on the items of one step (performance.md: "scales with processes, not threads").

``in_processes`` (``pool.py``) gives a callable that works on an item in one of several processes. ``member.py`` is what
runs there, ``channel.py`` how both sides talk.
"""

from tasks.shared.processes.pool import Calls, in_processes
from tasks.shared.processes.work import Work

__all__ = ["Calls", "Work", "in_processes"]
