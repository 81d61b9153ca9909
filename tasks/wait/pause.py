"""``wait``: stop for a person who looks at the data, and go on with the data as that person left it.

``4-product.md`` §4: ``<source>_wait/`` is an empty directory for corrected files. The next step reads it if it holds
data files, else what the wait looked at. Behind ``flattening`` these are tables. It fires once for each position. Two
waits over the same source share a directory: the later one sees what the earlier one left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.check import LineCheck
from tasks.shared.files.data_directory import as_shown, is_no_data, left_alone_warning
from tasks.shared.files.inventory import Inventory, still_approved
from tasks.shared.files.lines import open_content
from tasks.shared.files.names import base_name, data_files
from tasks.shared.report import Corrections, StepReport
from tasks.shared.step import Parked, StepContext
from tasks.shared.stop import Stop

_PIECE = 1 << 18
_TABLES: Final = frozenset({".csv", ".parquet"})


def wait_directory(source: Path) -> Path:
    """Where a person puts corrected files for what is in ``source``."""
    return source.with_name(f"{source.name}_wait")


def make_directory(directory: Path) -> None:
    """Make the directory for corrected files: once the wait is in the record, and again when somebody removed it.

    Raises:
        StorageError: it cannot be made.
    """
    with storage_errors(directory):
        directory.mkdir(mode=0o700, exist_ok=True)


def run(context: StepContext) -> StepReport:
    """Park; once approved, check what was put into the directory and say what the next step reads.

    An error loses nothing: the run that goes on comes back here. With other files than the approval was for it is
    without a decision then, and parks again.

    Raises:
        Parked: nobody has decided yet.
        DataError: the directory holds something that would not be read (``wait-foreign-files``) or not sent
            (``corrections-not-sent``), two forms of one file (``name-clash``), a file without a resource
            (``empty-file``) or one that is no NDJSON (``not-json``, ``not-object``, ``not-utf8`` with ``file:line``;
            ``zst-truncated``, ``zst-corrupt``). Approved corrections are gone (``approval-outdated``).
        StorageError: the directory cannot be made or read.
        Stopped: somebody asked.
    """
    directory = wait_directory(context.input_dir)
    if context.decision is None:
        raise Parked(directory)
    make_directory(directory)
    corrected, no_data = corrected_files(directory, context.corrections)
    tables = context.corrections is Corrections.TABLES
    notes = left_alone_warning(directory, no_data)
    if not corrected:
        if context.approved is not None:  # nobody approved the data that would be read without them
            still_approved(context.approved.below(directory.name), Inventory(()))
        return StepReport(warnings=notes, details={"corrected": False})
    size = sum(map(_size, corrected))
    context.progress.expect(files=len(corrected), bytes=size)
    lines = 0
    empty: list[str] = []
    for file in corrected:
        count = 0 if tables else _checked(file, context.stop)
        if not (_size(file) if tables else count):
            empty.append(file.name)
        lines += count
        context.progress.add(files=1, bytes=_size(file), resources=count)
    if empty:
        raise DataError(
            "empty-file",
            f"there is not a single {'line' if tables else 'resource'} in a corrected file",
            context=_listed(directory, empty),
            hint="complete it, or remove it if its data is to be left out, then continue the job",
        )
    return StepReport(
        files=len(corrected),
        resources_out=None if tables else lines,
        lines_out=None if tables else lines,
        bytes_out=size,
        output=directory.name,
        warnings=notes,
        details={"corrected": True},
    )


def corrected_files(directory: Path, kind: Corrections) -> tuple[list[Path], list[str]]:
    """The corrected files in a wait directory, and the names of what is no data there. Looks at names only.

    What would be passed over in silence is refused: somebody meant it to be read, and the old data would go on.

    Raises:
        DataError: ``corrections-not-sent``, ``wait-foreign-files``, ``name-clash``.
        StorageError: the directory cannot be read.
    """
    data = _FILES_OF[kind](directory)
    expected = {file.name for file in data}
    no_data: list[str] = []
    foreign: list[str] = []
    with storage_errors(directory):
        for path in sorted(directory.iterdir()):
            if path.name not in expected:
                hidden = path.name.startswith(".")
                (no_data if hidden or (is_no_data(path.name) and not path.is_dir()) else foreign).append(path.name)
    if foreign and kind is Corrections.NOT_SENT:
        raise DataError(
            "corrections-not-sent",
            f"{len(foreign)} corrected would not be sent: direct_resource_load sends the NDJSON that flattening read",
            context=_listed(directory, foreign),
            hint="remove them and continue the job; what leaves is corrected at a wait in front of flattening, "
            "tables are sent by s3_upload and transfer_load",
        )
    if foreign:
        tables = kind is Corrections.TABLES
        named = "tables, named *.csv or *.parquet" if tables else "NDJSON, named *.ndjson or *.ndjson.zst"
        raise DataError(
            "wait-foreign-files",
            f"the directory for corrected files holds {len(foreign)} that would not be read",
            context=_listed(directory, foreign),
            hint=f"corrected files are {named}, at the top level; rename or remove the others, then continue the job",
        )
    forms: dict[str, list[str]] = defaultdict(list)
    for file in data:
        forms[base_name(file.name).casefold()].append(file.name)
    clashing = [name for names in forms.values() if len(names) > 1 for name in names]
    if clashing:
        raise DataError(
            "name-clash",
            "corrected files differ only in case or compression, and later steps would give them one name",
            context=_listed(directory, clashing),
            hint="keep one of each, or rename them, then continue the job",
        )
    return data, no_data


def _tables(directory: Path) -> list[Path]:
    with storage_errors(directory):
        found = sorted(path for path in directory.iterdir() if path.suffix.lower() in _TABLES and path.is_file())
    return [path for path in found if not is_no_data(path.name)]


_FILES_OF: Final[dict[Corrections, Callable[[Path], list[Path]]]] = {
    Corrections.NDJSON: data_files,
    Corrections.TABLES: _tables,
    Corrections.NOT_SENT: lambda _: [],
}


def _checked(file: Path, stop: Stop) -> int:
    """How many lines the file has, every one a JSON object."""
    check = LineCheck(file.name)
    buffer = bytearray(_PIECE)
    try:
        with open_content(file) as content:
            while count := content.readinto(buffer):
                stop.check()
                check.feed(bytes(memoryview(buffer)[:count]))
        check.finish()
    except DataError as error:
        hint = f"mend it in {file.parent}, then continue the job"
        raise DataError(
            error.reference,
            f"a corrected file cannot be used: {error.message}",
            context=error.context,
            hint=f"{error.hint}; {hint}" if error.hint else hint,
        ) from None
    return check.lines


def _size(file: Path) -> int:
    with storage_errors(file):
        return file.stat().st_size


def _listed(directory: Path, names: Iterable[str]) -> str:
    """The directory and the names in it, the first ones."""
    return "\n  ".join([str(directory), *as_shown(names)])
