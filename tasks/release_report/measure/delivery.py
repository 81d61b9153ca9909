"""Measuring for one report: the files that came in, then those that leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
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
    """Nobody looks at the progress."""


Measures = tuple[Measured | None, Measured]
"""The imported files, unless they are not compared, and those that leave."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The files of one report.

    ``base`` is the job directory, ``leaving`` the files that ``send`` would read, ``imported`` those of ``import/``
    (none: not compared), ``copies`` tables with the rows of a CSV that leaves beside them. ``k`` and ``region_prefix``
    are those of the configuration's ``report``; ``largest`` is the limit of a resource in bytes. ``read`` gets the
    number of bytes read.
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


def measure_delivery(delivery: Delivery) -> Measures:
    """Measure what came in, then what leaves: what is original is known when the second is read.

    The copies of different ``k`` are made of one measuring: rare is what fewer than ``k`` of the in-house copy have.

    Raises:
        StorageError: the spool cannot be written.
        Stopped: somebody asked.
    """
    spool = delivery.base / SPOOL
    with storage_errors(spool):
        spool.mkdir(mode=0o700, exist_ok=True)
    measuring = partial(
        measure, base=delivery.base, spool=spool, stop=delivery.stop, k=delivery.k, today=delivery.today,
        read=delivery.read, region_prefix=delivery.region_prefix, largest=delivery.largest,
    )  # fmt: skip
    if not delivery.imported:
        return None, measuring(delivery.leaving, copies=delivery.copies)
    with Originals(spool, delivery.k) as originals:
        imported = measuring(delivery.imported, originals=originals, collect=True)
        return imported, measuring(delivery.leaving, originals=originals, copies=delivery.copies)
