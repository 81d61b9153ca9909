"""The measuring pass: what is in some files, in one streaming read of each (document 5, sections 2 and 4 to 12).

NDJSON, plain and zstd: Bundles, one resource a line, any number of files, resources of nobody (``core``). CSV is
``tables.py``'s. Every leaf is counted in patients, not in rows; ``measured.py`` says what comes out, each
module the bounds of what it holds. A line is held whole; patients are known by a hash, 110 bytes each.

``lines.py`` reads the lines and the patient of each, ``account.py`` counts them, ``walk.py`` visits the leaves of a
resource over the paths of ``trie.py``. Values are counted in ``lookup.py`` (7b), ``references.py`` (7d, 12),
``dates.py`` (7e, 11), ``account.py`` (8), ``coded.py`` and ``numbers.py`` (10), each patient once in the cells of
``cells.py`` (R1, 7c).

Where each patient's data come together (Bundles, as extraction servers make them) counters suffice, and memory does not
grow with the patients but for that; as soon as a patient returns, the pass begins again with sets of them. The pass
over what leaves then has sets from the beginning.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, Final

from tasks.release_report.measure import measured as found
from tasks.release_report.measure.account import Account, Apart
from tasks.release_report.measure.cells import Cell
from tasks.release_report.measure.dates import dates_of
from tasks.release_report.measure.lines import Lines, NoResourceError
from tasks.release_report.measure.measured import Measured, MeasuredFile, TypeCount
from tasks.release_report.measure.occurrences import Comparison, Imported, Moved, compared
from tasks.release_report.measure.originals import Originals
from tasks.release_report.measure.tables import (
    NoTableError,
    is_table,
    read_table,
    with_patients_first,
)
from tasks.release_report.measure.trie import DATE, NUMBER, TEXT, Node
from tasks.shared.errors import DataError, StorageError
from tasks.shared.fhir.resource import UNREADABLE
from tasks.shared.files.ndjson import MIB, head_of, lines
from tasks.shared.stop import Stop

_LOOKED_UP: Final = (TEXT, NUMBER, DATE)
"""Where any value of ``import/`` is looked for; elsewhere identifiers are."""


def _is_compared(node: Node) -> bool:
    """Return whether the values at a leaf were compared and differ from those of ``import/``."""
    if node.kind == "display":
        return node.collects or (node.twin is not None and node.twin.leaf)
    return node.kind != "concept-text"


def result_of(account: Account, k: int) -> Measured:
    """Return everything except the names of the files and their errors."""
    bounds, days, lookup, trie = account.bounds, account.days, account.lookup, account.trie
    imported = lookup.looking
    before = imported.imported if imported is not None else None
    in_order = before is not None and len(before.births) == len(days.births)
    places = [node.path for node in trie.nodes]
    comparison = Comparison()
    if before is not None and account.noted is not None and in_order:
        comparison = compared(before, account.noted, places, bounds, together=account.together)
        comparison.add_births(lookup.birthdays(trie.nodes, bounds), bounds)
    original, original_nobody = lookup.counts(trie.nodes, bounds, comparison.is_by_chance, in_order=in_order)
    nodes = [node for node in trie.nodes if node.patients or node.nobody]
    roots = set(map(id, trie.roots.values()))
    paths: dict[str, found.Path] = {}
    elements: dict[str, int] = {}
    undefined: dict[str, found.Path] = {}
    for node in nodes:
        if (odd := node.undefined) is not None and (odd.patients or odd.nobody):
            undefined[node.path] = found.Path(odd.patients, "undefined", nobody=odd.nobody)
        if id(node) in roots:
            continue
        if not node.leaf:
            elements[node.path] = max(node.patients, elements.get(node.path, 0))
            continue
        patients = node.patients
        number = node.act not in _LOOKED_UP and (node.place in original or node.place in original_nobody)
        paths[node.path] = found.Path(
            patients, node.kind or ("number" if number else ""),
            original=original[node.place].patients if node.place in original else 0,
            nobody=node.nobody,
            original_nobody=original_nobody[node.place],
            compared=_is_compared(node),
        )  # fmt: skip
    if (noted := account.noted) is None:
        pass
    elif lookup.collecting is not None:
        births = days.birthdays()
        days_in_import = account.hand_over(noted)
        lookup.collecting.close_import(Imported(days_in_import, places, births, together=account.together))
    return Measured(
        patients=len(account.serials),
        types={
            kind: TypeCount(root.resources, root.patients, root.nobody)
            for kind, root in sorted(trie.roots.items())
            if root.resources
        },
        paths=paths,
        elements=elements,
        undefined=undefined,
        dates={node.path: dates_of(node, comparison.paths.get(node.path, Moved())) for node in nodes if node.dates},
        date_shifts=comparison.shifts,
        births={path: cell.patients for path, cell in comparison.births.items()},
        birth_events={path: cell.patients for path, cell in comparison.events.items()},
        ids=account.ids.result(),
        classes=dict(account.classes.patients),
        identifier_systems=trie.systems.counts(),
        extensions=trie.urls.counts(),
        above_89=days.above_89(),
        others={name: count for name, count in bounds.others.items() if count},
    )


def measure(
    files: Sequence[Path],
    *,
    base: Path,
    spool: Path,
    stop: Stop,
    k: int,
    today: date,
    region_prefix: int = 2,
    longest: int = 512 * MIB,
    originals: Originals | None = None,
    collect: bool = False,
    read: Callable[[int], None] = lambda _: None,
) -> Measured:
    """Measure ``files``, named relative to ``base``.

    With ``collect`` they are ``import/``, whose values go into ``originals``; else they are what leaves, and what is
    among ``originals`` is found. ``spool`` is the directory of nameless temporary files, ``region_prefix`` how many
    signs of a postal code make a region, ``longest`` the limit of a line in bytes, ``read`` gets the bytes of
    content, uncompressed, that were read.

    A file, or a line, that cannot be read ends nothing: it is in ``unread``, quoting nothing. Raises ``Stopped``, and
    ``StorageError`` of the spool (``disk-full`` …).
    """
    started = time.perf_counter()
    tables = bool(files) and all(map(is_table, files))
    before = originals.imported if originals is not None else None
    together = not tables and (before is None or before.together) and _begins_with_bundle(files)
    while True:
        account = Account(
            spool, today=today, together=together, originals=originals, collect=collect, region=region_prefix,
            tables=tables,
        )  # fmt: skip
        try:
            reader = _Reader(account, base, spool, stop, read, longest)
            order = list(files) if together else with_patients_first(list(files)) if tables else _patients_first(files)
            for path in order:
                reader.file(path)
            account.spread()
            return replace(
                result_of(account, k),
                files=reader.measured(),
                unread=reader.unread,
                tables=tables,
                seconds=time.perf_counter() - started,
            )
        except Apart:
            together = False
            if originals is not None and collect:
                originals.forget()
        finally:
            account.close()


def _first_type(path: Path) -> str:
    """Return the type in the first bytes of a file; blank if there is none."""
    try:
        head = head_of(path, _HEAD)
    except (DataError, StorageError):
        return ""
    match = _FIRST.search(head)
    return match[1].decode() if match is not None else ""


_HEAD: Final = 1 << 16
_FIRST: Final = re.compile(rb'"resourceType"\s*:\s*"([A-Za-z]+)"')


def _begins_with_bundle(files: Sequence[Path]) -> bool:
    for path in files:
        if kind := _first_type(path):
            return kind == "Bundle"
    return True


def _patients_first(files: Sequence[Path]) -> list[Path]:
    """Return files of Patients first, so that they have the same numbers in ``import/`` and in what leaves."""
    return sorted(files, key=lambda path: _first_type(path) != "Patient")


class _Reader:
    """Reads the files into an account."""

    def __init__(
        self, account: Account, base: Path, spool: Path, stop: Stop, read: Callable[[int], None], longest: int
    ) -> None:
        self._longest = longest
        self.unread: dict[str, str] = {}
        self._files: list[tuple[str, int, int, int, int, str, Cell]] = []
        self._account = account
        self._base = base
        self._spool = spool
        self._stop = stop
        self._read = read
        self._lines = Lines(account)

    def measured(self) -> tuple[MeasuredFile, ...]:
        """Return the measured files by name."""
        return tuple(
            MeasuredFile(name, stored, content, lines, resources, cell.patients, sha256)
            for name, stored, content, lines, resources, sha256, cell in sorted(self._files, key=lambda one: one[0])
        )

    def file(self, path: Path) -> None:
        """Measure one file; errors are in ``unread``."""
        account, name = self._account, path.relative_to(self._base).as_posix()
        digest = hashlib.sha256()
        stored = content = count = 0

        def note_first_bytes(piece: bytes) -> None:
            nonlocal stored
            digest.update(piece)
            stored += len(piece)

        def inside(piece: bytes) -> None:
            nonlocal content
            content += len(piece)
            self._read(len(piece))

        account.file = Cell()
        self._lines.resources = 0
        try:
            if is_table(path):
                for _ in read_table(account, path, stored=note_first_bytes, inside=inside, check=self._stop.check):
                    count += 1
                    account.settle()
                self._lines.resources = count
            else:
                for number, line in lines(path, self._longest, stored=note_first_bytes):
                    self._stop.check()
                    count += 1
                    content += len(line) + 1
                    self._read(len(line) + 1)
                    self._line(name, number, line)
                    account.settle()
        except (DataError, StorageError, NoTableError) as error:
            if isinstance(error, StorageError) and error.context != str(path):
                raise  # the disk of the temporary files
            self.unread.setdefault(name, str(error) if isinstance(error, NoTableError) else error.message)
        finally:
            account.end()
        if (rest := _hash_rest(path, digest, stored)) is None:
            return
        stored += rest
        self._files.append((name, stored, content, count, self._lines.resources, digest.hexdigest(), account.file))

    def _line(self, name: str, number: int, line: bytes) -> None:
        try:
            self._lines.read_line(line)
        except (*UNREADABLE, DataError, NoResourceError):
            self.unread.setdefault(name, f"line {number} is no FHIR resource that can be read")


def _hash_rest(path: Path, digest: Any, stored: int) -> int | None:
    """Hash what was not read of a file; how many bytes, ``None`` when that is not possible."""
    rest = 0
    try:
        with path.open("rb") as file:
            file.seek(stored)
            while piece := file.read(1 << 20):
                digest.update(piece)
                rest += len(piece)
    except OSError:
        return None
    return rest
