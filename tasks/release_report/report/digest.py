"""The hash of a release report: what a decision is given for (document 5, section 17)."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tasks.release_report.report.document import ReleaseReport

_OF_THE_MOMENT: Final = {"decisions", "made", "seconds"}
"""What is not of the data: a report that is made again of the same files has the same hash."""


def sha256(report: ReleaseReport) -> str:
    """SHA-256 (hex) over the document as JSON with sorted keys, without its decisions, its moment and its seconds."""
    content = report.model_dump(mode="json", exclude=_OF_THE_MOMENT)
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
