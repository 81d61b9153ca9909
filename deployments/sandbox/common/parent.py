"""Ends the sandbox when the process that started it ends, however it ends.

``PR_SET_PDEATHSIG`` would not do: Linux ties it to the *thread* that started the child, so a sandbox started from a
worker thread would die with that thread. A process descriptor tells about the process, at once as well; where there
is none the parent is looked at twice a second.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_INTERVAL = 0.5


async def watch(pid: int, stop: Callable[[], None]) -> None:
    """Call ``stop`` once the process is gone, then return. A process that is gone already counts."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        stop()
        return
    except (AttributeError, OSError):  # another system, or a kernel before 5.3
        await _poll(pid, stop)
        return
    try:
        await _readable(descriptor)
    finally:
        os.close(descriptor)
    stop()


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)


async def _poll(pid: int, stop: Callable[[], None]) -> None:
    is_child = os.getppid() == pid
    while _alive(pid) and (not is_child or os.getppid() == pid):
        await asyncio.sleep(_INTERVAL)
    stop()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it is there and belongs to somebody else
    return True
