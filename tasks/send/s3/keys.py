"""What an object is called, and what it says it is (document 3 §7, s3_upload)."""

from __future__ import annotations

from typing import Final

from tasks.shared.errors import InputError
from tasks.shared.files.names import is_ndjson_name

LONGEST_KEY: Final = 1024
"""Bytes of UTF-8 that S3 allows a key."""

_TYPES: Final = (
    (".zst", "application/zstd"),
    (".csv", "text/csv; charset=utf-8"),
    (".json", "application/json"),
    (".parquet", "application/vnd.apache.parquet"),
)
_UNKNOWN: Final = "application/octet-stream"


def job_prefix(prefix: str | None, job_id: str) -> str:
    """What the keys of one job begin with: ``[prefix/]<job id>/``. Slashes around the prefix do not count."""
    front = (prefix or "").strip("/")
    return f"{front}/{job_id}/" if front else f"{job_id}/"


def object_key(prefix: str, name: str) -> str:
    """The key of the file ``name`` (its path below the input directory) under a job's prefix.

    Raises ``InputError`` (``s3-key-too-long``) for a key that no store takes.
    """
    key = prefix + name
    if len(key.encode()) > LONGEST_KEY:
        raise InputError(
            "s3-key-too-long",
            f"send: the name of a file makes an object key of more than {LONGEST_KEY} bytes",
            context=name,
            hint="a shorter services.send.s3.prefix or a shorter name of the file helps",
        )
    return key


def content_type(name: str) -> str:
    """The ``Content-Type`` for a file name. Compressed NDJSON is a zstd file: it gets no ``Content-Encoding``.

    With one, a client would unpack on the way and find other bytes than ``sha256`` speaks of.
    """
    lower = name.lower()
    if is_ndjson_name(lower) and not lower.endswith(".zst"):
        return "application/fhir+ndjson"
    return next((kind for suffix, kind in _TYPES if lower.endswith(suffix)), _UNKNOWN)
