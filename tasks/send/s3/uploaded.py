"""The objects that are in the bucket, and the manifest that lists them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tasks.shared.blanked import blanked
from tasks.shared.files.out_file import write_file

MANIFEST: Final = "upload_manifest.json"
"""What is in the bucket after the upload: a JSON list of ``{"key", "size", "sha256", "etag", "time"}`` in the order of
the keys. It stays on this machine: its times would change the bucket with every repeated send."""


class Uploaded(msgspec.Struct, frozen=True, order=True):
    """One object that is in the bucket: ``size`` in bytes, ``etag`` without quotes, ``time`` in UTC: when the object
    was uploaded, as far as the store or this program knows."""

    key: str
    size: int
    sha256: str
    etag: str
    time: str


def timestamp(moment: datetime) -> str:
    """Return a moment in the format of the manifest: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_manifest(directory: Path, objects: Iterable[Uploaded]) -> Path:
    """Write the manifest into ``directory`` (the job's ``send/``); it appears whole. Raises ``StorageError``."""
    text = msgspec.json.format(msgspec.json.encode(sorted(objects)), indent=2)
    return write_file(directory / MANIFEST, blanked(text) + b"\n")
