"""Make the release report of a job: before the job parks, before data are sent without a reviewer, and at the end.

Document 5, §3. The report is a separate Prefect task. If it fails, the job continues, but the record has the error and
an approval needs a comment.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from config import PipelineConfig
from flows.gate.release_facts import delivery_of, facts_of, rules_of
from flows.gate.reviewed import Covered, destination
from flows.job.job import RunningJob
from flows.job.outcome import Ended, ends_at, held_back
from flows.job.record import AT_THE_END
from flows.job.steps import Sources
from flows.job.waiting import Shown
from flows.job.watch import Watcher
from flows.reports import short_form
from flows.reports.markdown import best_effort
from tasks import declared
from tasks.release_report.measure.delivery import SPOOL, measure_delivery
from tasks.release_report.page import files
from tasks.release_report.report.build import at_end, make
from tasks.release_report.report.document import ReleaseReport
from tasks.shared.errors import DataError, GateError, SluiceError, Stopped, internal_error
from tasks.shared.files.inventory import Inventory, take_inventory
from tasks.shared.log import logger
from tasks.shared.meter import Meter
from tasks.shared.prefect_task import as_task
from tasks.shared.report import Problem
from tasks.shared.step import Source

NAME = "release report"
"""Of the task in the Prefect UI."""


@dataclass(frozen=True)
class ReportedFiles:
    """Files ``found`` below the directory ``place``."""

    place: Path
    found: Inventory


def before_waiting(job: RunningJob, position: int, covered: Covered, files: Inventory) -> Shown:
    """Return what a reviewer is shown at a wait: files, destination, and the report, made unless one covers them.

    Raises:
        Stopped: the job is asked to stop.
    """
    if not job.config.report.enabled:
        return Shown(files=files.digest, destination=destination(job.config))
    shown = job.record().shown.get(position)
    if shown is not None and is_current(job, shown, files.digest):
        return shown
    shown = _shown(job, position, ReportedFiles(covered.place(), files))
    publish(job, position, shown)
    return shown


def is_current(job: RunningJob, shown: Shown, files: str) -> bool:
    """Return whether a report is there and covers ``files`` (their digest), the destination and the settings."""
    asked = (files, destination(job.config), settings_digest(job.config))
    is_there = shown.page is not None and (job.directory.path / shown.page).is_file()
    return is_there and (shown.files, shown.destination, shown.settings) == asked


def settings_digest(config: PipelineConfig) -> str:
    """Return the SHA-256 of what a report depends on besides files and destination."""
    rules, kept = rules_of(config)
    known = [config.report.model_dump(mode="json"), str(rules), sorted(kept)]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def decided(job: RunningJob, position: int) -> None:
    """Add the decision at a wait to its report."""
    short_form.add_decisions(job.short, job.directory.path, job.record(), position, job.config.report)


def publish(job: RunningJob, position: int | None, shown: Shown) -> None:
    """Record the report that was made for the step at ``position``, or at the end, and publish its short form."""
    job.writer.set(**{f"shown__{position or AT_THE_END}": shown, "progress": None})
    short_form.publish(job.short, job.directory.path, shown, position, job.config.report.language)


def check_before_sending(job: RunningJob, position: int, sources: Sources) -> None:
    """Make the release report if the step at ``position`` sends data that no reviewer released.

    Raises:
        Ended: the report has stops, and the configuration ends the job for that.
    """
    with ends_at(job, position):
        held = before_leaving(job, position, sources)
    if held is not None:
        raise Ended(held_back(job, position, held))


def before_leaving(job: RunningJob, position: int, sources: Sources) -> GateError | None:
    """Make the report if the step at ``position`` sends data that no reviewer released. Return the error that stops it.

    Raises:
        Stopped: the job is asked to stop.
        StorageError: the files cannot be read.
    """
    names = job.step_names[: position - 1]
    source = sources.read_by(declared(job.step_names[position - 1]))
    if not job.config.report.enabled or source is None or job.steps[position].state == "completed":
        return None
    if any(declared(name).is_wait and sources.delivery(at) is not None for at, name in enumerate(names, start=1)):
        return None
    what = _reported_files(job, source)
    shown = job.record().shown.get(position)
    if shown is None or not is_current(job, shown, what.found.digest):
        shown = _shown(job, position, what)
        publish(job, position, shown)
    if not shown.needs_comment:
        return None
    lines = short_form.lines_at(job.directory.path, position)
    for line in lines:
        logger.warning("release report: %s", line)
    if job.config.report.on_stop == "tell":
        return None
    if shown.failed is not None:
        return GateError(
            "report-missing", f"there is no release report, and report.on_stop is fail: {shown.failed}",
            hint="fix the problem, then continue the job: the report is made again",
        )  # fmt: skip
    again = f" ({job.run_again(source.recorded.position)})" if source.recorded is not None else ""
    return GateError(
        "report-stops", f"the release report has stops ({shown.stops}), and report.on_stop is fail: nothing was sent",
        context="\n  ".join([*lines, *([str(job.directory.path / shown.page)] if shown.page else [])]),
        hint=f"correct the rules or the data and run the step that wrote them again{again}, or add a wait step "
        "before it, where a person decides",
    )  # fmt: skip


def at_the_end(job: RunningJob, source: Source | None) -> None:
    """Make and record the report of a complete job, with all decisions, on the sent data or else on the last output.

    A job without a ``wait`` and a sending step gets a report only when ``job report`` runs it again.

    Raises:
        Stopped: the job is asked to stop.
    """
    if not job.config.report.enabled or source is None:
        return
    before = job.record().shown_at_the_end
    if before is None and not any(one.delivers or one.is_wait for one in map(declared, job.step_names)):
        job.writer.set(**{f"shown__{AT_THE_END}": Shown()})
        return
    try:
        what = _reported_files(job, source)
    except SluiceError as error:
        job.writer.set(**{f"shown__{AT_THE_END}": Shown(failed=_error_line(error))})
        return
    publish(job, None, _as_before(job, what) or _shown(job, None, what))


def _reported_files(job: RunningJob, source: Source) -> ReportedFiles:
    """Return the files in a directory of the job, with the recorded hashes of unchanged ones."""
    found = _inventory(job, source)
    return ReportedFiles(source.path, found)


def _inventory(job: RunningJob, source: Source) -> Inventory:
    before = source.recorded.load() if source.recorded is not None else None
    known = before.hash_of if before is not None else None
    return take_inventory(job.directory.path, [source.path], stop=job.stop, known=known)


def _shown(job: RunningJob, step: int | None, what: ReportedFiles) -> Shown:
    """Make the report as a Prefect task that can be cancelled: it may read for minutes.

    Raises:
        Stopped: the job is asked to stop.
    """
    position = step or len(job.step_names)
    meter = Meter()
    outcome: Shown | Exception
    try:
        files.remove(job.directory.path, step)
        watcher = Watcher(job.writer, job.page, job.stop, job.presenter.progress)
        with watcher.watching(NAME, position, meter):
            outcome = as_task(NAME, lambda: _made(job, step, what, meter))
    except SluiceError as error:
        outcome = error
    if isinstance(outcome, Stopped):
        raise outcome
    if isinstance(outcome, Exception):
        why = outcome if isinstance(outcome, SluiceError) else internal_error(outcome)
        logger.error("the release report is missing: %s", why.render())
        outcome = Shown(
            failed=_error_line(why), files=what.found.digest, destination=destination(job.config),
            settings=settings_digest(job.config),
        )  # fmt: skip
    if step is None or not declared(job.step_names[step - 1]).is_wait:
        job.presenter.reported(job.directory.path, outcome, step)
    return outcome


def _made(job: RunningJob, step: int | None, what: ReportedFiles, meter: Meter) -> Shown:
    meter.set_status("reading the data")
    facts = facts_of(job, step, what.place, what.found)
    try:
        measures = measure_delivery(delivery_of(job, what.found, read=lambda count: meter.add(bytes=count)))
    finally:
        with suppress(OSError):
            (job.directory.path / SPOOL).rmdir()  # spooled files have no names
    report = make(facts, measures)
    if report.files != what.found.digest:
        raise DataError(
            "report-files-changed", "files changed while the release report was made",
            context=f"{what.place.name}/", hint="continue the job: the report is made again",
        )  # fmt: skip
    return _written(job, report)


def _written(job: RunningJob, report: ReleaseReport) -> Shown:
    page = files.write(job.directory.path, report)
    logger.info("release report: %s", page)
    return Shown(
        files=report.files,
        destination=destination(job.config),
        settings=settings_digest(job.config),
        page=page.relative_to(job.directory.path).as_posix(),
        stops=report.tiles.stops,
        looks=report.tiles.looks,
    )


def _as_before(job: RunningJob, what: ReportedFiles) -> Shown | None:
    """Return the newest report as that of the job's end, with the decisions, if it covers these files and settings."""
    step, shown = max(job.record().shown.items(), default=(None, None))
    if shown is None or not is_current(job, shown, what.found.digest):
        return None
    with best_effort("the release report of the job's end"):
        report = files.read(job.directory.path, step)
        if report is not None and report.files == what.found.digest:
            shown = _written(job, at_end(report, facts_of(job, None, what.place, what.found)))
            job.presenter.reported(job.directory.path, shown, None)
            return shown
    return None


def _error_line(error: SluiceError | Problem) -> str:
    """Return the reason for a missing report, on one line."""
    where = f" ({error.context.splitlines()[0]})" if error.context else ""
    return f"{error.message}{where}"
