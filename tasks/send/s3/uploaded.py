"""The objects that are in the bucket: the manifest that lists them, and the ledger of an upload in shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from tasks.send import LEDGER
from tasks.shared.blanked import blanked
from tasks.shared.errors import storage_errors
from tasks.shared.files.ledger import Ledger
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


class UploadFacts(msgspec.Struct, frozen=True):
    """An object in the ledger of a shard. ``there``: it had not to be sent. ``warnings`` are those of the bucket."""

    object: Uploaded
    there: bool
    warnings: tuple[str, ...]


class UploadLedger:
    """The ledger of an upload in shards: each notes its objects, and the step does not look for them again.

    ``identities`` has for each file, by its name, its content and where it goes. An upload that is not divided has no
    ledger: the bucket shows which objects are there. Raises ``StorageError``.
    """

    def __init__(self, directory: Path, identities: Mapping[str, str]) -> None:
        self._path = directory / LEDGER
        self._identities = identities

    def recorded_objects(self) -> dict[str, UploadFacts]:
        """Return the objects that the shards left, by the names of the files."""
        with storage_errors(self._path):
            if not self._path.exists():
                return {}
        with Ledger(self._path) as ledger:
            found = {name: ledger.account(name, identity).complete for name, identity in self._identities.items()}
        return {name: msgspec.convert(facts, UploadFacts) for name, facts in found.items() if facts is not None}

    def record(self, objects: Mapping[str, UploadFacts]) -> None:
        """Note objects that are in the bucket now, by the names of their files."""
        with Ledger(self._path) as ledger:
            for name, facts in objects.items():
                ledger.account(name, self._identities[name])
                ledger.complete(name, msgspec.to_builtins(facts))

    def remove(self) -> None:
        """Remove the ledger, after the manifest was written."""
        with storage_errors(self._path):
            self._path.unlink(missing_ok=True)


def timestamp(moment: datetime) -> str:
    """Return a moment in the format of the manifest: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_manifest(directory: Path, objects: Iterable[Uploaded]) -> Path:
    """Write the manifest into ``directory`` (the job's ``send/``); it appears whole. Raises ``StorageError``."""
    text = msgspec.json.format(msgspec.json.encode(sorted(objects)), indent=2)
    return write_file(directory / MANIFEST, blanked(text) + b"\n")
