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

A file is made when all CSV is complete, and only then: making it again costs seconds, so of an interrupted one nothing
is kept. pyarrow is an extra, and known here only. Its texts quote data, so none of them leaves this module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config import FlatteningConfig, OutputFormat
from tasks.flattening.views import ViewColumn
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
_LARGEST_BLOCK: Final = 256 * _BLOCK
"""Above the longest row, with every quote of it doubled."""


class _MisfitError(Exception):
    """A value is not of the type of its column."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True)
class ParquetFacts:
    """The size in bytes of a finished file, and its columns that became text."""

    bytes: int
    as_text: tuple[str, ...]


def format_findings(settings: FlatteningConfig) -> list[SluiceError]:
    """Return the reasons why the configured formats cannot be written (checked before a job and before the step)."""
    if OutputFormat.PARQUET not in settings.formats:
        return []
    try:
        _pyarrow()
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


def read_facts(path: Path, columns: Sequence[ViewColumn], *, rows: int) -> ParquetFacts | None:
    """Return the facts of a finished file with these columns and so many rows; ``None`` where there is none."""
    arrow, _, parquet = _pyarrow()
    try:
        footer = parquet.read_metadata(path)
    except (OSError, arrow.ArrowInvalid):
        return None
    schema = footer.schema.to_arrow_schema()
    if footer.num_rows != rows or schema.names != [column.name for column in columns]:
        return None
    texts = {field.name for field in schema if arrow.types.is_string(field.type)}
    typed = [column.name for column in columns if parquet_type(column) != "string"]
    return ParquetFacts(path.stat().st_size, tuple(name for name in typed if name in texts))


def write_parquet(
    source: Path, target: Path, columns: Sequence[ViewColumn], *, rows: int, check: Callable[[], None]
) -> ParquetFacts:
    """Write the ``rows`` rows of the CSV ``source`` to ``target``, on the disk, mode 0600.

    ``check`` raises when the work is to end. Memory is that of a row group. Raises ``StorageError``, and
    ``InternalError`` when the CSV is not what was written.
    """
    arrow, _, _ = _pyarrow()
    text: set[str] = set()
    block = _BLOCK
    while block <= _LARGEST_BLOCK:
        try:
            _write(source, target, _schema(columns, text), block, check)
        except _MisfitError as misfit:
            text.add(misfit.name)
        except arrow.ArrowInvalid:
            block *= 2  # a row that is longer than a block
        except OSError as error:
            raise storage_error(error, target) from None
        else:
            if (facts := read_facts(target, columns, rows=rows)) is not None:
                return facts
            break
    hint = "please report this, with the version of pyarrow"
    raise InternalError("flattening-parquet", "flattening: a table cannot be read back", context=str(source), hint=hint)


def parquet_type(column: ViewColumn) -> str:
    """Return the name of pyarrow's type for a column."""
    kind = (column.type or "").rpartition("/")[2]
    return "string" if column.collection else _TYPES.get(kind, "string")


def _pyarrow() -> tuple[Any, Any, Any]:
    """Return pyarrow, its reader of CSV, and its Parquet. Raises ``ImportError``."""
    arrow, csv, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.csv", "pyarrow.parquet"))
    return arrow, csv, parquet


def _schema(columns: Sequence[ViewColumn], text: set[str]) -> Any:
    arrow, _, _ = _pyarrow()
    return arrow.schema(
        arrow.field(
            column.name,
            getattr(arrow, "string" if column.name in text else parquet_type(column))(),
            metadata={"fhir.type": column.type} if column.type else None,
        )
        for column in columns
    )


def _write(source: Path, target: Path, schema: Any, block: int, check: Callable[[], None]) -> None:
    """Write the rows of ``source`` as row groups of about ``block`` bytes of CSV."""
    arrow, csv, parquet = _pyarrow()
    texts = dict.fromkeys(schema.names, arrow.string())
    with open_private(source) as rows, OutFile(target) as out, out.opened() as file:
        reader = csv.open_csv(
            rows,
            csv.ReadOptions(use_threads=False, block_size=block, column_names=schema.names, skip_rows=1),
            csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            csv.ConvertOptions(column_types=texts, strings_can_be_null=True, null_values=[""]),
        )
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in reader:
                check()
                cells = [_typed(column, field) for column, field in zip(batch.columns, schema, strict=True)]
                writer.write_batch(arrow.RecordBatch.from_arrays(cells, schema=schema))
        file.flush()
        out.sync()


def _typed(cells: Any, field: Any) -> Any:
    """Return the cells in the type of their column. Raises ``_MisfitError`` unless it holds each as it is spelled."""
    arrow, _, _ = _pyarrow()
    try:
        typed = cells.cast(field.type)
    except arrow.ArrowInvalid:
        raise _MisfitError(field.name) from None
    if not typed.cast(arrow.string()).equals(cells):  # pyarrow reads 007 and 0x7 as 7, and 1 as true
        raise _MisfitError(field.name)
    return typed
