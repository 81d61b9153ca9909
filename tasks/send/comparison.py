"""What is to be sent, compared with the record before the first request of any mode (document 3 §7, first paragraph).

One pass over the stored bytes. What is read afterwards must be what was compared: ``Compared`` tells when it is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.shared.errors import DataError, storage_error
from tasks.shared.files.data_directory import finished_files, stored_bytes
from tasks.shared.files.inventory import Entry, Inventory, differences, state_of, take
from tasks.shared.step import StepContext

WITHOUT_RECORD = (
    "the step before left no hashes of its files (it ran under an earlier version), so only their number was compared"
)


@dataclass(frozen=True)
class Compared:
    """The input as it was when it was compared. ``base`` is the job's directory."""

    base: Path
    inventory: Inventory

    @property
    def paths(self) -> list[Path]:
        """The files that were compared."""
        return [self.base / entry.name for entry in self.inventory.entries]

    def sha256(self, path: Path) -> str:
        """The SHA-256 (hex) of a file's stored bytes. Raises as ``verify`` does."""
        self.verify(path)
        return self._entry(path).sha256

    def verify(self, path: Path) -> None:
        """Nobody has written to this file since, or put another in its place.

        Raises ``DataError`` (``send-input-changed``) and ``StorageError``.
        """
        known = self._entry(path)
        try:
            state = state_of(path.stat())
        except FileNotFoundError:
            raise _changed(path) from None
        except OSError as error:
            raise storage_error(error, path) from None
        # Not the time of the inode: a backup that makes a hard link changes nothing.
        if known.state is None or state[:4] != known.state[:4]:
            raise _changed(path)

    def verify_all(self, paths: Iterable[Path]) -> None:
        """These are the files that were compared, all of them, as they were. Raises as ``verify`` does."""
        seen = 0
        for path in paths:
            self.verify(path)
            seen += 1
        if seen != len(self.inventory.entries):
            raise _changed(self.base)

    def _entry(self, path: Path) -> Entry:
        entry = self.inventory.by_name.get(path.relative_to(self.base).as_posix())
        if entry is None:
            raise _changed(path)
        return entry


def _changed(path: Path) -> DataError:
    return DataError(
        "send-input-changed",
        "send: a file changed while it was sent",
        context=str(path),
        hint="find out who writes there; then continue the job: what is to be sent is compared again",
    )


def compare(context: StepContext) -> Compared | None:
    """Compare the input with what its step left; ``None`` when that step left no hashes.

    Raises:
        DataError: ``send-input-differs``, with the files that are not as the step left them. Nothing was requested.
    """
    directory, recorded, files = context.input_dir, context.input.recorded, context.input.files
    if recorded is None:
        count = sum(1 for _ in finished_files(directory))
        if files is not None and count != files:
            what = f"it holds {count:,} files, the step before wrote {files:,}"
            raise _differs(f"send: {directory.name}/ is not as it was left: {what}", [str(directory)])
        return None
    progress = context.meter
    progress.begin("checking what is to be sent")
    progress.expect(bytes=stored_bytes(finished_files(directory)))
    now = take(context.job_dir, [directory], stop=context.stop, read=lambda size: progress.add(bytes=size))
    if now.digest != recorded.digest:
        step = f"step {recorded.position}, {recorded.step}"
        before = recorded.load()
        listed = differences(before, now) if before is not None else ["the list of its files is gone or was changed"]
        removes = ", which removes the corrected files" if recorded.step == "wait" else ""
        again = f": {context.again(recorded.position)}{removes}"
        raise _differs(f"send: {directory.name}/ is not as {step}, left it", listed, again)
    progress.begin("sending")
    return Compared(context.job_dir, now)


def _differs(message: str, listed: Iterable[str], again: str = "") -> DataError:
    return DataError(
        "send-input-differs",
        message,
        context="\n  ".join(listed),
        hint="nothing was sent by this run: put the files back as they were and continue the job, "
        f"or run the step that wrote them again{again}",
    )
