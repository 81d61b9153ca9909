"""Measure for one report, the imported files and the files that are sent, and store the counts for the next one.

In ``report/measured/`` (0600), under the hashes of all files and everything else it depends on: the report of a second
wait, of a job that goes on and of its end reads this, not the data. The numbers are exact, so no person and no page
gets them as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.measured import Measured, MeasuredFile
from tasks.release_report.measure.originals import Originals
from tasks.shared.errors import storage_errors
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.files.inventory import Inventory, InventoryEntry
from tasks.shared.files.out_file import write_file
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
    (none: not compared). ``k`` and ``region_prefix`` are those of the configuration's ``report``; ``largest`` is the
    limit of a resource in bytes. ``read`` gets the number of bytes of content read.
    """

    base: Path
    leaving: Sequence[Path]
    imported: Sequence[Path] = ()
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
        like: Sequence[Path] | None = None,
        ready: Callable[[Path], Path] = lambda path: path,
    ) -> Measured:
        """Measure the files that leave; what the arguments are ``measure`` says.

        Raises:
            StorageError: the spool cannot be written.
            Stopped: somebody asked.
        """
        return self._measure(files, like=like, ready=ready)


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
        return measurer.imported, measurer.measure_outgoing(delivery.leaving)


MEASURED: Final = Path("report", "measured")


def digests(measures: Measures) -> tuple[str, str]:
    """Return the digests of the imported files that were measured, and of those that leave."""
    imported, leaving = measures
    return digest_of(imported.files if imported is not None else ()), digest_of(leaving.files)


def digest_of(files: Iterable[MeasuredFile]) -> str:
    """Return the digest over the sorted list of files, as ``Inventory.digest`` makes it."""
    entries = sorted(
        (InventoryEntry(file.name, file.bytes, file.sha256) for file in files), key=lambda entry: entry.name
    )
    return Inventory(tuple(entries)).digest


class _Pair(msgspec.Struct):
    """Both results; the keys of ``classes`` are none that JSON has."""

    imported: Measured | None
    leaving: Measured
    classes: tuple[list[tuple[tuple[str, str, str], int]], list[tuple[tuple[str, str, str], int]]]


def encode(measures: Measures) -> bytes:
    """Return both results as JSON."""
    imported, leaving = measures
    of_imported = list(imported.classes.items()) if imported is not None else []
    bare = replace(imported, classes={}) if imported is not None else None
    return msgspec.json.encode(_Pair(bare, replace(leaving, classes={}), (of_imported, list(leaving.classes.items()))))


def decode(text: bytes) -> Measures | None:
    """Return what ``encode`` made; ``None`` of anything else."""
    try:
        pair = msgspec.json.decode(text, type=_Pair)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    before, after = pair.classes
    imported = replace(pair.imported, classes=dict(before)) if pair.imported is not None else None
    return imported, replace(pair.leaving, classes=dict(after))


def read_kept(delivery: Delivery, imported: str, leaving: str) -> Measures | None:
    """Return what was measured before of the files with these digests; ``None`` if nothing was, or it is damaged."""
    try:
        return decode(_place(delivery, imported, leaving).read_bytes())
    except OSError:
        return None


def store_measures(delivery: Delivery, measures: Measures) -> None:
    """Keep what was measured, under the digests of the files as they were when they were read. Raises
    ``StorageError``."""
    write_file(_place(delivery, *digests(measures)), encode(measures))


def _place(delivery: Delivery, imported: str, leaving: str) -> Path:
    on = [metadata.version("sluice"), imported, leaving, delivery.k, delivery.region_prefix, delivery.largest]
    return delivery.base / MEASURED / f"{hashlib.sha256(msgspec.json.encode(on)).hexdigest()[:32]}.json"
