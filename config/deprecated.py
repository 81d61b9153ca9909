"""Deprecated keys, accepted with a warning (docs/configuration.md), and the names of keys in aether, for hints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from config.findings import Finding

if TYPE_CHECKING:
    from config.sources import Given

BASIC = ("username", "password")
OAUTH2 = ("oauth_issuer_uri", "oauth_client_id", "oauth_client_secret")

_EXTRACTOR, _AUTH = "services.extractor", "services.extractor.auth"
_FLAT = {f"{_EXTRACTOR}.{name}": f"{_AUTH}.{name}" for name in (*BASIC, *OAUTH2)}
_UNITS = {"extraction_timeout_minutes": "m", "polling_interval_seconds": "s", "max_polling_interval_seconds": "s"}
"""Deprecated integer keys of the extractor → unit of the number."""
_LINE_SIZE = "pipeline.max_ndjson_line_size_mb"

DEPRECATED = {
    **_FLAT,
    **{f"{_EXTRACTOR}.{name}": f"{_EXTRACTOR}.{name.rpartition('_')[0]}" for name in _UNITS},
    _LINE_SIZE: "limits.max_line_mb",
}
"""Deprecated key → key that replaces it."""

_RENAMED = {
    "crtdl_preprocessing": "services.crtdl_preprocessing",
    "services.torch": _EXTRACTOR,
    "services.dimp": "services.pseudonymizer",
    "services.send.server_url": "services.send.url",
    "services.send.project_identifier": "services.send.transfer.project_identifier",
    "services.send.organization_identifier": "services.send.transfer.organization_identifier",
    "services.csv_conversion": "services.flattening",
    "services.parquet_conversion": "services.flattening",
}
"""Key or block of aether's configuration → its name here."""


def name_of_today(key: str) -> str | None:
    """Return the name here of a key or block of aether's configuration; ``None`` for any other name."""
    renamed = ((old, new) for old, new in _RENAMED.items() if f"{key}.".startswith(f"{old}."))
    return next((new + key.removeprefix(old) for old, new in renamed), None)


def translate(table: dict[str, Given]) -> Iterator[Finding]:
    """Move the values of deprecated keys to the current keys; yield a warning for each, and an error for a conflict."""
    flat = [key.rpartition(".")[2] for key in table if key in _FLAT]
    if flat and (block := next((one for key, one in table.items() if key.startswith(f"{_AUTH}.")), None)):
        message = f"the auth block is used together with the deprecated flat keys ({', '.join(flat)})"
        yield Finding("auth-flat-and-block", _AUTH, message, "move them all into the auth block", where=block.where)
    for old in [key for key in DEPRECATED if key in table]:
        yield from _translate(old, DEPRECATED[old], table)


def _translate(old: str, new: str, table: dict[str, Given]) -> Iterator[Finding]:
    given, name = table.pop(old), old.rpartition(".")[2]
    yield Finding("deprecated-key", old, f"{name} is deprecated", f"use {new}", "warning", where=given.where)
    if new in table and old not in _FLAT:
        message = f"{name} is an older form of {new}, which is set too"
        yield Finding("deprecated-and-current", old, message, "remove the older one", where=given.where)
    elif new not in table and (old, given.value) != (_LINE_SIZE, "0"):  # 0 means the default
        value = f"{given.value}{_UNITS[name]}" if name in _UNITS else given.value
        table[new] = replace(given, value=value, where=f"{given.where}, as {name}")
