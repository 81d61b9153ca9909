"""The tables of a step over several runs: which batches are in them, and where each goes on.

A table is ``csv/<name>.csv``, UTF-8, one header, called ``….partial`` until the whole step is done. A batch is kept
when ``keep`` has it on the disk; what was written of one that failed is cut off again.

The ledger ``flattening/ledger.ndjson`` holds, for every batch that is done, what it added to its table. It is good
under the same *terms*: the same views, input files, service and share of memory. Under other terms everything is begun
anew, for the batches would be other ones. A batch is in the ledger only when its rows are on the disk; what a table has
beyond that is cut off.
"""

from __future__ import annotations

import hashlib
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.flattening.batches import RequestBatch
from tasks.flattening.rows import RowReader, header
from tasks.flattening.views import GroupView
from tasks.shared.errors import storage_error, storage_errors
from tasks.shared.files.ledger import FileProgress, Ledger
from tasks.shared.files.out_file import PART, OutFile, publish, size_of, write_file

OUTPUT: Final = "csv"
DEFINITIONS: Final = "viewdefinitions"

CSV: Final = ".csv"
PARTIAL: Final = ".partial"

_INPUT: Final = "input"
_VOID: Final = "void"
UNNAMED: Final = "group"
"""The name of a file when nothing is left of the group's."""

_LONGEST: Final = 200
"""Bytes of a name in UTF-8: file systems allow 255, and endings are added."""
_PUNCTUATION: Final = frozenset(" .-_()")
_KEPT: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd"})


