"""What each step reads (``4-product.md`` §4, "What a step reads"), and what of it leaves with ``send``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from config import SendMode
from tasks import CATALOGUE
from tasks.shared.files.inventory import Recorded
from tasks.shared.report import Corrections


@dataclass(frozen=True)
class Source:
    """Data a step reads: the directory, what the step that wrote it counted and listed, and what the data are."""

    path: Path
    lines: int | None
    tables: bool = False
    files: int | None = None
    recorded: Recorded | None = None


class Sources:
    """The data in the directory of a job, while its steps finish one after the other.

    ``newest`` is the output of the nearest step before, ``resources`` the same or the NDJSON that ``flattening`` read.
    """

    def __init__(self, steps: Sequence[str], send_as: SendMode | None) -> None:
        self._steps = steps
        self._direct = send_as is SendMode.DIRECT_RESOURCE_LOAD
        self.newest: Source | None = None
        self.resources: Source | None = None

    def wrote(self, source: Source) -> None:
        """A step has made data."""
        self.newest = source
        self.resources = self.resources if source.tables else source

    def read_by(self, name: str) -> Source | None:
        """What a step of this name reads now."""
        return self.resources if name == "send" and self._direct else self.newest

    def leaving(self, position: int) -> Source | None:
        """What ``send`` will read, as seen from ``position``; ``None`` when a step before it makes other data of it."""
        for name in self._steps[position:]:
            if name == "send":
                return self.read_by(name)
            if CATALOGUE[name].output is not None:
                return None
        return None

    def readers(self, position: int) -> list[int]:
        """The steps that read what a wait at ``position`` releases, until another wait releases the same data anew."""
        found: list[int] = []
        made: set[str] = set()  # by steps before, of that data
        for at, name in enumerate(self._steps[position:], start=position + 1):
            if name == "wait" and not made:
                break
            if name != "wait" and (not made or (name == "send" and self._direct and made == {"flattening"})):
                found.append(at)
            if CATALOGUE[name].output is not None:
                made.add(name)
        return found

    def corrections(self, position: int) -> Corrections:
        """Which corrected files a wait at ``position`` can take."""
        if self.newest is None or not self.newest.tables:
            return Corrections.NDJSON
        leaving = self.leaving(position)
        return Corrections.NOT_SENT if leaving is not None and leaving is not self.newest else Corrections.TABLES
