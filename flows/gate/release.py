"""Make the release report of a job: before the job parks, before data are sent without a reviewer, and at the end.

The report (docs/review.md) is made in a Prefect task of its own. If this fails, the record has the reason. An approval
then needs a comment. Without a wait, ``report.on_stop`` decides whether the job ends.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from flows.gate.reviewed import Covered, destination
from flows.job.record import at, continue_command
from flows.job.running import RunningJob
from flows.job.waiting import Decision, Shown
from flows.prefect.artifacts import REPORT, best_effort
from tasks import declared
from tasks.release_report.document import Decided
from tasks.release_report.facts import JobFacts
from tasks.release_report.report import Summary, decide, lines_of, make_report
from tasks.shared.errors import GateError, SluiceError, Stopped, internal_error
from tasks.shared.files.inventory import Inventory, take_inventory
from tasks.shared.log import logger
from tasks.shared.markdown import literal
from tasks.shared.meter import Meter
from tasks.shared.prefect_task import as_task
from tasks.shared.step import Source

NAME = "release report"


def before_waiting(job: RunningJob, covered: Covered, there: Inventory, *, leaves: bool) -> Shown:
    """Return what a reviewer is shown at a wait: files, destination and report. Raises ``Stopped``.

    ``leaves``: a later step sends these data unchanged.
    """
    if not job.config.report.enabled:
        return Shown(files=there.digest, destination=destination(job.config))
    source = replace(covered.source, path=covered.place())
    inside = not leaves and any(declared(name).delivers for name in job.step_names[covered.position :])
    return _shown(job, _facts(job, covered.position, source, inside=inside, asks=leaves), there)


def add_decision(job: RunningJob, position: int) -> None:
    """Add the decision at a wait to the release report."""
    with best_effort("the decision in the release report"):
        summary = decide(job.directory.path, _decided(job.record().decisions[position]))
        if summary is not None:
            _publish(job, summary)


def check_before_sending(job: RunningJob, source: Source | None) -> None:
    """Make the release report if the current step sends data that no reviewer released.

    Raises ``GateError`` if the report has stops or could not be made, and ``report.on_stop`` is ``fail``.
    """
    position = job.position
    if not job.config.report.enabled or source is None or source.approved or job.steps[position].state == "completed":
        return
    shown = _shown(job, _facts(job, position, source), take_inventory(job.directory.path, [source.path], stop=job.stop))
    job.writer.write({at("shown", position): shown, "progress": None})
    job.presenter.reported(job.directory.path, shown)
    lines = lines_of(job.directory.path) if shown.stops else []
    for line in lines:
        logger.warning("release report: %s", line)
    if job.config.report.on_stop == "fail" and shown.needs_comment:
        raise _refusal(job, source, shown, lines)


def at_the_end(job: RunningJob, source: Source | None) -> None:
    """Make and record the report of a complete job, about the data that were sent, or else the last output.

    A job without a send or wait step gets its report only when ``job report`` runs it again. Raises ``Stopped``.
    """
    if not job.config.report.enabled or source is None:
        return
    wanted = job.record().shown_at_the_end is not None
    if not wanted and not any(one.delivers or one.is_wait for one in map(declared, job.step_names)):
        job.writer.write({at("shown", len(job.steps) + 1): Shown()})
        return
    try:
        there = take_inventory(job.directory.path, [source.path], stop=job.stop)
        given = [_decided(one) for _, one in sorted(job.record().decisions.items()) if one.files == there.digest]
        begun = (job.steps[at].started for at, name in enumerate(job.step_names, 1) if declared(name).delivers)
        sent = max(filter(None, begun), default=None)
        facts = _facts(job, None, source, decisions=given, asks=bool(given), sent=sent)
        shown = _shown(job, facts, there)
    except SluiceError as error:
        shown = Shown(failed=_line(error))
    job.writer.write({at("shown", len(job.steps) + 1): shown, "progress": None})
    job.presenter.reported(job.directory.path, shown)


def _facts(job: RunningJob, step: int | None, source: Source, **more: Any) -> JobFacts:
    """Return the facts about the job for the report. ``more`` are the facts that depend on when it is made."""
    return JobFacts(
        job=job.id,
        project=job.config.services.send.transfer.project_identifier or job.loaded.path.stem,
        directory=job.directory.path,
        config=job.config,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        step=step,
        steps=job.record().steps,
        crtdl=job.crtdl,
        corrected=source.path.name in {step.directory for step in job.steps.values()},
        left=source.recorded.load() if source.recorded is not None else None,
        **more,
    )


def _shown(job: RunningJob, facts: JobFacts, there: Inventory) -> Shown:
    """Make the report in a Prefect task and publish it; return it for the record. Raises ``Stopped``."""
    meter = Meter()
    meter.set_status("reading the data")
    with job.watch.step(facts.step or len(job.step_names), NAME, meter):
        made = as_task(NAME, lambda: make_report(facts, there, stop=job.stop, read=lambda n: meter.add(bytes=n)))
    seen = Shown(files=there.digest, destination=destination(job.config))
    if isinstance(made, Summary):
        logger.info("release report: %s", made.page)
        _publish(job, made)
        page = made.page.relative_to(job.directory.path).as_posix()
        known = {"page": page, "stops": made.stops, "looks": made.looks}
        return seen.model_copy(update=known)
    if isinstance(made, Stopped):
        raise made
    error = made if isinstance(made, SluiceError) else internal_error(made)
    logger.error("the release report could not be made: %s", error.render())
    with best_effort("the release report in the Prefect UI"):
        job.short.publish(f"{REPORT}: could not be made", f"{literal(_line(error))}\n")
    return seen.model_copy(update={"failed": _line(error)})


def _refusal(job: RunningJob, source: Source, shown: Shown, lines: list[str]) -> GateError:
    """Return the error that ends a job before it sends data that nobody has released."""
    what = "could not be made" if shown.failed is not None else f"has stops ({shown.stops})"
    step = source.recorded
    again = f" ({continue_command(job.record(), '--from', str(step.position))})" if step is not None else ""
    return GateError(
        "report-missing" if shown.failed is not None else "report-stops",
        f"the release report {what}, and report.on_stop is fail: nothing was sent",
        context="\n  ".join([shown.failed or str(job.directory.path / str(shown.page)), *lines]),
        hint=f"correct the rules or the data, then run their step again{again}; or add a wait step before send, "
        "where a person decides",
    )  # fmt: skip


def _publish(job: RunningJob, summary: Summary) -> None:
    with best_effort("the release report in the Prefect UI"):
        job.short.publish(f"{REPORT}: {literal(summary.title)}", summary.markdown)


def _decided(decision: Decision) -> Decided:
    return Decided(**decision.model_dump(include=set(Decided.model_fields)))


def _line(error: SluiceError) -> str:
    """Return the reason why there is no report, on one line."""
    where = f" ({error.context.splitlines()[0]})" if error.context else ""
    return f"{error.message}{where}"
