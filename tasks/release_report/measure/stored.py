"""Store measured counts for the next release report.

In ``report/measured/`` (0600), under the hashes of all files and whatever else it depends on: the report of a second
wait, of a job that goes on and of its end reads this, not the data. The numbers are exact, so no person and no page
gets them as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from tasks.release_report.measure.delivery import Delivery, Measures
from tasks.release_report.measure.measured import Measured, MeasuredFile
from tasks.shared.files.inventory import Inventory, InventoryEntry
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import NotPrivateError, read_private

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
        text = read_private(_place(delivery, imported, leaving))
    except (NotPrivateError, OSError):
        return None
    return decode(text) if text is not None else None


def store_measures(delivery: Delivery, measures: Measures) -> None:
    """Keep what was measured, under the digests of the files as they were when they were read. Raises
    ``StorageError``."""
    write_file(_place(delivery, *digests(measures)), encode(measures))


def _place(delivery: Delivery, imported: str, leaving: str) -> Path:
    names = sorted(path.relative_to(delivery.base).as_posix() for path in delivery.copies)
    on = [metadata.version("sluice"), imported, leaving, names, delivery.k, delivery.region_prefix, delivery.largest]
    return delivery.base / MEASURED / f"{hashlib.sha256(msgspec.json.encode(on)).hexdigest()[:32]}.json"
