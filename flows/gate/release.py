"""Make the release report of a job: before the job parks, before data are sent without a reviewer, and at the end.

Document 5, §3. The report is a separate Prefect task. If it fails, the job continues, but the record has the error and
an approval needs a comment.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.gate import rules
from flows.gate.release_facts import delivery_of, facts_of
from flows.job.job import RunningJob
from flows.job.outcome import Ended, ends_at, held_back
from flows.job.record import AT_THE_END
from flows.job.steps import Sources
from flows.job.watch import Watcher
from flows.reports import short_form
from flows.reports.pages import best_effort
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
from tasks.shared.report import Problem, Shown
from tasks.shared.step import Source

if TYPE_CHECKING:
    from flows.gate.wait import CurrentWait

NAME = "release report"
"""Of the task in the Prefect UI."""


@dataclass(frozen=True)
class ReportedFiles:
    """Files ``found`` below the directory ``place``, and the digest ``seen`` of all files that a report covers.

    ``inside``: a step of the hospital processes them before they are sent.
    """

    place: Path
    found: Inventory
    seen: str
    inside: bool = False


def before_waiting(wait: CurrentWait) -> None:
    """Make the report that a reviewer at a wait decides on, unless one covers the current files.

    Raises:
        Stopped: the job is asked to stop.
    """
    job, position, reviewed = wait.job, wait.position, wait.reviewed
    shown = job.record().shown.get(position)
    if not job.config.report.enabled or reviewed is None:
        if shown is not None:
            job.writer.set(**{f"shown__{position}": None})
        return
    leaving = wait.sources.data_sent_after(position)
    place = reviewed.read(wait.there)
    what = ReportedFiles(place, wait.there.below(place.name), wait.there.digest, inside=leaving is None)
    if shown is not None:
        corrected = place == reviewed.directory
        why = rules.to_be_made(job.directory.path, shown, what.seen, job.config, corrected=corrected)
        if why is None:
            return
        wait.again = wait.again or (why,)
    publish(job, position, _shown(job, position, what))


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
    why = rules.to_be_made(job.directory.path, shown, what.seen, job.config)
    if shown is None or why is not None:
        shown = _shown(job, position, what)
        publish(job, position, shown)
    if not shown.needs_comment:
        return None
    for line in shown.lines:
        logger.warning("release report: %s", line)
    if job.config.report.on_stop == "tell":
        return None
    if shown.missing is not None:
        return GateError(
            "report-missing", f"there is no release report, and report.on_stop is fail: {shown.missing}",
            hint="fix the problem, then continue the job: the report is made again",
        )  # fmt: skip
    again = f" ({job.run_again(source.recorded.position)})" if source.recorded is not None else ""
    return GateError(
        "report-stops", f"the release report has stops ({shown.stops}), and report.on_stop is fail: nothing was sent",
        context="\n  ".join([*shown.stop_lines, *([str(job.directory.path / shown.page)] if shown.page else [])]),
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
        none_made = Shown(on_demand=True)
        job.writer.set(**{f"shown__{AT_THE_END}": none_made})
        job.presenter.reported(none_made, job.directory.path)
        return
    try:
        what = _reported_files(job, source)
    except SluiceError as error:
        job.writer.set(**{f"shown__{AT_THE_END}": Shown(missing=_error_line(error))})
        return
    publish(job, None, _as_before(job, what) or _shown(job, None, what))


def _reported_files(job: RunningJob, source: Source) -> ReportedFiles:
    """Return the files in a directory of the job, with the recorded hashes of unchanged ones."""
    found = _inventory(job, source)
    return ReportedFiles(source.path, found, found.digest)


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
            missing=_error_line(why),
            inside=what.inside,
            seen=what.seen,
            settings=rules.settings_digest(job.config, inside=what.inside),
        )
    if step is None or not declared(job.step_names[step - 1]).is_wait:
        job.presenter.reported(outcome, job.directory.path)
    return outcome


def _made(job: RunningJob, step: int | None, what: ReportedFiles, meter: Meter) -> Shown:
    meter.set_status("reading the data")
    facts = facts_of(job, step, what.place, what.found)
    if what.inside:
        facts = replace(facts, destination=None)
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
    return _written(job, report, seen=what.seen, inside=what.inside)


def _written(job: RunningJob, report: ReleaseReport, *, seen: str, inside: bool = False) -> Shown:
    page = files.write(job.directory.path, report)
    logger.info("release report: %s", page)
    return Shown(
        seen=seen,
        settings=rules.settings_digest(job.config, inside=inside),
        page=page.relative_to(job.directory.path).as_posix(),
        lines=tuple(short_form.lines(report)),
        inside=inside,
        stops=report.tiles.stops,
    )


def _as_before(job: RunningJob, what: ReportedFiles) -> Shown | None:
    """Return the newest report as that of the job's end, with the decisions, if it covers these files and settings."""
    step, shown = max(job.record().shown.items(), default=(None, None))
    if shown is None or shown.page is None or shown.settings != rules.settings_digest(job.config):
        return None
    with best_effort("the release report of the job's end"):
        report = files.read(job.directory.path, step)
        if report is not None and report.files == what.found.digest:
            shown = _written(job, at_end(report, facts_of(job, None, what.place, what.found)), seen=what.seen)
            job.presenter.reported(shown, job.directory.path)
            return shown
    return None


def _error_line(error: SluiceError | Problem) -> str:
    """Return the reason for a missing report, on one line."""
    where = f" ({error.context.splitlines()[0]})" if error.context else ""
    return f"{error.message}{where}"
