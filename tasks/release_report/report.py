"""Make the release report of a job: measure the data that leave, build the document, write it (docs/review.md).

The gate calls ``make_report``. ``decide`` adds a decision to an existing report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tasks.release_report import files
from tasks.release_report.document import Decided, Outcome, ReleaseReport, Tiles
from tasks.release_report.facts import VIEWS, JobFacts, settings_digest
from tasks.release_report.findings import TERMS, findings
from tasks.release_report.markdown import lines, markdown, title
from tasks.release_report.measured import Measured, ScannedFile
from tasks.release_report.scan import ScanSettings, scan
from tasks.release_report.sections import sections
from tasks.shared.errors import DataError
from tasks.shared.files.inventory import Inventory, InventoryEntry
from tasks.shared.stop import Stop


@dataclass(frozen=True)
class Summary:
    """A report in short: how many stops and points to look at, its page, the digest of the files that it is for, and
    its texts: ``title``, a few ``lines`` for terminal and form, the whole as ``markdown``."""

    stops: int
    looks: int
    page: Path
    files: str
    title: str
    lines: tuple[str, ...]
    markdown: str


def make_report(
    job: JobFacts, manifest: Inventory, *, stop: Stop | None = None, read: Callable[[int], None] = lambda _: None
) -> Summary:
    """Write the release report on the files of a manifest; ``read`` gets the bytes as they are read.

    If the existing report has the same digests of files and settings, only step, decisions and outcome are updated.

    Raises:
        StorageError: a file cannot be read or written.
        DataError: a file is not as in the manifest.
        Stopped: the run is asked to stop.
    """
    asked = (manifest.digest, settings_digest(job))
    with suppress(DataError):
        before = files.read(job.directory)
        if before is not None and (before.files, before.settings) == asked:
            return _again(job, before)
    files.remove(job.directory)
    settings = ScanSettings(
        k=job.config.report.k,
        region_prefix=job.config.report.region_prefix,
        longest_line=job.config.limits.max_line_mb << 20,
        today=datetime.fromisoformat(job.made).date(),
        views=job.directory / VIEWS,
    )
    leaving = [job.directory / entry.name for entry in manifest.entries]
    measured = scan(leaving, job.directory, settings, stop=stop or Stop(), read=read)
    report = document(job, measured)
    if report.files != manifest.digest:
        raise DataError(
            "report-files-changed", "files changed while the release report was made", context=str(job.directory),
            hint="continue the job: the report is made again",
        )  # fmt: skip
    files.write(job.directory, report)
    return summary_of(job.directory, report)


def _again(job: JobFacts, before: ReleaseReport) -> Summary:
    """Update step, decisions and outcome of an existing report; return its summary."""
    now = {"step": job.step, "decisions": tuple(job.decisions), "outcome": outcome_of(job), "sent": job.sent}
    report = before.model_copy(update=now)
    if report != before:
        files.write(job.directory, report)
    return summary_of(job.directory, report)


def document(job: JobFacts, measured: Measured) -> ReleaseReport:
    """Return the report of a job. The same facts and measurements give the same report."""
    settings, to = job.config.report, job.destination
    found, checksum = findings(job, measured), checksum_of(measured.files)
    entries = (InventoryEntry(file.name, file.size, file.sha256) for file in measured.files)
    return ReleaseReport(
        job=job.job,
        project=job.project,
        step=job.step,
        made=job.made,
        inside=job.inside,
        language=settings.language,
        k=settings.k,
        tiles=Tiles(
            patients=measured.patients,
            files=len(measured.files),
            bytes=measured.size,
            resources=measured.resources,
            tables=measured.tables,
            destination=to.shown if to is not None else None,
            encrypted=to.encrypted if to is not None else None,
            terms={name: getattr(settings, name) for name in (*TERMS, "contact")},
        ),
        findings=found,
        sections=sections(job, measured, found, checksum),
        decisions=tuple(job.decisions),
        outcome=outcome_of(job),
        sent=job.sent,
        files=Inventory(tuple(sorted(entries, key=lambda entry: entry.name))).digest,
        settings=settings_digest(job),
        checksum=checksum,
    )


def decide(job: Path, decision: Decided) -> Summary | None:
    """Add a decision to the report of a job; ``None`` if it has none.

    Raises:
        StorageError: it cannot be read or written.
        DataError: it is damaged.
    """
    report = files.read(job)
    if report is None:
        return None
    report = report.model_copy(update={"decisions": (decision,)})
    files.write(job, report)
    return summary_of(job, report)


def lines_of(job: Path) -> list[str]:
    """Return the report of a job in a few lines; empty if it has none that can be read."""
    with suppress(DataError):
        report = files.read(job)
        return lines(report) if report is not None else []
    return []


def summary_of(job: Path, report: ReleaseReport) -> Summary:
    """Return the summary of a report. ``job`` is the job directory."""
    page = files.page_of(job)
    return Summary(
        stops=report.number_of("stop"),
        looks=report.number_of("look"),
        page=page,
        files=report.files,
        title=title(report),
        lines=tuple(lines(report)),
        markdown=markdown(report, str(page)),
    )


def outcome_of(job: JobFacts) -> Outcome:
    """Return whether the data were sent, with or without a decision; else whether a person is asked."""
    if job.sent:
        return "sent" if job.asks else "sent-undecided"
    return "unasked" if job.step is None or (job.destination and not job.asks) else "waits"


def checksum_of(scanned: Sequence[ScannedFile]) -> str:
    """Return what ``LC_ALL=C; sha256sum * | sha256sum`` prints in the directory of the files."""
    listed = sorted((Path(file.name).name, file.sha256) for file in scanned)
    text = "".join(f"{sha256}  {name}\n" for name, sha256 in listed)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
