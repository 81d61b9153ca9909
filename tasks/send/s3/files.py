"""The files to upload as a store gets them, and the manifest that lists the objects in the bucket."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from tasks.shared.blanked import blanked
from tasks.shared.errors import InputError
from tasks.shared.files.data_directory import is_ndjson_name

LONGEST_KEY: Final = 1024
"""Bytes of UTF-8 that S3 allows a key."""

_TYPES: Final = (
    (".zst", "application/zstd"),
    (".csv", "text/csv; charset=utf-8"),
    (".json", "application/json"),
)
_UNKNOWN: Final = "application/octet-stream"


def job_prefix(prefix: str | None, job_id: str) -> str:
    """Return the prefix of the keys of one job: ``[prefix/]<job id>/``. Slashes around the prefix are ignored."""
    front = (prefix or "").strip("/")
    return f"{front}/{job_id}/" if front else f"{job_id}/"


def object_key(prefix: str, name: str) -> str:
    """Return the key of the file ``name`` (its path below the input directory) under a job's prefix.

    Raises ``InputError`` (``s3-key-too-long``) for a key that no store takes.
    """
    key = prefix + name
    if len(key.encode()) > LONGEST_KEY:
        raise InputError(
            "s3-key-too-long",
            f"send: the object key of a file is longer than {LONGEST_KEY} bytes",
            context=name,
            hint="shorten services.send.s3.prefix or the name of the file",
        )
    return key


def content_type(name: str) -> str:
    """Return the ``Content-Type`` for a file name. Compressed NDJSON is a zstd file without ``Content-Encoding``.

    With one, a client would unpack on the way and find other bytes than ``sha256`` speaks of.
    """
    lower = name.lower()
    if is_ndjson_name(lower) and not lower.endswith(".zst"):
        return "application/fhir+ndjson"
    return next((kind for suffix, kind in _TYPES if lower.endswith(suffix)), _UNKNOWN)


MANIFEST: Final = "upload_manifest.json"
"""What is in the bucket after the upload: a JSON list of ``{"key", "size", "sha256", "etag", "time"}`` in the order of
the keys. It is the last object that is uploaded, and a copy is in the job's ``send/``."""


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


def manifest(objects: Iterable[Uploaded]) -> bytes:
    """Return the text of the manifest."""
    return blanked(msgspec.json.format(msgspec.json.encode(sorted(objects)), indent=2)) + b"\n"
