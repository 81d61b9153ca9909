"""``send/upload_manifest.json``: what stands in the bucket after the upload (document 3 §7).

A JSON list of ``{"key", "size", "sha256", "etag", "time"}`` in the order of the keys; ``size`` in bytes, ``etag``
without quotes, ``time`` in UTC: when the object was uploaded, as far as the store or this program knows. It appears
when all files are there, and stays on this machine: its times would change the bucket with every repeated send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tasks.shared.blanked import blanked
from tasks.shared.errors import storage_error, storage_errors
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import read_file

MANIFEST: Final = "upload_manifest.json"

IN_PARTS: Final = "in_parts.json"
"""Keys of the files that a run sends in parts, written before it begins with the first: a killed one leaves it."""


class Uploaded(msgspec.Struct, frozen=True, order=True):
    """One object that is in the bucket."""

    key: str
    size: int
    sha256: str
    etag: str
    time: str


def timestamp(moment: datetime) -> str:
    """A moment as the manifest spells it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_manifest(directory: Path, objects: Iterable[Uploaded]) -> Path:
    """Write the manifest into ``directory`` (the job's ``send/``); it appears whole. Raises ``StorageError``."""
    text = msgspec.json.format(msgspec.json.encode(sorted(objects)), indent=2)
    return write_file(directory / MANIFEST, blanked(text) + b"\n")


def begun_in_parts(directory: Path) -> tuple[str, ...]:
    """The keys that a run which did not end sent in parts; none after one that did. Raises ``StorageError``."""
    try:
        return msgspec.json.decode(read_file(directory / IN_PARTS), type=tuple[str, ...])
    except (FileNotFoundError, msgspec.DecodeError):
        return ()
    except OSError as error:
        raise storage_error(error, directory / IN_PARTS) from None


def write_in_parts(directory: Path, keys: Collection[str]) -> None:
    """Note the keys that are about to be sent in parts; without any, forget the note. Raises ``StorageError``."""
    if keys:
        write_file(directory / IN_PARTS, msgspec.json.encode(sorted(keys)) + b"\n")
    else:
        with storage_errors(directory / IN_PARTS):
            (directory / IN_PARTS).unlink(missing_ok=True)
