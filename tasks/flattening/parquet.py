"""A table as Parquet, made from its finished CSV (document 3 §5, "Output").

The types are those of the view's columns, as far as a type of Parquet holds every value of it as it is spelled:

======================================  =================================================================
``boolean``                             boolean
``integer``, ``positiveInt``,           32-bit integer
``unsignedInt``
``integer64``                           64-bit integer
``decimal``                             text: ``1.50`` is not ``1.5``, and no type of Parquet knows that
``date``, ``dateTime``, ``instant``,    text: ``2024-03`` is a date of FHIR and no day, and a timestamp
``time``                                would lose the offset
all others, and collections             text, as in the CSV: a collection is compact JSON
======================================  =================================================================

An empty cell is null. The FHIR type stands in the metadata of a column, as ``fhir.type``. A column that has a value
which is not of its type, because the lookup file or the service is wrong about it, is text as a whole.

pyarrow is an extra, and known here only. Its texts quote data, so none of them leaves this module.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from config import FlatteningConfig, OutputFormat
from tasks.flattening.views import Column
from tasks.shared.errors import InputError, InternalError, SluiceError, storage_error
from tasks.shared.files.out_file import OutFile
from tasks.shared.files.private_file import open_private

PARQUET: Final = ".parquet"

_TYPES: Final = {
    "boolean": "bool_",
    "integer": "int32",
    "positiveInt": "int32",
    "unsignedInt": "int32",
    "integer64": "int64",
}
_BLOCK: Final = 1 << 20
"""Bytes of CSV in a row group, unless a single row has more. Four times as many cost 40 MB more of memory."""


class _MisfitError(Exception):
    """A value is not of the type of its column."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def format_findings(settings: FlatteningConfig) -> list[SluiceError]:
    """What hinders the formats that are wanted, before a job exists and before the step begins."""
    if OutputFormat.PARQUET not in settings.formats:
        return []
    try:
        for name in ("pyarrow", "pyarrow.csv", "pyarrow.parquet"):
            importlib.import_module(name)
    except ImportError:
        return [
            InputError(
                "parquet-missing",
                "the format parquet needs pyarrow, which is not installed",
                context="services.flattening.formats",
                hint="pip install -c constraints.txt -e '.[parquet]', or leave parquet out",
            )
        ]
    return []


def write_parquet(
    source: Path, target: Path, columns: Sequence[Column], *, rows: int, check: Callable[[], None]
) -> tuple[int, tuple[str, ...]]:
    """Write the ``rows`` rows of the CSV ``source`` to ``target``, on the disk, mode 0600.

    Returns its bytes, and the names of the columns that had to become text. ``check`` raises when the work is to end.
    Memory is that of a row group. Raises ``StorageError``, and ``InternalError`` when the CSV is not what was written.
    """
    text: set[int] = set()
    while True:
        try:
            size = _Writer(columns, text, check).write(source, target, rows)
        except _MisfitError as misfit:
            text.add(misfit.place)
        else:
            return size, tuple(columns[place].name for place in sorted(text))


def row_blocks(path: Path, size: int = _BLOCK) -> Iterator[bytes]:
    """The rows of a CSV of ours, without its header, in blocks of about ``size`` bytes that end where a row ends."""
    with io.BufferedReader(open_private(path)) as file:
        file.readline()
        rest = b""
        while more := file.read(size):
            rest += more
            if end := _last_end(rest):
                yield rest[:end]
                rest = rest[end:]
    if rest:
        yield rest


def _last_end(text: bytes) -> int:
    """Where the last whole row ends, 0 if none does: a line break that an even number of quotes stands before."""
    quotes = text.count(b'"')
    behind, end = len(text), text.rfind(b"\n")
    while end >= 0:
        quotes -= text.count(b'"', end, behind)
        if quotes % 2 == 0:
            return end + 1
        behind, end = end, text.rfind(b"\n", 0, end)
    return 0


def parquet_type(column: Column) -> str:
    """The name of pyarrow's type for a column."""
    kind = (column.type or "").rpartition("/")[2]
    return "string" if column.collection else _TYPES.get(kind, "string")


class _Writer:
    def __init__(self, columns: Sequence[Column], text: set[int], check: Callable[[], None]) -> None:
        self._arrow: Any = importlib.import_module("pyarrow")
        self._csv: Any = importlib.import_module("pyarrow.csv")
        self._parquet: Any = importlib.import_module("pyarrow.parquet")
        self._check = check
        self._schema = self._arrow.schema(
            [
                self._arrow.field(
                    column.name,
                    getattr(self._arrow, "string" if place in text else parquet_type(column))(),
                    metadata={"fhir.type": column.type} if column.type else None,
                )
                for place, column in enumerate(columns)
            ]
        )

    def write(self, source: Path, target: Path, rows: int) -> int:
        written = 0
        try:
            with OutFile(target) as out, out.opened() as file:
                with self._parquet.ParquetWriter(file, self._schema, compression="zstd") as writer:
                    for block in row_blocks(source):
                        self._check()
                        table = self._table(block)
                        writer.write_table(table)
                        written += len(table)
                file.flush()
                out.sync()
                size = file.tell()
        except self._arrow.ArrowInvalid:
            written = -1
        except OSError as error:
            raise storage_error(error, target) from None
        if written != rows:
            raise InternalError(
                "flattening-parquet",
                "flattening: a table cannot be read back",
                context=str(source),
                hint="please report this, with the version of pyarrow",
            )
        return size

    def _table(self, block: bytes) -> Any:
        names = [f"c{place}" for place in range(len(self._schema))]
        table = self._csv.read_csv(
            self._arrow.py_buffer(block),
            self._csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
            self._csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            self._csv.ConvertOptions(
                column_types=dict.fromkeys(names, self._arrow.string()), strings_can_be_null=True, null_values=[""]
            ),
        )
        cells = [self._typed(place, column) for place, column in enumerate(table.columns)]
        return self._arrow.Table.from_arrays(cells, schema=self._schema)

    def _typed(self, place: int, cells: Any) -> Any:
        kind = self._schema.field(place).type
        if self._arrow.types.is_string(kind):
            return cells
        truth = self._arrow.types.is_boolean(kind)
        if truth and not set(cells.unique().to_pylist()) <= {"true", "false", None}:
            raise _MisfitError(place)  # pyarrow takes 1 and True for truth as well
        try:
            return cells.cast(kind)
        except self._arrow.ArrowInvalid:
            raise _MisfitError(place) from None
