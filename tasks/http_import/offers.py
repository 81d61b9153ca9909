"""Whether a URL has something to download, and how much, without downloading it (document 3 §8).

One ``HEAD``, and where that is refused, one ``GET`` of the first byte, which is closed after its head: a URL may be
good for one use, and many a signed link is good for GET alone. No byte of a body is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tasks.shared.http.answer import Answer
from tasks.shared.http.client import ServiceClient

_HEAD_REFUSED: Final = frozenset({400, 403, 404, 405, 406, 501})
"""Answers to HEAD that say nothing about GET. A 401 or 410 is one to both, and what is busy is not asked twice."""

_WHOLE: Final = re.compile(r"bytes (?:\d{1,18}-\d{1,18}|\*)/(\d{1,19})\Z")
_LENGTH: Final = re.compile(r"\d{1,19}\Z", re.ASCII)


@dataclass(frozen=True)
class Offer:
    """What the server says: its status, and the size of the file in bytes, if it gives one."""

    status: int
    size: int | None


def ask(client: ServiceClient, url: str) -> Offer:
    """Ask once. Raises what ``ServiceClient.peek`` raises."""
    answer = client.peek("HEAD", url)
    if answer.status in _HEAD_REFUSED:
        answer = client.peek("GET", url, headers={"Range": "bytes=0-0"})
    return Offer(answer.status, _size(answer))


def _size(answer: Answer) -> int | None:
    if answer.status in (206, 416):
        whole = _WHOLE.match(answer.headers.get("content-range", ""))
        return int(whole[1]) if whole else None
    length = answer.headers.get("content-length", "")
    return int(length) if answer.status == 200 and _LENGTH.match(length) else None
