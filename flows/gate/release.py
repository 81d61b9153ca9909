"""Make the release report of a job: before the job parks, before data are sent without a reviewer, and at the end.

Document 5, §3. The report is a separate Prefect task. If it fails, the job continues, but the record has the error and
a release needs a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.engine.api import link_in_ui
from flows.engine.server.proof import REPORTS_PATH
from flows.gate import rules
from flows.gate.release_facts import delivery_of, facts_of, record_release
from flows.job.job import RunningJob
from flows.job.outcome import Ended, ends_at, held_back
from flows.job.record import AT_THE_END
from flows.job.steps import Sources
from flows.job.watch import Watcher
from flows.reports import short_form
from flows.reports.pages import best_effort
from tasks import declared
from tasks.release_report.measure.beside import BesideProcess
from tasks.release_report.measure.delivery import (
    SPOOL,
    Delivery,
    Measures,
    digests,
    measure_delivery,
    read_kept,
    store_measures,
)
from tasks.release_report.page import files
from tasks.release_report.report.build import make
from tasks.release_report.report.document import sha256
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

MOST = 50
"""Maximum stops and looks in the record; the report has all."""


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
        why = rules.to_be_made(job.directory.path, position, shown, what.seen, job.config, corrected=corrected)
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
    why = rules.to_be_made(job.directory.path, position, shown, what.seen, job.config)
    if shown is None or why is not None:
        shown = _shown(job, position, what)
        publish(job, position, shown)
    if not shown.open:
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
    count = len(shown.stops) + shown.more_stops
    again = f" ({job.run_again(source.recorded.position)})" if source.recorded is not None else ""
    return GateError(
        "report-stops", f"the release report has stops ({count}), and report.on_stop is fail: nothing was sent",
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
    publish(job, None, _shown(job, None, what))
    if any(declared(name).delivers for name in job.step_names):
        with best_effort("that this job released data"):
            record_release(job)


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
        if (directory := job.config.report.copy_to) is not None:
            with _copy_tried("could not be removed"):
                files.remove_copy(directory, job.id, step)
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
    delivery = delivery_of(job, what.place, what.found, read=lambda count: meter.add(bytes=count))
    meter.begin("measuring the data")
    try:
        measures = _measured(job, what.found, delivery)
    finally:
        with suppress(OSError):
            (job.directory.path / SPOOL).rmdir()  # spooled files have no names
    made = make(facts, measures, job.directory.path, job.stop)
    if made.in_house.files != what.found.digest:
        raise DataError(
            "report-files-changed", "files changed while the release report was made",
            context=f"{what.place.name}/", hint="continue the job: the report is made again",
        )  # fmt: skip
    page = files.write(job.directory.path, made.in_house, made.recipient, measures[1].files)
    copied = None
    if (directory := job.config.report.copy_to) is not None:
        with _copy_tried("could not be written"):
            copied = files.copy(made.in_house, directory)
    logger.info("release report: %s", page)
    name = page.relative_to(job.directory.path).as_posix()
    stops = tuple(one.key for one in made.in_house.findings if one.level == "stop")
    return Shown(
        sha256=sha256(made.in_house),
        seen=what.seen,
        settings=rules.settings_digest(job.config, inside=what.inside),
        page=name,
        copied=str(copied) if copied is not None else None,
        link=_link(job, name, copied),
        lines=tuple(short_form.lines(made.in_house)),
        inside=what.inside,
        stops=stops[:MOST],
        more_stops=len(stops[MOST:]),
        looks=tuple(one.key for one in made.in_house.findings if one.level == "look")[:MOST],
    )


def _link(job: RunningJob, name: str, copied: Path | None) -> str | None:
    """Return the address of the page ``name``: of its copy on the site's server, or its path in the UI.

    The page is requested from the UI and compared, because the server may not serve this jobs directory.
    """
    prefix = job.config.report.link
    if prefix is not None and copied is not None:
        return f"{prefix.rstrip('/')}/{copied.name}"
    page = (job.directory.path / name).read_bytes()
    path = f"{REPORTS_PATH}{job.id}/{name.removeprefix(f'{files.DIRECTORY}/')}"
    return link_in_ui(job.api.address, path, page)


def _measured(job: RunningJob, leaving: Inventory, delivery: Delivery) -> Measures:
    """Return and store the measurements of these files: stored, by the parallel process, or new ones.

    Raises:
        StorageError: a directory for spilled data cannot be written.
        Stopped: the job is asked to stop.
    """
    imported = Inventory(())
    if delivery.imported:
        imported = _inventory(job, job.written(min(job.steps), tables=False))
    found = read_kept(delivery, imported.digest, leaving.digest)
    if found is not None:
        return found
    if job.beside is not None:
        found = job.beside.result(delivery)
        job.end_measuring()
    if found is None or digests(found) != (imported.digest, leaving.digest):
        found = measure_delivery(delivery)
    with best_effort("what the release report measured"):
        store_measures(delivery, found)
    return found


def begin_measuring(job: RunningJob, position: int, sources: Sources) -> None:
    """Start to measure in parallel to the step at ``position`` and later ones, if a report on their output follows."""
    if not job.config.report.enabled or job.beside is not None or sources.newest is None:
        return
    behind = [declared(name) for name in job.step_names[position - 1 :]]
    until = next((at for at, step in enumerate(behind) if step.is_wait or step.delivers), 0)
    writes = [step for step in behind[:until] if step.output is not None]
    if not writes or job.steps[position].state == "completed":
        return
    expected = job.directory.path / str(writes[-1].output)
    with best_effort("what is measured for the release report"):
        delivery = delivery_of(job, expected, Inventory(()), read=lambda _: None)
        job.beside = BesideProcess(delivery, None if writes[-1].tables else expected)


@contextmanager
def _copy_tried(missed: str) -> Iterator[None]:
    """Log an error of the copy for people without a shell, instead of raising it."""
    try:
        yield
    except SluiceError as error:
        logger.warning("the copy of the release report %s: %s", missed, _error_line(error))


def _error_line(error: SluiceError | Problem) -> str:
    """Return the reason for a missing report, on one line."""
    where = f" ({error.context.splitlines()[0]})" if error.context else ""
    return f"{error.message}{where}"
