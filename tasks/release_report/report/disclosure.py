"""The rules of publication for one report, with its ``k`` and its number of patients.

Each number and text about the data gets into the report through this, so that R3, R7 and R11 are kept in one place.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tasks.release_report import publication
from tasks.release_report.measure.kinds import PART, r4_types
from tasks.release_report.measure.measured import Measured
from tasks.release_report.publication import HIDDEN, Cells, Count, own_name
from tasks.release_report.publication_counts import count_before, least_beside

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
    """Return the names of all types and elements of R4: texts of FHIR, not of the data (R7)."""
    types = r4_types()
    return _NOT_IN_TABLE.union((name for name in types if "_" not in name), *types.values())


@dataclass(frozen=True)
class Disclosure:
    """Publication rules for a report on ``measured``, the data to be sent.

    ``asked`` are codes and texts of the query. ``ours`` is true if no person corrected files, so that names of tables
    and columns are not private.
    """

    k: int
    recipient: bool
    measured: Measured
    imported: Measured | None = None
    asked: frozenset[str] = frozenset()
    ours: bool = True

    @property
    def all(self) -> int:
        """Exact number of patients."""
        return self.measured.patients

    @property
    def enough(self) -> bool:
        """R6: whether more than alarms may be said."""
        return publication.enough(self.all, self.k, rounded=self.recipient)

    def everybody(self) -> int | Count:
        """R6: the number of patients, as this copy says it."""
        return publication.everybody(self.all, self.k, recipient=self.recipient)

    def technical(self, number: int) -> int:
        """Return a number of resources or lines as this copy rounds it (R1 and R6)."""
        return publication.technical(number, recipient=self.recipient)

    def files(self, number: int) -> int:
        """Return the number of files, rounded where that of patients is (R6): each file may be one patient's."""
        exact = number == 1 or (self.enough and (number < self.k or not self.recipient))
        return number if exact else publication.technical(number)

    def bytes(self, number: int) -> int:
        """Return a number of bytes, in two digits in the recipient's copy (R6)."""
        return int(publication.two_digits(number)) if self.recipient else number

    def count(self, patients: int) -> Count:
        """R3: of those who leave."""
        return publication.count(patients, self.k, of=self.all, rounded=self.recipient)

    def least_beside(self, patients: int) -> int:
        """Return the least that is printed beside a number of patients, of what is at least as many (R1)."""
        most = publication.possible_range(self.all, self.k, rounded=self.recipient)[1]
        return least_beside(self.count(patients), most)

    @property
    def all_before(self) -> int | None:
        """Number of patients in ``import/``, or ``None`` if it may not be shown beside the sent ones (R6)."""
        if self.imported is None:
            return None
        imported = self.imported.patients
        said = publication.flow(self.all, [("", imported)], self.k, rounded=self.recipient)[""]
        return imported if said is not None else None

    def before(self, patients: int, now: int = 0) -> Count:
        """R3: of those in ``import/``; "all" would tell how many they are. ``now`` of them still have it: what was
        before is not printed as fewer than this may be."""
        return count_before(
            patients, self.k, of=self.all_before, now=self.count(now), of_now=self.all, rounded=self.recipient
        )[0]

    def coded(self, patients: int, text: str) -> Count:
        """R11: of those with a code."""
        asked = text in self.asked
        return publication.count_of_text(patients, self.k, of=self.all, asked=asked, rounded=self.recipient)

    def share(self, patients: int, text: str) -> str | None:
        """R5: of those with a code, in percent; none where R11 does not say that all have it. Of the number of all that
        this copy says: many shares of another one would tell it (R6)."""
        everybody = self.everybody()
        of = everybody if isinstance(everybody, int) else everybody.number or 0
        percent = publication.share(self.coded(patients, text), of)
        return None if percent is None else f"{percent} %"

    def quartiles(self, values: tuple[float, float, float] | None, patients: int) -> tuple[float, float, float] | None:
        """R8: of one value a patient."""
        return publication.quartiles(values, patients, self.k, rounded=self.recipient)

    def text(self, value: str, patients: int) -> str | None:
        """R7: a text from the data; what the query says itself is free."""
        if value in self.asked and publication.printable(value):
            return value
        return publication.text(value, patients, self.k)

    def cells(self, patients: Mapping[str, int]) -> Cells:
        """R4. Those of more than all patients are not disjoint, and their sum tells nothing."""
        disjoint = sum(patients.values()) <= self.all
        return publication.cells(patients, self.k, rounded=self.recipient and disjoint)

    def shared(self, patients: Mapping[str, int]) -> dict[str, int]:
        """R4 and R7: texts from the data with numbers to be said as counts, without those that are not said. Where each
        patient has one of them they are disjoint cells, so the smallest one goes with those of few patients."""
        numbers = self.cells(patients).numbers
        return {value: numbers[value] for value in publication.texts(patients, self.k) if value in numbers}

    def path(self, path: str, patients: int | None = None) -> str:
        """R7: a path, without a URL or a name in it that few patients have. ``patients`` have the path."""
        if self.measured.tables and self.ours:
            return path
        have = self._having(path) if patients is None else patients
        if have >= self.k and publication.printable(path):
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
        """R7: the URL of an extension, which ``k`` patients share here or in ``import/``."""
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
        """R7: a resource type: a name of FHIR, or a text from the data."""
        if name in r4_names():
            return name
        counted = self.measured.types.get(name)
        return self.text(name, counted.patients if counted else 0) or HIDDEN

    def file(self, name: str) -> str:
        """R7: the name of a file that leaves, or its number in their order where few patients are in it."""
        for number, file in enumerate(self.measured.files, start=1):
            if file.name == name:
                free = own_name(name) or file.patients >= self.k or (self.measured.tables and self.ours)
                return name if free and publication.printable(name) else f"#{number}"
        return name if own_name(name) else "@unnamed-file"
