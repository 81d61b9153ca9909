"""What a transfer remembers over a crash: ``send/transfer.json``, small JSON a person can read.

It is written before the thing it guards: the id of a Binary before its upload begins, the ids of old Binaries before
the DocumentReference that names them is replaced. So nothing is left on the server that a later run of this job does
not know of.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tasks.send.transfer.archive import Archive
from tasks.shared.errors import storage_error
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import read_file

JOURNAL: Final = "transfer.json"


class Journal(msgspec.Struct, frozen=True):
    """The state of one job's transfer to ``target``, the base URL of the FHIR store.

    ``archive`` is the zip of the contents with this identity, ``uploaded`` whether the server confirmed its Binary,
    ``date`` that of the DocumentReference, ``leftovers`` the Binary ids that are to go once another one stands.
    """

    target: str
    contents: str
    date: str
    archive: Archive | None = None
    uploaded: bool = False
    leftovers: tuple[str, ...] = ()


def load_journal(directory: Path, *, target: str, contents: str, date: str) -> Journal:
    """The journal for these contents and this target; a fresh one, dated ``date``, when there is none.

    What an earlier run of this job left at the same target is remembered even if the contents are others now.
    """
    path = directory / JOURNAL
    fresh = Journal(target, contents, date)
    try:
        known = msgspec.json.decode(read_file(path), type=Journal)
    except FileNotFoundError:
        return fresh
    except msgspec.DecodeError:
        return fresh  # written by another version: at worst an upload is repeated, which changes nothing
    except OSError as error:
        raise storage_error(error, path) from None
    if known.target != target:
        return fresh
    if known.contents != contents:
        return msgspec.structs.replace(fresh, leftovers=known.leftovers)
    return known


def save_journal(directory: Path, journal: Journal) -> None:
    """Replace the journal; durable when this returns."""
    write_file(directory / JOURNAL, msgspec.json.format(msgspec.json.encode(journal), indent=2) + b"\n")
