"""What is doubtful about an object that is there, though it is the one that was uploaded (document 3 §7)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

_ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_SOON: Final = timedelta(days=30)
_EXPIRY: Final = re.compile('expiry-date="([^"]{1,64})"')


def remarks_on(head: Mapping[str, Any], now: datetime | None = None) -> Iterator[str]:
    """Yield a warning for each problem of an object; ``head`` is the answer to HEAD as boto3 reads it.

    No warning contains a value of the object, so the same problem of many objects gives one warning.
    """
    if head.get("DeleteMarker"):
        yield "the store reports uploaded objects as deleted: does another program delete them?"
    if head.get("ContentEncoding"):
        yield "the store reports a Content-Encoding that was not sent: readers may try to decompress the objects"
    if head.get("StorageClass") in _ARCHIVES:
        yield "the store puts objects into an archive storage class: they must be restored before they can be read"
    if _expires(str(head.get("Expiration") or ""), (now or datetime.now(UTC)) + _SOON):
        yield "the store deletes objects within 30 days: see the lifecycle rules of the bucket"


def _expires(expiration: str, before: datetime) -> bool:
    """Whether an ``x-amz-expiration`` names a moment that is not after ``before``."""
    found = _EXPIRY.search(expiration)
    try:
        moment = parsedate_to_datetime(found[1]) if found else None
    except ValueError:
        return False
    return moment is not None and (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) <= before
