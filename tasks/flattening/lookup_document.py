"""The text of a lookup file as JSON: strict, and a key that is written twice is not lost (document 3 §5).

References: ``lookup-unreadable``, ``lookup-not-json``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final, NoReturn

from tasks.shared.errors import InputError

LARGEST_FILE: Final = 64 << 20
"""Bytes. A data file given by mistake must not fill the memory."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class _Repeating(dict[str, Any]):
    """A JSON object in whose text a key stands more than once; the last value counts."""

    repeated: tuple[str, ...] = ()


def read_document(path: Path) -> Any:
    """The JSON document in the file. Raises ``InputError`` (``lookup-unreadable``, ``lookup-not-json``)."""
    content = _read(path)

    def refuse(message: str, where: str = "", hint: str | None = None) -> NoReturn:
        raise InputError("lookup-not-json", message, context=f"{path}{where}", hint=hint) from None

    if content.startswith(b"\xef\xbb\xbf"):
        refuse("the lookup file begins with a byte order mark, which JSON does not allow", "", "save it without BOM")
    try:
        document = json.loads(content.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
        if _SURROGATE.search(content):
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        refuse("the lookup file is not UTF-8", f":{content.count(10, 0, error.start) + 1}", "save it as UTF-8")
    except UnicodeEncodeError:
        refuse("an escape in the lookup file is half of a character", "", r"such as \ud83d without its second half")
    except json.JSONDecodeError as error:
        refuse("the lookup file is not valid JSON", f":{error.lineno}")
    except (ValueError, RecursionError):
        refuse(
            "the lookup file is not valid JSON",
            hint="NaN, Infinity, huge numbers and endless nesting are not allowed",
        )
    return document


def repeated(entry: object) -> tuple[str, ...]:
    """The keys that stand more than once in the text of a JSON object."""
    return entry.repeated if isinstance(entry, _Repeating) else ()


def join(where: str, key: str) -> str:
    """The JSON path of a key: ``[0].elements["Patient.name"].children``."""
    if not _PLAIN_KEY.match(key):
        return f"{where}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{where}.{key}" if where else key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise InputError("lookup-unreadable", f"the lookup file cannot be read: {reason}", context=str(path)) from None
    if len(content) > LARGEST_FILE:
        raise InputError(
            "lookup-unreadable",
            f"this file is larger than {LARGEST_FILE >> 20} MiB",
            context=str(path),
            hint="is it a data file? services.flattening.lookup_path names the lookup table",
        )
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    repeating = _Repeating(plain)
    repeating.repeated = tuple(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
    return repeating


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
