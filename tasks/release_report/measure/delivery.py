"""Measuring for one report: the files that came in, then those that leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Final

from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.measured import Measured
from tasks.release_report.measure.originals import Originals
from tasks.shared.errors import storage_errors
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.stop import Stop

SPOOL: Final = ".report"
"""The folder of the job directory for what the measuring puts aside."""


def _ignore(_: int) -> None:
    """Ignore the progress."""


Measures = tuple[Measured | None, Measured]
"""The imported files, unless they are not compared, and those that leave."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The files of one report.

    ``base`` is the job directory, ``leaving`` the files that ``send`` would read, ``imported`` those of ``import/``
    (none: not compared), ``copies`` tables with the rows of a CSV that leaves beside them. ``k`` and ``region_prefix``
    are those of the configuration's ``report``; ``largest`` is the limit of a resource in bytes. ``read`` gets the
    number of bytes of content read.
    """

    base: Path
    leaving: Sequence[Path]
    imported: Sequence[Path] = ()
    copies: Set[Path] = frozenset()
    k: int = 5
    region_prefix: int = 2
    largest: int = LARGEST_RESOURCE
    today: date
    stop: Stop
    read: Callable[[int], None] = _ignore


class Measurer:
    """Measures the files that leave, as often as is asked for, after those of ``import/``."""

    def __init__(self, delivery: Delivery, originals: Originals | None) -> None:
        self._measure = partial(
            measure, base=delivery.base, spool=delivery.base / SPOOL, stop=delivery.stop, k=delivery.k,
            today=delivery.today, read=delivery.read, region_prefix=delivery.region_prefix, largest=delivery.largest,
            originals=originals,
        )  # fmt: skip
        self.imported = self._measure(delivery.imported, collect=True) if originals is not None else None

    def measure_outgoing(
        self,
        files: Sequence[Path],
        *,
        copies: Set[Path] = frozenset(),
        like: Sequence[Path] | None = None,
        ready: Callable[[Path], Path] = lambda path: path,
    ) -> Measured:
        """Measure the files that leave; what the arguments are ``measure`` says.

        Raises:
            StorageError: the spool cannot be written.
            Stopped: somebody asked.
        """
        return self._measure(files, copies=copies, like=like, ready=ready)


@contextmanager
def measuring(delivery: Delivery) -> Iterator[Measurer]:
    """Measure ``import/``, and then let what leaves be measured: what is original is known then.

    The copies of different ``k`` are made of one measuring: rare is what fewer than ``k`` of the in-house copy have.
    Raises as ``Measurer.measure_outgoing``.
    """
    spool = delivery.base / SPOOL
    with storage_errors(spool):
        spool.mkdir(mode=0o700, exist_ok=True)
    if not delivery.imported:
        yield Measurer(delivery, None)
        return
    with Originals(spool, delivery.k) as originals:
        yield Measurer(delivery, originals)


def measure_delivery(delivery: Delivery) -> Measures:
    """Measure what came in, then what leaves, in this process. Raises as ``Measurer.measure_outgoing``."""
    with measuring(delivery) as measurer:
        return measurer.imported, measurer.measure_outgoing(delivery.leaving, copies=delivery.copies)
