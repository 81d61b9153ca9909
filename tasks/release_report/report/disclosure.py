"""Which numbers and texts of the data a report shows, with its ``k`` and its number of patients."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from tasks.release_report.measure.kinds import PART, r4_types
from tasks.release_report.measure.measured import Measured
from tasks.release_report.report.numbers import HIDDEN, Count, banded, printable

_UNKNOWN: Final = "…"
"""What stands in a path for a part that is data and that few patients have."""


_NOT_IN_TABLE: Final = frozenset(
    {
        *("Element", "ResourceList", "id", "extension", "modifierExtension", "contained"),
        *("base64Binary", "boolean", "canonical", "decimal", "instant", "integer", "markdown", "oid", "positiveInt"),
        *("string", "unsignedInt", "uuid", "xhtml"),
    }
)
"""Names of R4 that the table of types does not have."""


@functools.cache
def r4_names() -> frozenset[str]:
    """Return the names of all types and elements of R4: texts of FHIR, not of the data."""
    types = r4_types()
    return _NOT_IN_TABLE.union((name for name in types if "_" not in name), *types.values())


@dataclass(frozen=True)
class Disclosure:
    """What a report on ``measured``, the data to be sent, shows.

    ``asked`` are codes and texts of the query. ``ours`` is true if no person corrected files, so that names of tables
    and columns are not private.
    """

    k: int
    measured: Measured
    imported: Measured | None = None
    asked: frozenset[str] = frozenset()
    ours: bool = True

    @property
    def enough(self) -> bool:
        """Return whether there are ``k`` patients."""
        return self.measured.patients >= self.k

    def count(self, patients: int) -> Count:
        """Return a number of those who leave."""
        return banded(patients, self.k, self.measured.patients)

    def before(self, patients: int) -> Count:
        """Return a number of those in ``import/``."""
        return banded(patients, self.k, self.imported.patients if self.imported is not None else None)

    def text(self, value: str, patients: int) -> str | None:
        """Return a text from the data if ``k`` patients share it; what the query says itself is free."""
        return value if (value in self.asked or patients >= self.k) and printable(value) else None

    def path(self, path: str, patients: int | None = None) -> str:
        """Return a path, without a URL or a name in it that few patients have. ``patients`` have the path."""
        if self.measured.tables and self.ours:
            return path
        have = self._having(path) if patients is None else patients
        if have >= self.k and printable(path):
            return path
        parts: list[str] = []
        walked = ""
        for match in PART.finditer(path):
            name, url = match[1], match[2]
            walked = f"{walked}.{match[0].rstrip('.')}" if walked else match[0].rstrip(".")
            known = name in r4_names() or name.endswith("[x]")
            shown = name if known or self._having(walked) >= self.k else _UNKNOWN
            if url and shown == name:
                free = self.extension(url[1:-1]) is not None
                shown += url if free else f"({_UNKNOWN})"
            parts.append(shown)
        return ".".join(parts)

    def extension(self, url: str) -> str | None:
        """Return the URL of an extension if ``k`` patients share it here or in ``import/``."""
        both = [self.measured, *([self.imported] if self.imported is not None else [])]
        return self.text(url, max(one.extensions.get(url, 0) for one in both))

    def _having(self, path: str) -> int:
        """Return the largest known number of patients with a path or one below it, here or in ``import/``."""
        found = 0
        for measured in (self.measured, self.imported):
            if measured is None or found >= self.k:
                continue
            at = measured.paths.get(path)
            found = max(found, at.patients if at is not None else measured.elements.get(path, 0))
            if found < self.k:
                inside = (f"{path}.", f"{path}(")
                below = (of.patients for name, of in measured.paths.items() if name.startswith(inside))
                found = max([found, *below])
        return found

    def type(self, name: str) -> str:
        """Return a resource type: a name of FHIR, or a text from the data."""
        if name in r4_names():
            return name
        counted = self.measured.types.get(name)
        return self.text(name, counted.patients if counted else 0) or HIDDEN
