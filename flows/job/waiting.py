"""The part of a job's record about waits: what a person was shown, the answer, and the flow's decision.

Labels ``job.waiting``, ``job.shown.<n>``, ``job.answer.<n>`` and ``job.decision.<n>``. A form or a command leaves an
answer; only the flow makes a decision of it (``flows/gate``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.shared.report import StoredModel


class Answer(StoredModel):
    """A person's answer at a wait."""

    approved: bool
    by: str
    comment: str = ""
    when: str
    where: Literal["command", "ui"] = "command"

    def describe(self, shown: Callable[[str], str]) -> str:
        """Return the answer in words; what a person wrote is escaped by ``shown``."""
        verb = "approved" if self.approved else "rejected"
        place = "in the Prefect UI or through its API" if self.where == "ui" else "on the command line"
        comment = f": {shown(self.comment)}" if self.comment else ""
        return f"{verb} by {shown(self.by)} {place} at {self.when}{comment}"


class Reviewed(StoredModel):
    """What an approval is bound to: the SHA-256 over the manifest of the files, and the destination."""

    files: str = ""
    destination: dict[str, str] = Field(default_factory=dict)


class Decision(Answer, Reviewed):
    """An answer that the flow accepted, with the files and the destination that it holds for."""


class Shown(Reviewed):
    """What a person was shown: files, destination, and the release report about them.

    ``page`` is the path of the report below the job's directory; ``failed`` the reason why it could not be made. Both
    are ``None`` where no report is made. ``form`` is the key of the answers to the form of a wait.
    """

    form: str | None = None
    page: str | None = None
    stops: int = 0
    looks: int = 0
    failed: str | None = None

    @property
    def needs_comment(self) -> bool:
        """Return whether an approval needs a comment."""
        return self.failed is not None or self.stops > 0


class Waiting(StoredModel):
    """A job that waits: where, and for what.

    ``looked_at`` is the directory of the data to review, ``directory`` that for corrected files, ``reads`` the one that
    the next step would read now. ``reason`` says why the job waits again; ``None`` the first time.
    """

    position: int
    step: str
    looked_at: str
    directory: str
    reads: str
    tables: bool = False
    reason: str | None = None

    @property
    def job_dir(self) -> Path:
        """The directory of the job."""
        return Path(self.directory).parent
