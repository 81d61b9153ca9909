"""The files that a reviewer sees at a ``wait``, and whether they are still the ones of the decision.

``4-product.md`` §2: "An approval is for what was seen: it names the hashes of the files." The label ``job.seen.<n>``
has the digest of the files of the form in the Prefect UI, from the time the job was parked; an approval has the digest
from the time of the approval. The run that continues compares both: a changed, new or missing file makes the
job wait again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows.gate import rules
from flows.job.record import JobRecord
from flows.output import print_line
from tasks.shared.corrections import corrected_files
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.data_directory import as_shown, finished_files, stored_bytes
from tasks.shared.files.inventory import Inventory, Known, differences, kept_at, load, take_inventory
from tasks.shared.report import ON_DEMAND, Approval, Corrections, StepReport, Waiting
from tasks.shared.stop import Stop
from tasks.shared.units import human_bytes

if TYPE_CHECKING:
    from config import PipelineConfig

_WORTH_A_WORD = 256_000_000
"""Bytes that a person may have to wait for."""

NEXT = "the next step"
"""The reader of released data that a further step processes before they are sent."""

INSIDE = "this decision sends no data, so it needs no comment"
"""Why an approval of data that another step still processes needs no comment: that step may resolve the stops."""

CHANGED = "files changed after the job began to wait"
CORRECTED = "corrected files are there and will be read"
"""Why a job without release reports waits once more."""

OTHER_FILES = "the decision was for other files"


@dataclass(frozen=True)
class ReviewedFiles:
    """Files of the wait at ``position``.

    ``looked_at`` has the files to review, ``directory`` the corrected ones. ``leaves`` has the files to be sent, if
    they differ (a direct load behind flattening). ``reader`` is the step that reads released files.
    """

    job_dir: Path
    position: int
    looked_at: Path
    directory: Path
    leaves: Path | None = None
    corrections: Corrections = Corrections.NDJSON
    reader: str = NEXT

    @classmethod
    def of(cls, job_dir: Path, waiting: Waiting) -> ReviewedFiles:
        """Return the files of the wait in the record."""
        looked_at, directory = job_dir / Path(waiting.looked_at).name, job_dir / Path(waiting.directory).name
        leaves = job_dir / Path(waiting.leaves).name if waiting.leaves else None
        return cls(job_dir, waiting.position, looked_at, directory, leaves, waiting.corrections, waiting.reader)

    def check(self) -> None:
        """Raise ``DataError`` if a name of a corrected file cannot be used, or ``StorageError``."""
        if self.directory.is_dir():
            corrected_files(self.directory, self.corrections)

    def read(self, there: Inventory) -> Path:
        """Return the directory that the next step would read now."""
        if self.corrections is not Corrections.NOT_SENT and there.below(self.directory.name).entries:
            return self.directory
        return self.leaves or self.looked_at

    def as_left(self, there: Inventory, steps: Iterable[StepReport]) -> None:
        """Check that the files to be read are unchanged since their step, or corrected files.

        Raises:
            DataError: ``edited-in-place``: ``send`` would refuse them after the decision.
        """
        place = self.read(there)
        wrote = [step for step in steps if step.position < self.position and step.output == place.name]
        if place == self.directory or not wrote or not (digest := wrote[-1].inventory):
            return
        now = there.below(place.name)
        if now.digest == digest:
            return
        before = load(kept_at(self.job_dir, wrote[-1].position), digest)
        listed = differences(before, now) if before is not None else [str(place)]
        raise DataError(
            "edited-in-place",
            f"{place.name}/ is not as step {wrote[-1].position}, {wrote[-1].name}, left it, so it cannot be approved",
            context="\n  ".join(listed),
            hint="restore the files, then continue the job. Put all corrected files into the wait directory",
        )

    def list_files(self, known: Known | None, stop: Stop) -> Inventory:
        """Return the current files. Raise ``StorageError`` or ``Stopped``."""
        return take_inventory(self.job_dir, self._folders, stop=stop, known=known)

    def save_seen(self, inventory: Inventory) -> str:
        """Save the reviewed files, to list later changes. Return their digest. Raise ``StorageError``."""
        inventory.save(self._seen_path)
        return inventory.digest

    def seen_files(self, digest: str) -> Inventory | None:
        """Return the reviewed files with this digest, if they are still saved."""
        return load(self._seen_path, digest)

    def shown(self, waiting: Waiting, there: Inventory) -> Waiting:
        """Return the wait with the files that would be read now."""
        place = self.read(there)
        found = there.below(place.name).entries
        files = _file_lines((entry.name.removeprefix(f"{place.name}/"), entry.size) for entry in found)
        leaves = str(self.leaves) if self.leaves else None
        seen = {"reads": str(place), "files": files, "leaves": leaves, "reader": self.reader}
        return waiting.model_copy(update=seen | {"corrections": self.corrections})

    @property
    def bytes(self) -> int:
        """Number of bytes to read at most. Raises ``StorageError``."""
        with storage_errors(self.looked_at):
            return sum(path.stat().st_size for folder in self._folders for path in finished_files(folder))

    @property
    def _folders(self) -> list[Path]:
        return [self.looked_at, self.directory, *([self.leaves] if self.leaves else [])]

    @property
    def _seen_path(self) -> Path:
        return self.job_dir / ".results" / f"{self.position}-seen.ndjson"


def changes_since_approval(approval: Approval, reviewed: ReviewedFiles, now: Inventory) -> tuple[str, ...]:
    """Return why an approval does not cover the current files, one line per reason; empty if it does."""
    if approval.files == now.digest:
        return ()
    before = reviewed.seen_files(approval.files)
    return tuple(differences(before, now)) if before is not None else (OTHER_FILES,)


def digest_at_decision(job_dir: Path, record: JobRecord, waiting: Waiting) -> str:
    """Return the digest of the current files for an approval, and save them.

    Raises:
        DataError: a name of a corrected file cannot be used, or files were edited in place; nothing is decided.
        StorageError: something cannot be read.
    """
    reviewed = ReviewedFiles.of(job_dir, waiting)
    reviewed.check()
    there = _found_now(reviewed, record)
    reviewed.as_left(there, record.steps)
    return reviewed.save_seen(there)


def digest_now(job_dir: Path, record: JobRecord, waiting: Waiting) -> tuple[str, bool]:
    """Return the digest of the current files, and whether corrected files would be read. Save nothing.

    Raises ``StorageError``.
    """
    reviewed = ReviewedFiles.of(job_dir, waiting)
    there = _found_now(reviewed, record)
    return there.digest, reviewed.read(there) == reviewed.directory


def _found_now(reviewed: ReviewedFiles, record: JobRecord) -> Inventory:
    if (size := reviewed.bytes) > _WORTH_A_WORD:
        print_line(f"reading the files that the decision is for, {human_bytes(size)} at most", err=True)
    before = reviewed.seen_files(record.seen.get(reviewed.position, ""))
    return reviewed.list_files(before.hash_of if before is not None else None, Stop())


def why_again(job: Path, record: JobRecord, config: PipelineConfig, *, on_demand: bool = False) -> str | None:
    """Return why the flow must run again for a waiting or complete job without a decision: its release report failed or
    does not cover the current files. ``None`` if it need not, and for any other job.

    With ``on_demand``, the report was requested, also for a job that needs none. Raises ``StorageError``.
    """
    waiting = record.undecided
    if waiting is None:
        shown = record.shown_at_the_end if record.done and config.report.enabled else None
        if shown is None or shown.on_demand:
            return ON_DEMAND if shown is not None and on_demand else None
        return None if rules.is_there(job, shown) else rules.NOT_MADE
    position = waiting.position
    if waiting.refused:
        return None  # the run says why the answer in the form is not taken
    files, corrected = digest_now(job, record, waiting)
    why = rules.to_be_made(job, waiting.report, files, config, corrected=corrected)
    if why is not None or files == record.seen.get(position):
        return why
    return CORRECTED if corrected else CHANGED


def is_still_there(job_dir: Path, steps: Iterable[StepReport], digest: str) -> bool:
    """Return whether the files with this digest are in a data directory of the job.

    A file unchanged since its step is not read. Raises ``StorageError``.
    """
    places = {name: step for step in steps for name in (step.directory, step.output) if name}
    for name, step in reversed(places.items()):
        before = load(kept_at(job_dir, step.position), step.inventory) if step.inventory else None
        known = before.hash_of if before else None
        if take_inventory(job_dir, [job_dir / name], known=known, stop=Stop()).digest == digest:
            return True
    return False


def wait_lines(waiting: Waiting) -> list[str]:
    """Return the lines on a wait for the terminal: why the job waits again, files to be read, report."""
    lines = ["  the job waits again for a decision on the current files:"] if waiting.again else []
    lines += [f"    {line}" for line in waiting.again]
    lines += [f"  {line}" for line in waiting.refused]
    if waiting.reads:
        which = "the corrected files" if waiting.reads == waiting.directory else "these files"
        lines += [f"  {waiting.reader} will read {which} in {waiting.reads}"]
        lines += [f"    {file}" for file in waiting.files]
    return lines + [f"  {line}" for line in report_lines(waiting)]


def where_to_look(waiting: Waiting) -> list[str]:
    """Return the lines that name the files to review and the directory for corrected files."""
    return [f"  look at {waiting.looked_at}", correction_words(waiting), *wait_lines(waiting)]


def report_lines(waiting: Waiting) -> list[str]:
    """Return the summary and path of the release report, and whether an approval needs a comment."""
    shown, lines = waiting.report, []
    if shown is None:
        return []
    if shown.missing is not None:
        lines += [f"the release report is missing: {shown.missing}"]
    else:
        lines += [f"release report: {line}" if number == 0 else f"  {line}" for number, line in enumerate(shown.lines)]
        lines += [f"  {Path(waiting.directory).parent / shown.page}"] if shown.page else []
    if shown.needs_comment:
        lines += ["To approve it, say why in a comment (--comment TEXT)."]
    return lines + ([INSIDE] if shown.inside else [])


def to_be_read(waiting: Waiting) -> tuple[Path, tuple[str, ...]]:
    """Return the directory that would be read now, and its files with their sizes."""
    directory = Path(waiting.directory)
    corrected = [] if waiting.corrections is Corrections.NOT_SENT else list(finished_files(directory))
    place = directory if corrected else Path(waiting.leaves or waiting.looked_at)
    files = corrected or list(finished_files(place))
    return place, _file_lines((path.relative_to(place).as_posix(), stored_bytes([path])) for path in files)


def _file_lines(files: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the first files, each with its size, and the number of the others."""
    return tuple(as_shown(f"{name}, {human_bytes(size)}" for name, size in sorted(files)))


def correction_words(waiting: Waiting) -> str:
    """Return the line on corrected files: their directory, or why they would not be sent."""
    if waiting.corrections is Corrections.NOT_SENT:
        return f"  tables in {waiting.directory} would not be sent: correct the NDJSON at a wait in front of flattening"
    kind = "tables" if waiting.corrections is Corrections.TABLES else "files"
    return f"  corrected {kind} go into {waiting.directory}"