class CsvTable:
    """The table at ``path``, in the making, begun or continued by ``open``. For one thread at a time.

    Raises ``StorageError``.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL)
        self.columns = columns
        self.header = header(columns)
        self.size = len(self.header)
        """Bytes that are kept."""
        self._file: OutFile | None = None

    def open(self, size: int | None = None) -> None:
        """Go on behind the first ``size`` bytes; without it, begin anew with the header."""
        self._file = OutFile(self.partial, size or 0)
        if size is None:
            self.write(self.header)
        else:
            self.size = size

    def write(self, text: bytes) -> None:
        """Append; ``keep`` or ``drop`` decides about it."""
        self._opened.write(text)

    def drop(self) -> None:
        """Cut off what was written since the last ``keep``."""
        self._opened.cut(self.size)

    def sync(self) -> int:
        """Force what was written to the disk; how many bytes that are since the last time."""
        self._opened.sync()
        added, self.size = self._opened.size - self.size, self._opened.size
        return added

    def close(self) -> None:
        """Close the file, and leave it there; a second call does nothing."""
        if self._file is not None:
            self._file.close()

    @property
    def _opened(self) -> OutFile:
        assert self._file is not None  # noqa: S101 - for the type checker
        return self._file


class Tables:
    """The tables of ``views``, in their order, below ``job_dir``. ``keep`` is thread-safe, for one thread per table.

    ``again`` counts finished tables that have to be made again. Leaving everything as it is for another run is
    ``close``. Raises ``StorageError``.
    """

    def __init__(
        self,
        job_dir: Path,
        views: Sequence[GroupView],
        ledger: Ledger,
        terms: str,
    ) -> None:
        self.again = 0
        self._directory = job_dir / OUTPUT
        self._ledger = ledger
        self._lock = threading.Lock()
        names = file_names([view.group_name for view in views])
        self._all = [
            CsvTable(self._directory / f"{name}{CSV}", [column.name for column in view.columns])
            for name, view in zip(names, views, strict=True)
        ]
        self._published: set[int] = set()
        self._clear_directory()
        _write_definitions(job_dir / DEFINITIONS, dict(zip(names, views, strict=True)))
        self._accounts = [ledger.account(table.path.name, terms) for table in self._all]
        self._input = ledger.account(_INPUT, terms)
        self.finished: dict[str, Any] | None = None
        """What was found in the input, when an earlier run finished the tables."""
        if not self._finish_the_end():
            for place, table in enumerate(self._all):
                self._begin(place, table, terms)

    def __getitem__(self, place: int) -> CsvTable:
        return self._all[place]

    def account(self, place: int) -> FileProgress:
        """Return the recorded facts about a table."""
        return self._accounts[place]

    def done(self, place: int) -> int:
        """Return how many batches of a group are in its table."""
        return self._accounts[place].counts["batches"]

    def record_batch(self, batch: RequestBatch, rows: RowReader, with_rows: int) -> None:
        """Force the rows of a batch to the disk and record them."""
        table, account = self._all[batch.place], self._accounts[batch.place]
        added = table.sync()
        counts = {f"filled {column}": 1 for column in rows.filled if not account.counts[f"filled {column}"]}
        with self._lock:
            self._ledger.done(
                table.path.name,
                (batch.ordinal,),
                batches=1,
                rows=rows.count,
                resources=batch.resources,
                with_rows=with_rows,
                bytes=added,
                unknown=int(rows.unknown_keys),
                **counts,
            )

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Record that all batches are done, and give the tables their final names. ``facts`` are about the input."""
        unfinished = [table for place, table in enumerate(self._all) if place not in self._published]
        for table in unfinished:
            table.sync()
        for table in self._all:
            self._ledger.complete(table.path.name, {})
        self._ledger.complete(_INPUT, facts)
        self._publish(unfinished)

    def close(self) -> None:
        """Close the files as they are."""
        for table in self._all:
            table.close()

    def size(self, place: int) -> int:
        """Return the recorded size of a table in bytes."""
        return len(self._all[place].header) + self._accounts[place].counts["bytes"]

    def _clear_directory(self) -> None:
        with storage_errors(self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            expected = {table.path.name for table in self._all}
            _remove_others(self._directory, expected, (CSV, CSV + PARTIAL))

    def _publish(self, tables: Sequence[CsvTable]) -> None:
        # Recorded before the renames: what has its final name under these terms is known to be complete.
        self._ledger.flush()
        self.close()
        publish(*((table.partial, table.path) for table in tables))

    def _finish_the_end(self) -> bool:
        """Return whether everything is done; complete the renames of a run that was killed just before them."""
        left: list[CsvTable] = []
        for place, (table, account) in enumerate(zip(self._all, self._accounts, strict=True)):
            if account.complete is None:
                return False
            if size_of(table.path) != self.size(place):
                if size_of(table.partial) != self.size(place):
                    return False
                left.append(table)
        if self._input.complete is None:
            return False
        self._publish(left)
        self.finished = self._input.complete
        return True

    def _begin(self, place: int, table: CsvTable, terms: str) -> None:
        account = self._accounts[place]
        if account.complete is not None and size_of(table.path) == self.size(place):
            self._published.add(place)
            return
        if size_of(table.path) >= 0:
            self.again += 1
            with storage_errors(table.path):
                table.path.unlink()
        if account.counts["batches"] and size_of(table.partial) >= self.size(place):
            table.open(self.size(place))
            return
        if account.counts["batches"] or account.complete is not None:
            self._ledger.account(table.path.name, _VOID)
            self._accounts[place] = self._ledger.account(table.path.name, terms)
        table.open()


def terms(views: Sequence[GroupView], files: Iterable[Path], url: str, share: int) -> str:
    """Return a digest of everything that determines the batches and their rows."""
    try:
        # A data file appears by rename and is not written afterwards; whoever corrects one changes its time.
        known = [(path.name, facts.st_size, facts.st_mtime_ns) for path in files for facts in [path.stat()]]
    except OSError as error:
        raise storage_error(error, Path(error.filename or ".")) from None
    text = msgspec.json.encode([[asdict(view) for view in views], known, url, share])
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _write_definitions(directory: Path, named: Mapping[str, GroupView]) -> None:
    """Keep the ViewDefinitions as they are sent, for people."""
    with storage_errors(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_others(directory, {f"{name}.json" for name in named}, (".json", f".json{PART}"))
    for name, view in named.items():
        text = msgspec.json.format(msgspec.json.encode(view.definition), indent=2)
        write_file(directory / f"{name}.json", text + b"\n")


def _remove_others(directory: Path, expected: set[str], endings: tuple[str, ...]) -> None:
    """Remove what another set of groups left: the next step reads everything that is here."""
    for path in directory.iterdir():
        if path.name.endswith(endings) and path.name.removesuffix(PARTIAL) not in expected and not path.is_dir():
            path.unlink()


def file_names(names: Sequence[str]) -> list[str]:
    """Return a file name without extension for each name; equal lists give equal results.

    Letters of all scripts, digits, blanks and ``.-_()`` stay, everything else becomes ``_``. No two are equal in
    whatever case: a name that is taken gets ``-2``, ``-3`` …
    """
    wanted = [_safe(name) for name in names]
    reserved = {name.casefold() for name in wanted}
    given: set[str] = set()
    result: list[str] = []
    for name in wanted:
        free, number = name, 1
        while free.casefold() in given or (number > 1 and free.casefold() in reserved):
            number += 1
            free = f"{name}-{number}"
        given.add(free.casefold())
        result.append(free)
    return result


def _safe(name: str) -> str:
    text = "".join(char if _stays(char) else "_" for char in unicodedata.normalize("NFC", name))
    # A leading dot hides a file, and some file systems drop blanks and dots at the end.
    text = text.lstrip(". ")
    while len(text.encode()) > _LONGEST:
        text = text[:-1]
    return text.rstrip(". ") or UNNAMED


def _stays(char: str) -> bool:
    # Many scripts write vowels as marks that belong to the letter before them.
    return char in _PUNCTUATION or unicodedata.category(char) in _KEPT
