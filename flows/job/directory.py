"""A job's directory: ``jobs_dir/<job id>/`` (docs/security.md). Directories are 0700, files 0600."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from flows.job.lock import LOCK
from tasks import declared
from tasks.shared.errors import StorageError, storage_errors
from tasks.shared.file_work import records_of
from tasks.shared.files.part_file import write_whole
from tasks.shared.log import logger
from tasks.shared.report import StepReport


@dataclass(frozen=True)
class JobDirectory:
    """Paths inside one job's directory."""

    path: Path

    @classmethod
    def of(cls, jobs_dir: Path, job_id: str) -> JobDirectory:
        """Return the directory of a job. Raises ``ValueError`` unless the id is a UUID: ``..`` would lead out."""
        return cls(jobs_dir.absolute() / str(UUID(job_id)))

    def create(self) -> None:
        """Make the directory, private to this user. Raises ``StorageError``."""
        with storage_errors(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def mirror(self, document: dict[str, Any]) -> None:
        """Replace ``job.json``, the copy of the record for people and monitoring. A failure is only logged."""
        try:
            write_whole(self.path / "job.json", json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
        except StorageError as error:
            logger.warning("job.json is not written: %s", error.message)

    def reset(self, steps: Sequence[StepReport], first: int) -> None:
        """Remove the files of the steps from position ``first`` on. May be repeated.

        Directories of earlier steps stay. A discarded wait's directory with corrected files is renamed.
        """
        from tasks.release_report import files  # here, because commands such as ``status`` do not need it

        files.remove_from(self.path, first)
        kept = {folder for step in steps if step.position < first for folder in _folders(step, steps)}
        for step in steps[first - 1 :]:
            shutil.rmtree(records_of(self.path, step.position), ignore_errors=True)
            if step.directory is not None and step.directory not in kept:
                self._set_aside(step.directory)
            for folder in _folders(step, steps) - kept:
                with suppress(FileNotFoundError):
                    shutil.rmtree(self.path / folder)

    def _set_aside(self, folder: str) -> None:
        """Rename a wait's directory, if it has files, to ``<folder>.old``, or ``.old-2`` and so on if that exists."""
        target = self.path / folder
        if target.is_dir() and any(target.iterdir()):
            number, free = 1, self.path / f"{folder}.old"
            while free.exists():
                number, free = number + 1, self.path / f"{folder}.old-{number + 1}"
            target.rename(free)

    def clear(self) -> None:
        """Remove everything but the lock file, which is in use. Raises ``StorageError`` (``job-delete``)."""
        try:
            for entry in list(self.path.iterdir()) if self.path.is_dir() else ():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                elif entry.name != LOCK:
                    entry.unlink()
        except OSError as error:
            raise StorageError(
                "job-delete", f"the job's directory cannot be removed: {error.strerror}",
                context=str(error.filename or self.path), hint="let the user who runs the jobs delete them",
            ) from None  # fmt: skip


def _folders(step: StepReport, steps: Sequence[StepReport]) -> set[str]:
    """Return every directory that a step writes, relative to the job's directory."""
    writes = declared(step.name).writes([one.name for one in steps], step.position)
    return {folder for folder in (*writes, step.directory) if folder}
