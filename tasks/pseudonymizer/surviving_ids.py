"""Count the original ids of a request that are still in its answer, by place; they are named nowhere.

Rules may keep ids on purpose (of an Organization, of a Medication), so what is found is a warning and not an error. It
catches rules that treat ids and references differently, and a service that runs without the rules it was meant to have.
An id is original when a resource of the request has it or a reference of the request ends in it. ``fullUrl``,
``request.url`` and references of the answer are compared by their last segment, whatever stands before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import itemgetter
from typing import Final

from tasks.pseudonymizer.answer_check import ResourceSummary

PLACES: Final = ("id", "fullUrl", "request.url", "reference")
"""Where ids can survive, as in the counts."""

_URN: Final = "urn:uuid:"
_REFERENCES: Final = re.compile(rb'reference"(?<="reference")\s*:\s*"([^"\\]+)"').findall
"""Begins with the name: each byte that a match can begin with is looked at, and the quotes are many."""


def survivors(sent: ResourceSummary, received: ResourceSummary) -> Counter[str]:
    """Count the original ids of a request that are in its answer, by place."""
    # This runs for every request: comprehensions and sets, nothing per entry that could be done once.
    originals = {sent.id, *sent.ids, *map(_id_named_by, set(_REFERENCES(sent.text)))}
    originals -= {None, ""}
    places = received.full_urls, received.request_urls, [received.id, *received.ids]
    if any(_URN in "\n".join(filter(None, texts)) for texts in places):
        originals |= {f"{_URN}{one}" for one in originals}
    is_original = originals.__contains__
    references = Counter(_REFERENCES(received.text))
    return Counter(
        {
            "id": sum(map(is_original, received.ids)) + is_original(received.id),
            "fullUrl": sum(map(is_original, _last_segments(received.full_urls))),
            "request.url": sum(map(is_original, _last_segments(received.request_urls))),
            "reference": sum(n for one, n in references.items() if is_original(_id_named_by(one))),
        }
    )


def _last_segments(urls: Iterable[str]) -> Iterator[str]:
    return map(itemgetter(2), map(str.rpartition, urls, repeat("/")))


def _id_named_by(reference: bytes) -> str | None:
    """Return the id in a reference: relative, absolute, with a version, or a ``urn:``.

    ``None`` when there is none: a contained resource, a search.
    """
    text = reference.decode()
    if text[:1] == "#" or "?" in text:
        return None
    place = text.partition("/_history/")[0].rpartition("/")[2]
    return place.rpartition(":")[2] or None
