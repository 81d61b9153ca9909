"""What a person who decides at a ``wait`` has before her, and whether it is still what she decided on.

``4-product.md`` §2: "An approval is for what was seen: it names the hashes of the files." The label ``job.seen.<n>``
holds the digest of what was there when the job was parked, which is what the form in the Prefect UI is about; an
approval holds that of what was there when it was given. The run that goes on compares: what changed, appeared or
vanished in between closes the gate again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flows.output import say
from flows.record import Approval, JobRecord, Waiting
from flows.watch import human_bytes
from tasks.shared.data_directory import as_shown, finished_files
from tasks.shared.inventory import Inventory, Known, differences, load, take
from tasks.shared.stop import Stop
from tasks.wait.pause import corrections

_WORTH_A_WORD = 256_000_000
"""Bytes that a person may have to wait for."""

OF_AN_EARLIER_VERSION = "the decision does not say for which files it was"


@dataclass(frozen=True)
class Sight:
    """What there is to be seen at the wait at ``position``: what it looks at, and the directory for corrections."""

    job_dir: Path
    position: int
    looked_at: Path
    directory: Path

    @classmethod
    def of(cls, job_dir: Path, waiting: Waiting) -> Sight:
        """Where the record says that a job waits."""
        return cls(job_dir, waiting.position, Path(waiting.looked_at), Path(waiting.directory))

    def take(self, known: Known | None, stop: Stop) -> Inventory:
        """The files that are there now. Raises ``StorageError`` and ``Stopped``."""
        return take(self.job_dir, self._folders, stop=stop, known=known)

    def keep(self, inventory: Inventory) -> str:
        """Keep what was seen, for the words about what changed since; its digest. Raises ``StorageError``."""
        inventory.save(self._kept)
        return inventory.digest

    def kept(self, digest: str) -> Inventory | None:
        """What was seen under this digest, if it is still known."""
        return load(self._kept, digest)

    def corrections(self, inventory: Inventory) -> tuple[str, ...]:
        """The corrected files, for a person: the first twenty."""
        found = inventory.below(self.directory.name).entries
        return tuple(as_shown(f"{Path(entry.name).name}, {human_bytes(entry.size)}" for entry in found))

    @property
    def bytes(self) -> int:
        """How much there is to read at most."""
        return sum(path.stat().st_size for folder in self._folders for path in finished_files(folder))

    @property
    def _folders(self) -> list[Path]:
        return [self.looked_at, self.directory]

    @property
    def _kept(self) -> Path:
        return self.job_dir / ".results" / f"{self.position}-seen.ndjson"


def no_longer(approval: Approval, sight: Sight, now: Inventory) -> tuple[str, ...]:
    """Why an approval does not cover what is there now, a line each for a person; nothing when it does."""
    if approval.files == now.digest:
        return ()
    if not approval.files:
        return (OF_AN_EARLIER_VERSION,)
    before = sight.kept(approval.files)
    return tuple(differences(before, now)) if before is not None else ("the files are not those that it was for",)


def at_decision(job_dir: Path, record: JobRecord, waiting: Waiting) -> str:
    """The digest of what is there at this moment, for an approval that is about to be given.

    Raises:
        DataError: corrected files could not be used, by their names alone (``pause.corrections``): nothing is decided.
        StorageError: something cannot be read.
    """
    sight = Sight.of(job_dir, waiting)
    if sight.directory.is_dir():
        corrections(sight.directory)
    if (size := sight.bytes) > _WORTH_A_WORD:
        say(f"reading the files that the decision is for, {human_bytes(size)} at most", err=True)
    before = sight.kept(record.seen.get(waiting.position, ""))
    return sight.keep(sight.take(before.hash_of if before is not None else None, Stop()))


def told(waiting: Waiting) -> list[str]:
    """What a person must know beside where to look: why the job waits again, and what would be read instead."""
    lines = ["  it waits again: what is there is not what was approved"] if waiting.again else []
    lines += [f"    {line}" for line in waiting.again]
    lines += ["  corrected files are there, and the next step reads only them:"] if waiting.corrections else []
    return lines + [f"    {line}" for line in waiting.corrections]
