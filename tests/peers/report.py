"""The release report of a job, as its reader finds it: ``report/release-report.json`` and the page beside it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def page_of(job: Path) -> Path:
    """Return the path of the page."""
    return job / "report/release-report.html"


def document_of(job: Path) -> Path:
    """Return the path of the document."""
    return page_of(job).with_suffix(".json")


def document(job: Path) -> Any:
    """Return the document, its members as attributes."""
    return json.loads(document_of(job).read_text(encoding="utf-8"), object_hook=lambda found: SimpleNamespace(**found))
