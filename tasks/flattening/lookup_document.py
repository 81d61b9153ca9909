"""The text of a lookup file as JSON: strict, and a key that is written twice is not lost (document 3 §5).

References: ``lookup-unreadable``, ``lookup-not-json``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tasks.shared.json_file import JsonFile, strict_json

_FILE = JsonFile(
    "lookup-unreadable", "lookup-not-json", "the lookup file", "services.flattening.lookup_path names the lookup table"
)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class _Repeating(dict[str, Any]):
    """A JSON object in whose text a key stands more than once; the last value counts."""

    repeated: tuple[str, ...] = ()


def read_document(path: Path) -> Any:
    """The JSON document in the file. Raises ``InputError`` (``lookup-unreadable``, ``lookup-not-json``)."""
    return _FILE.parse(_FILE.read(path), path, _parse)


def _parse(content: bytes) -> Any:
    document = strict_json(content, _object)
    if _SURROGATE.search(content):
        json.dumps(document, ensure_ascii=False).encode()
    return document


def repeated(entry: object) -> tuple[str, ...]:
    """The keys that stand more than once in the text of a JSON object."""
    return entry.repeated if isinstance(entry, _Repeating) else ()


def join(where: str, key: str) -> str:
    """The JSON path of a key: ``[0].elements["Patient.name"].children``."""
    if not _PLAIN_KEY.match(key):
        return f"{where}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{where}.{key}" if where else key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    repeating = _Repeating(plain)
    repeating.repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    return repeating
