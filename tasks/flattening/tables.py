"""The tables of the groups: resources are packed into batches, each answer is a part, and parts are joined to a table.

A part is the file ``csv/.parts/<plan>/<group>/<first>-<end>-<rows>-<resources with a row>.csv``, written by rename.
``first`` and ``end`` count the resources of the group in the order of the input. So a continued step sends only the
resources between the parts, also with another ``batch_size_mb``. The plan is a digest of views, input and service.
"""

from __future__ import annotations

import io
import re
import shutil
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tasks.flattening.routing import Resource
from tasks.flattening.rows import AnswerReader, as_csv
from tasks.flattening.views import GroupView
from tasks.shared.errors import storage_errors
from tasks.shared.file_work import Done, FileWork
from tasks.shared.files.part_file import PartFile, part_of, sync_directory, write_whole

OUTPUT: Final = "csv"
CSV: Final = ".csv"
PARTS: Final = ".parts"

_LONGEST: Final = 200  # bytes of a name: file systems allow 255, and endings are added

_BEFORE: Final = b',{"name":"resources","resource":'
_AROUND: Final = len(_BEFORE) + len(b"}")
_TAIL: Final = b"]}"


class BatchPart(NamedTuple):
    """A finished batch: the resources ``first`` … ``end`` - 1 of its group, and their rows."""

    first: int
    end: int
    rows: int
    with_rows: int

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{'-'.join(map(str, self))}{CSV}"


@dataclass(frozen=True, slots=True)
class Batch:
    """One request: the resources of a group from ``first`` on, as a Parameters resource."""

    first: int
    ids: Sequence[str | None] = field(repr=False)
    body: bytes = field(repr=False)


def request_body(definition: Mapping[str, Any], resource: bytes) -> bytes:
    """Return a request with a view and one resource."""
    return b"%b%b%b}%b" % (_head(definition), _BEFORE, resource, _TAIL)


def _head(definition: Mapping[str, Any]) -> bytes:
    view = msgspec.json.encode(definition)
    return b'{"resourceType":"Parameters","parameter":[{"name":"viewDefinition","resource":%b}' % view


class GroupTable:
    """One group: packs its resources into batches of at most ``share`` bytes, keeps the parts, joins them.

    A larger resource is sent alone. Resources in parts of an earlier run are counted but not packed; for a ``finished``
    table nothing is packed. ``packed`` is the number of resources packed in this run; ``size`` is the bytes of the
    last, unfinished batch. Raises ``StorageError``.
    """

    def __init__(self, view: GroupView, parts: Path, share: int, *, finished: bool) -> None:
        self.view = view
        self.finished = finished
        self.packed = self.size = self._resources = 0
        self._share = share
        self._head = _head(view.definition)
        self._directory = parts
        self._parts = {} if finished else _parts_in(parts)
        self._covered = self._first = 0
        self._ids: list[str | None] = []
        self._text = io.BytesIO()

    def add(self, resource: Resource) -> list[Batch]:
        """Add a resource; return the batches that are full now."""
        number, self._resources = self._resources, self._resources + 1
        if self.finished or number < self._covered:
            return []
        if number in self._parts:
            self._covered = self._parts[number].end
            return self.end()
        size = len(memoryview(resource.raw)) + _AROUND
        full = self.end() if self.size + size + len(_TAIL) > self._share else []
        if not self._ids:
            self._first = number
            self._text.write(self._head)
        self._text.writelines((_BEFORE, resource.raw, b"}"))
        self._ids.append(resource.id)
        self.packed += 1
        self.size = self._text.tell()
        return [*full, *self.end()] if self.size >= self._share else full

    def end(self) -> list[Batch]:
        """Return the batch that is not full, if there is one."""
        if not self._ids:
            return []
        self._text.write(_TAIL)
        # getvalue() hands over the memory itself: a batch is there once, not twice.
        batch = Batch(self._first, self._ids, self._text.getvalue())
        self._ids, self._text, self.size = [], io.BytesIO(), 0
        return [batch]

    def begin(self, batch: Batch) -> PartFile:
        """Return a file for the rows of a batch."""
        return PartFile(self._directory / str(batch.first))

    def keep(self, file: PartFile, batch: Batch, rows: AnswerReader) -> None:
        """Publish the file with all rows of a batch as a part of the table."""
        part = BatchPart(batch.first, batch.first + len(batch.ids), rows.rows, rows.with_rows)
        file.sync()
        with storage_errors(self._directory):
            part_of(file.final).replace(self._directory / part.name)
            sync_directory(self._directory)
        self._parts[batch.first] = part

    def join(self, directory: Path, work: FileWork, identity: str) -> None:
        """Join the parts to the table, in the order of the input."""
        parts = [self._parts[first] for first in sorted(self._parts)]
        with PartFile(directory / f"{self._directory.name}{CSV}") as table:
            table.write(as_csv([self.view.columns]))
            for path in (self._directory / part.name for part in parts):
                with storage_errors(path), path.open("rb") as source:
                    shutil.copyfileobj(source, table, 1 << 20)
            rows, with_rows = sum(part.rows for part in parts), sum(part.with_rows for part in parts)
            counts = {"resources": self._resources, "with_rows": with_rows, "rows": rows, "batches": len(parts)}
            work.finish(Done(file=self._directory.name, identity=identity, counts=counts), table)
        shutil.rmtree(self._directory, ignore_errors=True)


def _parts_in(directory: Path) -> dict[int, BatchPart]:
    """Return the parts in a directory by their first resource."""
    with storage_errors(directory):
        found = [BatchPart(*map(int, path.stem.split("-"))) for path in directory.glob(f"*{CSV}")]
    return {part.first: part for part in found}


def parts_of(directory: Path, plan: str) -> tuple[Path, bool]:
    """Return the directory for the parts of a plan, and whether parts of another plan were deleted."""
    mine = directory / PARTS / plan
    with storage_errors(mine):
        for path in (directory, mine.parent, mine):
            path.mkdir(mode=0o700, exist_ok=True)
        others = [path for path in (directory / PARTS).glob("*") if path != mine]
        for path in others:
            shutil.rmtree(path)
    return mine, bool(others)


def write_definitions(directory: Path, named: Mapping[str, GroupView]) -> None:
    """Write the ViewDefinitions as they are sent, for people; remove older ones. Raises ``StorageError``."""
    with storage_errors(directory):
        for path in directory.iterdir():
            path.unlink()
    for name, view in named.items():
        text = msgspec.json.format(msgspec.json.encode(view.definition), indent=2)
        write_whole(directory / f"{name}.json", text + b"\n")


def file_names(names: Iterable[str]) -> list[str]:
    """Return a file name without extension for each name. Characters other than letters of all scripts, digits, blanks
    and ``.-_()`` become ``_``. No two names are equal in any case: a repeated one gets ``-2``, ``-3`` …"""
    given: dict[str, str] = {}
    for name in map(_safe, names):
        numbered = (name, *(f"{name}-{number}" for number in range(2, len(given) + 2)))
        free = next(one for one in numbered if one.casefold() not in given)
        given[free.casefold()] = free
    return list(given.values())


def _safe(name: str) -> str:
    # A leading dot hides a file, and some file systems drop blanks and dots at the end.
    text = re.sub(r"[^\w .()-]", "_", unicodedata.normalize("NFC", name)).lstrip(". ")
    return text.encode()[:_LONGEST].decode(errors="ignore").rstrip(". ") or "group"
