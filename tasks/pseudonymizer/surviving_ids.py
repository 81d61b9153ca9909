"""Original ids that are still there after pseudonymization: counted, never named.

Rules may keep ids on purpose (of an Organization, of a Medication), so what is found is a warning and not an error. It
catches rules that treat ids and references differently, and a service that runs without the rules it was meant to have.

An id is original when a resource of the request has it or a reference of the request ends in it. ``fullUrl``,
``request.url`` and references of the answer are compared by their last segment, whatever stands before it.
Within one request that is exact and takes no memory for the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import itemgetter
from typing import Final

from tasks.pseudonymizer.answer_check import ResourceSummary

PLACES: Final = ("id", "fullUrl", "request.url", "reference")
"""Where ids can survive, as in the counts."""

_URN: Final = "urn:uuid:"


def survivors(
    sent: Iterable[bytes], given: ResourceSummary, received: Iterable[bytes], answer: ResourceSummary
) -> Counter[str]:
    """Count the original ids of a request that are in its answer, by place. ``sent`` and ``received`` are the
    references in both."""
    # This runs for every request: comprehensions and sets, nothing per entry that could be done once.
    originals = {given.id, *given.ids, *map(target_of, set(sent))}
    originals -= {None, ""}
    places = answer.full_urls, answer.request_urls, [answer.id, *answer.ids]
    if any(_URN in "\n".join(filter(None, texts)) for texts in places):
        originals |= {f"{_URN}{one}" for one in originals}
    is_original = originals.__contains__
    references = Counter(received)
    return Counter(
        {
            "id": sum(map(is_original, answer.ids)) + is_original(answer.id),
            "fullUrl": sum(map(is_original, _last_segments(answer.full_urls))),
            "request.url": sum(map(is_original, _last_segments(answer.request_urls))),
            "reference": sum(n for one, n in references.items() if is_original(target_of(one))),
        }
    )


def _last_segments(urls: Iterable[str]) -> Iterator[str]:
    return map(itemgetter(2), map(str.rpartition, urls, repeat("/")))


def target_of(reference: bytes) -> str | None:
    """The id in a reference: relative, absolute, with a version, or a ``urn:``.

    ``None`` when there is none: a contained resource, a search.
    """
    text = reference.decode()
    if text[:1] == "#" or "?" in text:
        return None
    place = text.partition("/_history/")[0].rpartition("/")[2]
    return place.rpartition(":")[2] or None
