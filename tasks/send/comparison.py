"""Compare the input with the record before the first request of any mode (document 3 §7, first paragraph).

The comparison reads the stored bytes once. ``InputComparison`` detects changes between it and the upload.

When the step is divided, the job's process compares the whole input before the children run, and keeps what it found.
Each child reads the bytes of its own files again before it sends them; of the others it compares names and sizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tasks.shared.errors import DataError, storage_error, storage_errors
from tasks.shared.files.data_directory import CORE, base_name, finished_files, is_ndjson_name, stored_bytes
from tasks.shared.files.inventory import (
    Inventory,
    InventoryEntry,
    Known,
    State,
    differences,
    load,
    state_of,
    take_inventory,
)
from tasks.shared.shards import division_path
from tasks.shared.step import StepContext

WITHOUT_RECORD: Final = (
    "the step before left no hashes of its files (it ran under an earlier version), so only their number was compared"
)


@dataclass(frozen=True)
class InputComparison:
    """The input in ``directory`` as it was when it was compared.

    ``base`` is the job's directory. ``recorded`` is False when the step before left no hashes to compare with. ``part``
    are the names of the files that this run sends, of a step that is divided.
    """

    base: Path
    directory: Path
    inventory: Inventory
    recorded: bool = True
    part: frozenset[str] | None = None

    def files(self) -> list[Path]:
        """Return the files of this run, ``core`` first, then by their paths. Every mode sends from this list.

        Raises ``DataError`` ``send-no-input`` when there is none, and as ``verify`` does.
        """
        paths = sorted((self.base / entry.name for entry in self.inventory.entries), key=self._place)
        paths = [path for path in paths if self.part is None or self.name(path) in self.part]
        for path in paths:
            self.verify(path)
        return required(paths, self.directory)

    def resource_files(self) -> list[Path]:
        """Return those of them that hold resources: NDJSON, not in a folder. Raises as ``files`` does."""
        found = [path for path in self.files() if path.parent == self.directory and is_ndjson_name(path.name)]
        return required(found, self.directory)

    def _place(self, path: Path) -> tuple[bool, str]:
        name = self.name(path)
        return base_name(name).lower() != CORE, name

    def name(self, path: Path) -> str:
        """Return the path of a file below the input directory, with ``/``."""
        return path.relative_to(self.directory).as_posix()

    def entry(self, path: Path) -> InventoryEntry:
        """Return size and SHA-256 of a file's stored bytes. Raises ``DataError`` (``send-input-changed``)."""
        entry = self.inventory.by_name.get(path.relative_to(self.base).as_posix())
        if entry is None:
            raise self.changed(path)
        return entry

    def verify(self, path: Path, handle: int | None = None) -> None:
        """Raise if somebody wrote to this file since, or put another in its place; ``handle`` is the opened file.

        Raises ``DataError`` (``send-input-changed``) and ``StorageError``.
        """
        known = self.entry(path).state
        try:
            found = [path.stat()] if handle is None else [path.stat(), os.fstat(handle)]
        except FileNotFoundError:
            raise self.changed(path) from None
        except OSError as error:
            raise storage_error(error, path) from None
        # Not the time of the inode: a backup that makes a hard link changes nothing.
        if known is None or any(state_of(one)[:4] != known[:4] for one in found):
            raise self.changed(path)

    def changed(self, path: Path) -> DataError:
        """Return the error that says that somebody writes to a file."""
        return DataError(
            "send-input-changed",
            "send: a file changed while it was sent",
            context=str(path),
            hint="find out who writes there; then continue the job: what is to be sent is compared again",
        )


def required(paths: list[Path], directory: Path) -> list[Path]:
    """Return these files. Raises ``DataError`` (``send-no-input``) when there is none."""
    if not paths:
        raise DataError("send-no-input", "send: there is nothing to send", context=str(directory))
    return paths


def compare(context: StepContext) -> InputComparison:
    """Compare the input with what its step left.

    Raises:
        DataError: ``send-input-differs``, with the files that are not as the step left them. Nothing was requested.
    """
    directory, recorded, files = context.input_dir, context.input.recorded, context.input.files
    part = context.part.names if context.part is not None else None
    before = load(_kept_comparison(context))
    progress = context.meter
    progress.begin("checking what is to be sent")
    every = list(finished_files(directory))
    ours = [path for path in every if part is None or path.relative_to(directory).as_posix() in part]
    progress.expect(bytes=stored_bytes(ours))
    now = take_inventory(
        context.job_dir,
        [directory],
        stop=context.stop,
        known=_known_hashes(before, part, directory.relative_to(context.job_dir)) if before is not None else None,
        read=lambda size: progress.add(bytes=size),
    )
    count = len(now.entries)
    if recorded is None and files is not None and count != files:
        what = f"it holds {count:,} files, the step before wrote {files:,}"
        raise _differs(f"send: {directory.name}/ is not as it was left: {what}", [str(directory)])
    if recorded is not None and now.digest != recorded.digest:
        step = f"step {recorded.position}, {recorded.step}"
        left = recorded.load()
        listed = differences(left, now) if left is not None else ["the list of its files is gone or was changed"]
        removes = ", which removes the corrected files" if recorded.step == "wait" else ""
        again = f": {context.again(recorded.position)}{removes}"
        raise _differs(f"send: {directory.name}/ is not as {step}, left it", listed, again)
    if before != now and (before is not None or part is not None):
        listed = differences(before, now) if before is not None else ["the list of the files is gone"]
        raise _differs(f"send: {directory.name}/ is not as it was compared before the shards were sent", listed)
    progress.begin("sending")
    return InputComparison(context.job_dir, directory, now, recorded=recorded is not None, part=part)


def compare_before_shards(context: StepContext) -> InputComparison:
    """Compare the whole input before the child runs of a divided step, and keep the result for them.

    Raises as ``compare`` does, and ``StorageError``.
    """
    forget_comparison(context)
    compared = compare(context)
    compared.inventory.save(_kept_comparison(context))
    return compared


def forget_comparison(context: StepContext) -> None:
    """Remove the result that was kept for the child runs. Raises ``StorageError``."""
    path = _kept_comparison(context)
    with storage_errors(path):
        path.unlink(missing_ok=True)


def _kept_comparison(context: StepContext) -> Path:
    return division_path(context.job_dir, context.position).with_name("compared.ndjson")


def _known_hashes(before: Inventory, part: frozenset[str] | None, folder: Path) -> Known:
    """Return the hashes of files that are not read again: in a child those of other parts, and after the children
    those that are unchanged since."""

    def known_hash(name: str, state: State) -> str | None:
        if part is None:
            return before.hash_of(name, state)
        entry = before.by_name.get(name)
        return entry.sha256 if entry is not None and name.removeprefix(f"{folder.as_posix()}/") not in part else None

    return known_hash


def _differs(message: str, listed: Iterable[str], again: str = "") -> DataError:
    return DataError(
        "send-input-differs",
        message,
        context="\n  ".join(listed),
        hint="nothing was sent by this run: put the files back as they were and continue the job, "
        f"or run the step that wrote them again{again}",
    )
