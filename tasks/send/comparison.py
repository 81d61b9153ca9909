"""Compare the input with the record before the first request of any mode (document 3 §7, first paragraph).

The comparison reads the stored bytes once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tasks.shared.errors import DataError
from tasks.shared.files.data_directory import CORE, base_name, finished_files, stored_bytes
from tasks.shared.files.inventory import Inventory, InventoryEntry, differences, take_inventory
from tasks.shared.step import StepContext


@dataclass(frozen=True)
class InputComparison:
    """The input in ``directory`` as it was when it was compared.

    ``base`` is the job's directory.
    """

    base: Path
    directory: Path
    inventory: Inventory

    def files(self) -> list[Path]:
        """Return the files that were compared, ``core`` first, then by their paths. Every mode sends from this list.

        Raises ``DataError`` ``send-no-input`` when there is none.
        """
        paths = sorted((self.base / entry.name for entry in self.inventory.entries), key=self._place)
        return required(paths, self.directory)

    def _place(self, path: Path) -> tuple[bool, str]:
        name = self.name(path)
        return base_name(name).lower() != CORE, name

    def name(self, path: Path) -> str:
        """Return the path of a file below the input directory, with ``/``."""
        return path.relative_to(self.directory).as_posix()

    def entry(self, path: Path) -> InventoryEntry:
        """Return size and SHA-256 of a file's stored bytes."""
        return self.inventory.by_name[path.relative_to(self.base).as_posix()]


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
    directory, recorded = context.input_dir, context.input.recorded
    progress = context.meter
    progress.begin("checking what is to be sent")
    progress.expect(bytes=stored_bytes(finished_files(directory)))
    now = take_inventory(context.job_dir, [directory], stop=context.stop, read=lambda size: progress.add(bytes=size))
    if recorded is not None and now.digest != recorded.digest:
        step = f"step {recorded.position}, {recorded.step}"
        before = recorded.load()
        listed = differences(before, now) if before is not None else ["the list of its files is gone or was changed"]
        removes = ", which moves the corrected files aside" if recorded.step == "wait" else ""
        again = f": {context.again(recorded.position)}{removes}"
        raise _differs(f"send: {directory.name}/ is not as {step}, left it", listed, again)
    progress.begin("sending")
    return InputComparison(context.job_dir, directory, now)


def _differs(message: str, listed: Iterable[str], again: str = "") -> DataError:
    return DataError(
        "send-input-differs",
        message,
        context="\n  ".join(listed),
        hint="nothing was sent by this run: put the files back as they were and continue the job, "
        f"or run the step that wrote them again{again}",
    )
