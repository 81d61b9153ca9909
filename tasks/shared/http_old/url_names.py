"""Names of files from the URLs they come from (document 1, procedure 7; document 3 §2 and §8).

A name is the last path segment without the query, decoded; characters that are not letters, digits, blanks or
``.-_()`` become ``_``.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tasks.shared.files.data_directory import base_name
from tasks.shared.http_old.answer import place

UNNAMED = "download"
"""Base name of a file whose URL has no last path segment."""

_NAME_BYTES = 200
_PUNCTUATION = " .-_()"


@dataclass(frozen=True)
class NamedUrl:
    """A URL and the base name its file gets. The query may be a permission: it never shows."""

    url: str
    base: str

    def __repr__(self) -> str:
        return f"NamedUrl({place(self.url)!r}, {self.base!r})"


def file_name(url: str) -> str:
    """Return the file name at the end of a URL; empty without a usable one."""
    return _safe(_segment(url))


def base_of(url: str) -> str:
    """Return the file name without ``.ndjson`` and ``.zst``; ``download`` if nothing is left."""
    name = _segment(url)
    name = base_name(name.removesuffix(".zst") if not name.lower().endswith(".ndjson.zst") else name)
    return _safe(name) or UNNAMED


def named_urls(urls: Sequence[str]) -> list[NamedUrl]:
    """Name each URL's file, in order: the same list, the same names, and no two are equal in whatever case.

    When a name occurs again the later ones get ``-2``, ``-3``, …
    """
    bases = [base_of(url) for url in urls]
    taken = {name for name, count in Counter(map(str.casefold, bases)).items() if count == 1}
    given: set[str] = set()
    next_number: dict[str, int] = {}
    found: list[NamedUrl] = []
    for url, wanted in zip(urls, bases, strict=True):
        base = wanted
        number = next_number.get(wanted.casefold(), 1)
        while base.casefold() in given or (number > 1 and base.casefold() in taken):
            number += 1
            base = f"{wanted}-{number}"
        next_number[wanted.casefold()] = number
        given.add(base.casefold())
        found.append(NamedUrl(url, base))
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
    """Return whether the text is meant as an HTTP URL."""
    return text.lower().startswith(("http://", "https://"))
