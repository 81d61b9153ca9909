"""What a reviewer approves at a wait: the files that the next step reads or sends, and the destination.

An approval covers these data until a step writes new data (docs/decisions/11-one-judge.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config import PipelineConfig, SendMode
from flows.output import patience
from tasks.shared.corrections import corrected_files, wait_directory
from tasks.shared.errors import DataError
from tasks.shared.file_work import records_of
from tasks.shared.files.data_directory import finished_files
from tasks.shared.files.inventory import Inventory, Recorded, differences, take_inventory
from tasks.shared.step import Source
from tasks.shared.stop import Stop


@dataclass(frozen=True)
class Covered:
    """The data that the wait at ``position`` covers."""

    job_dir: Path
    position: int
    source: Source

    @property
    def directory(self) -> Path:
        """The directory for corrected files."""
        return wait_directory(self.source.path)

    def place(self) -> Path:
        """Return the directory that the next step reads: the corrected files, if any. Raises ``StorageError``."""
        return self.directory if any(finished_files(self.directory)) else self.source.path

    @property
    def kept(self) -> Path:
        """The file with the manifest that a reviewer was shown, from which differences are listed."""
        return records_of(self.job_dir, self.position) / "shown.ndjson"

    def manifest(self, stop: Stop) -> Inventory:
        """Return the manifest of the files that the next step would read now.

        Raises:
            StorageError: a file cannot be read.
            Stopped: the job is asked to stop.
        """
        with patience("hashing the files to compare them with those that were shown"):
            return take_inventory(self.job_dir, [self.place()], stop=stop)

    def obstacle(self, files: Inventory) -> str | None:
        """Return why nobody can approve ``files``: unusable corrections, or output edited in place; else ``None``."""
        try:
            corrected_files(self.directory, tables=self.source.tables) if self.directory.is_dir() else None
        except DataError as error:
            return f"{error.message}: {error.context}"
        source = self.source
        if source.recorded is None or self.place() != source.path or files.digest == source.recorded.digest:
            return None
        wrote, before = source.recorded, source.recorded.load()
        changed = f" ({', '.join(differences(before, files))})" if before is not None else ""
        return (
            f"{source.path.name}/ differs from what step {wrote.position}, {wrote.step}, recorded{changed}: "
            f"restore it, and put the corrected files, with all unchanged ones, into {self.directory.name}/"
        )

    def approved(self, digest: str) -> Recorded:
        """Return the approved manifest, which later steps compare with the files they read."""
        return Recorded("wait", self.position, self.kept, digest)


def destination(config: PipelineConfig) -> dict[str, str]:
    """Return where the data go; empty if no step sends them. The configuration refuses URLs with credentials."""
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
