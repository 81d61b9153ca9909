"""Derive the names of files from their URLs (docs/steps.md).

A name is the last path segment without the query, decoded; characters that are not letters, digits, blanks or
``.-_()`` become ``_``.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from urllib.parse import unquote, urlsplit

from tasks.shared.files.data_directory import base_name

_NAME_BYTES = 200
_PUNCTUATION = " .-_()"


def file_name(url: str) -> str:
    """Return the file name at the end of a URL; empty without a usable one."""
    return _safe(_segment(url))


def base_of(url: str) -> str:
    """Return the file name without ``.ndjson`` and ``.zst``; ``download`` if nothing is left."""
    name = _segment(url)
    name = base_name(name.removesuffix(".zst") if not name.lower().endswith(".ndjson.zst") else name)
    return _safe(name) or "download"


def named_urls(urls: Sequence[str], taken: Iterable[str] = ()) -> dict[str, str]:
    """Return base name → URL, in order. The same list always gives the same names.

    No two names are equal, in any case, nor equal to one in ``taken``: repeated names get ``-2``, ``-3``, …
    """
    bases = [base_of(url) for url in urls]
    wanted = {base.casefold() for base in bases}
    given = {base.casefold() for base in taken}
    numbers: Counter[str] = Counter()
    found: dict[str, str] = {}
    for url, base in zip(urls, bases, strict=True):
        name, folded = base, base.casefold()
        while name.casefold() in (given if name == base else given | wanted):
            numbers[folded] += 1
            name = f"{base}-{numbers[folded] + 1}"
        given.add(name.casefold())
        found[name] = url
    return found


def _segment(url: str) -> str:
    try:
        return unicodedata.normalize("NFC", unquote(urlsplit(url).path.rpartition("/")[2], errors="replace"))
    except ValueError:
        return ""


def _safe(name: str) -> str:
    name = "".join(char if char.isalnum() or char in _PUNCTUATION else "_" for char in name).lstrip(". ").rstrip()
    while len(name.encode()) > _NAME_BYTES:
        name = name[:-1]
    return name if name.strip("_") else ""


def is_url(text: str) -> bool:
    """Return whether the text begins like an HTTP URL."""
    return text.lower().startswith(("http://", "https://"))
