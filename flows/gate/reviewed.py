"""What a reviewer approves at a wait: the files that the next step reads or sends, and the destination.

An approval covers these data until a step writes new data (docs/decisions/11-one-judge.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config import PipelineConfig, SendMode
from flows.job.sources import Sources
from tasks.shared.corrections import corrected_files, wait_directory
from tasks.shared.errors import DataError
from tasks.shared.file_work import records_of
from tasks.shared.files.data_directory import finished_files
from tasks.shared.files.inventory import Inventory, Recorded, differences, load, take_inventory
from tasks.shared.report import Corrections
from tasks.shared.step import Source
from tasks.shared.stop import Stop


@dataclass(frozen=True)
class Covered:
    """The data that the wait at ``position`` covers.

    ``newest`` is what the reviewer looks at. ``leaving`` is what is sent if that is something else: a direct load
    behind ``flattening`` sends resources, and the reviewer looks at tables. Otherwise it is ``None``.
    """

    job_dir: Path
    position: int
    newest: Source
    leaving: Source | None
    corrections: Corrections

    @classmethod
    def of(cls, job_dir: Path, position: int, sources: Sources) -> Covered:
        """Return the data that a wait at ``position`` covers; ``sources`` are those before it."""
        newest, corrections = sources.newest, sources.corrections(position)
        if newest is None:
            raise ValueError(f"a wait at step {position} has nothing before it")
        leaving = sources.data_sent_after(position) if corrections is Corrections.NOT_SENT else None
        return cls(job_dir, position, newest, leaving, corrections)

    @property
    def directory(self) -> Path:
        """The directory for corrected files."""
        return wait_directory(self.newest.path)

    def place(self) -> Path:
        """Return the directory that is read next: the corrected files, if there are some. Raise ``StorageError``."""
        if self.leaving is not None:
            return self.leaving.path
        return self.directory if any(finished_files(self.directory)) else self.newest.path

    @property
    def kept(self) -> Path:
        """The file with the manifest that was shown, so that differences can be listed."""
        return records_of(self.job_dir, self.position) / "shown.ndjson"

    def manifest(self, digest: str, stop: Stop) -> Inventory:
        """Return the files that are there now. A file unchanged since the manifest with ``digest`` is not read.

        Raises:
            StorageError: something cannot be read.
            Stopped: the job is asked to stop.
        """
        wrote = (self.leaving or self.newest).recorded
        known = load(self.kept, digest) or (wrote.load() if wrote is not None else None)
        return take_inventory(self.job_dir, [self.place()], stop=stop, known=known.hash_of if known else None)

    def obstacle(self, files: Inventory) -> str | None:
        """Return why these files cannot be approved: unusable corrections, or a step's output edited in place."""
        try:
            corrected_files(self.directory, self.corrections) if self.directory.is_dir() else None
        except DataError as error:
            return f"{error.message}: {error.context}"
        source = self.leaving or self.newest
        if source.recorded is None or self.place() != source.path or files.digest == source.recorded.digest:
            return None
        wrote, before = source.recorded, source.recorded.load()
        changed = f" ({', '.join(differences(before, files))})" if before is not None else ""
        return (
            f"{source.path.name}/ differs from what step {wrote.position}, {wrote.step}, recorded{changed}: "
            f"restore it, and put all corrected files into {self.directory.name}/"
        )

    def approved(self, digest: str) -> Recorded:
        """Return the approved manifest, for the steps that read these files."""
        return Recorded("wait", self.position, self.kept, digest)


def destination(config: PipelineConfig) -> dict[str, str]:
    """Return where the data go; empty if no step sends them. The configuration takes no URL with credentials."""
    send = config.services.send
    if send.send_as is None or "send" not in config.pipeline.enabled_steps:
        return {}
    found: dict[str, str | None] = {"mode": send.send_as.value}
    if send.send_as is SendMode.S3_UPLOAD:
        s3 = send.s3
        found |= {"endpoint": s3.endpoint, "region": s3.region}
        found |= {"bucket": s3.bucket, "prefix": s3.prefix}
    else:
        found |= {"url": send.url}
    if send.send_as is SendMode.TRANSFER_LOAD:
        transfer = send.transfer
        found |= {"project": transfer.project_identifier, "organization": transfer.organization_identifier}
    return {name: value for name, value in found.items() if value}
