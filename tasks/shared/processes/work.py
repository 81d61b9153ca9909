"""What processes have in common: work that can be taken up in another process, and the messages about it.

No message shows what it carries: items, results and credentials do not belong in a log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop

T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

Plain = str | int | float | None
"""What a line of the log may be made of: any process can read it."""


class Work(Protocol[T_contra, R_co]):
    """Work on items, which can be pickled: settings, paths and credentials, nothing that is open."""

    def opened(
        self, *, slots: int, stop: Stop, stats: RequestStats
    ) -> AbstractContextManager[Callable[[T_contra], R_co]]:
        """What works on one item, thread-safe, until the context is left.

        It has at most ``slots`` requests under way at once, looks at ``stop`` and counts requests in ``stats``.
        """
        ...


@dataclass(frozen=True)
class Begin:
    """The first message to a process. ``threads`` items are worked on at once; ``level`` is that of the log."""

    work: Work[Any, Any] = field(repr=False)
    slots: int
    threads: int
    level: int


@dataclass(frozen=True)
class StopNow:
    """The run is to stop."""

    reason: str


@dataclass(frozen=True)
class Logged:
    """A line for the log of the run: ``text`` with ``arguments``, as ``logging`` takes them."""

    logger: str
    level: int
    text: str = field(repr=False)
    arguments: tuple[Plain, ...] = field(repr=False)


@dataclass(frozen=True)
class Done:
    """What became of an item: the ``result``, or the ``error`` it raised.

    ``requests`` are those made for it: the seconds each took, and whether it was a repeat.
    """

    result: Any = field(repr=False)
    error: BaseException | None = field(repr=False)
    requests: tuple[tuple[float, bool], ...]
