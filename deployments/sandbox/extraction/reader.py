"""Read resources of a data directory through its index: by name, by patient, by type, by code."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from deployments.sandbox.extraction.dates import DayRange
from deployments.sandbox.extraction.scan import URL_REFERENCE, code_key
from deployments.sandbox.extraction.tree import Node, decode

_MANY = 500
"""Maximum number of values in one SQL list."""
_COLUMNS = "r.type, r.id, p.id, r.file, r.start, r.length, r.bundle"
_FROM = "FROM resource r LEFT JOIN owner o ON o.resource = r.number LEFT JOIN patient p ON p.number = o.patient"


@dataclass(frozen=True, slots=True)
class ResourceLocation:
    """Position of a resource, with one of its patients or None. A resource of two patients has two locations."""

    type: str
    id: str
    key: str
    """``Type/id``."""
    patient: str | None
    file: int
    start: int
    length: int
    bundle: int | None
    """Offset of the Bundle if references by URL can name its entries."""


class ChangedDataError(Exception):
    """A location now holds a different resource."""


class ResourceReader:
    """Looks up and reads resources; for use in one thread."""

    def __init__(self, db: sqlite3.Connection, files: Sequence[Path]) -> None:
        self._db = db
        self._paths = files
        self._open: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def load(self, place: ResourceLocation) -> Node:
        """Return a resource; references by URL to entries of its Bundle become ``Type/id``.

        Raises ``OSError``, and ``ChangedDataError`` or a decoding error if the file has changed since it was indexed.
        """
        if place.file not in self._open:
            self._open[place.file] = os.open(self._paths[place.file], os.O_RDONLY | os.O_CLOEXEC)
        body = os.pread(self._open[place.file], place.length, place.start)
        if place.bundle is not None:
            body = URL_REFERENCE.sub(lambda match: match[1] + self._target(place, match[2]) + match[3], body)
        node = decode(body)
        # An entry without an id uses that of its fullUrl.
        if (node.get("resourceType"), node.setdefault("id", place.id)) != (place.type, place.id):
            raise ChangedDataError
        return node

    def _target(self, place: ResourceLocation, url: bytes) -> bytes:
        query = "SELECT key FROM url WHERE bundle=? AND url=? AND file=?"
        row = self._db.execute(query, (place.bundle, url.decode("utf-8"), place.file)).fetchone()
        return url if row is None else str(row[0]).encode()

    def patients(self) -> list[str]:
        """Return the ids of all patients, sorted."""
        return [row[0] for row in self._db.execute("SELECT id FROM resource WHERE type='Patient' ORDER BY id")]

    def find(self, kind: str, identity: str, patient: str | None = None) -> ResourceLocation | None:
        """Return one resource by type and id, with this patient if the resource belongs to the patient too."""
        query = f"SELECT {_COLUMNS} {_FROM} WHERE r.type=? AND r.id=? ORDER BY p.id IS ? DESC LIMIT 1"
        row = self._db.execute(query, (kind, identity, patient)).fetchone()
        return None if row is None else _place(row)

    def of_patient(self, patient: str, kinds: Sequence[str]) -> list[ResourceLocation]:
        """Return a patient's resources of some types, sorted by type and id."""
        marks = ",".join("?" * len(kinds))
        query = (
            f"SELECT {_COLUMNS} {_FROM} WHERE o.patient=(SELECT number FROM patient WHERE id=?)"  # noqa: S608
            f" AND r.type IN ({marks}) ORDER BY r.type, r.id"
        )
        return [_place(row) for row in self._db.execute(query, (patient, *kinds))]

    def of_type(self, kind: str) -> Iterator[ResourceLocation]:
        """Yield all resources of a type by id; those of several patients once for each."""
        query = f"SELECT {_COLUMNS} {_FROM} WHERE r.type=? ORDER BY r.id"
        for row in self._db.execute(query, (kind,)):
            yield _place(row)

    def with_codes(
        self, kind: str, codes: Iterable[tuple[str, str]], time: DayRange | None = None
    ) -> Iterator[ResourceLocation]:
        """Yield resources of a type with one of the codes and, with ``time``, with days that overlap it."""
        keys = [code_key(system, code) for system, code in codes]
        for start in range(0, len(keys), _MANY):
            part = keys[start : start + _MANY]
            query = (
                f"SELECT {_COLUMNS} {_FROM} WHERE r.number IN"  # noqa: S608
                f" (SELECT resource FROM code WHERE type=? AND key IN ({','.join('?' * len(part))}))"
            )
            values: list[object] = [kind, *part]
            if time is not None:
                query += " AND r.first<=? AND r.last>=?"
                values += [time.last, time.first]
            for row in self._db.execute(query, values):
                yield _place(row)


def _place(row: tuple[str, str, str | None, int, int, int, int | None]) -> ResourceLocation:
    kind, identity, patient, file, start, length, bundle = row
    # There are many locations at a time, but few types and patients.
    key, patient = f"{kind}/{identity}", patient and sys.intern(patient)
    return ResourceLocation(sys.intern(kind), identity, key, patient, file, start, length, bundle)
