"""Measure for one report: the imported files, and the files that are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Final

from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.measured import Measured, MeasuredFile
from tasks.release_report.measure.originals import Originals
from tasks.shared.errors import storage_errors
from tasks.shared.files.inventory import Inventory, InventoryEntry
from tasks.shared.files.ndjson import MIB
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
    (none: not compared). ``k`` and ``region_prefix``
    are those of the configuration's ``report``; ``longest`` is the limit of a line in bytes. ``read`` gets the
    number of bytes of content read.
    """

    base: Path
    leaving: Sequence[Path]
    imported: Sequence[Path] = ()
    k: int = 5
    region_prefix: int = 2
    longest: int = 512 * MIB
    today: date
    stop: Stop
    read: Callable[[int], None] = _ignore


def measure_delivery(delivery: Delivery) -> Measures:
    """Measure ``import/``, then what leaves: what is original is known then.

    Raises:
        StorageError: the spool cannot be written.
        Stopped: somebody asked.
    """
    spool = delivery.base / SPOOL
    with storage_errors(spool):
        spool.mkdir(mode=0o700, exist_ok=True)
    with Originals(spool, delivery.k) if delivery.imported else nullcontext() as originals:
        measured = partial(
            measure, base=delivery.base, spool=spool, stop=delivery.stop, k=delivery.k, today=delivery.today,
            read=delivery.read, region_prefix=delivery.region_prefix, longest=delivery.longest, originals=originals,
        )  # fmt: skip
        imported = measured(delivery.imported, collect=True) if originals is not None else None
        return imported, measured(delivery.leaving)


def digest_of(files: Iterable[MeasuredFile]) -> str:
    """Return the digest over the sorted list of files, as ``Inventory.digest`` makes it."""
    entries = sorted(
        (InventoryEntry(file.name, file.bytes, file.sha256) for file in files), key=lambda entry: entry.name
    )
    return Inventory(tuple(entries)).digest
