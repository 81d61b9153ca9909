"""Collect the facts of a release report from a job, and the files that are measured."""

from __future__ import annotations

import pwd
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from config import PipelineConfig
from flows.job.inputs import JobInputs
from flows.job.job import RunningJob
from flows.job.steps import Sources
from tasks import declared
from tasks.release_report.measure.delivery import Delivery
from tasks.release_report.report.document import Decided
from tasks.release_report.report.facts import Corrected, ReportFacts, destination_of
from tasks.release_report.report.query import read_query
from tasks.release_report.report.rule_file import read_rules
from tasks.shared.files.data_directory import finished_files
from tasks.shared.files.inventory import Inventory, kept_at, load

_AHEAD: Final = timedelta(hours=14)
"""Offset of the most eastern clock from UTC; its date of today is not in the future."""


def facts_of(job: RunningJob, step: int | None, place: Path, there: Inventory) -> ReportFacts:
    """Return the facts of the report at ``step``, or at the end of the job, on the files ``there`` below ``place``.

    Raises:
        StorageError: something cannot be read.
    """
    rules, kept = rules_of(job.config)
    steps = [job.steps[position] for position in sorted(job.steps)]
    return ReportFacts(
        job=job.id,
        project=job.config.services.send.transfer.project_identifier or job.loaded.path.stem,
        made=datetime.now().astimezone().isoformat(timespec="seconds"),  # local: German pages have local times
        step=step,
        settings=job.config.report,
        destination=destination_of(job.config),
        query=read_query(job.crtdl) if job.crtdl else None,
        rules=read_rules(rules) if rules is not None else None,
        kept=kept,
        steps=steps,
        corrected=tuple(_corrected(job)),
        changed=_changed_since(job, place, there),
        decisions=tuple(Decided.of(one) for _, one in sorted(job.record().decisions.items())),
        asked_patients=_asked_patients(job.inputs),
        decides=Sources(job.step_names, job.config).asks_before_delivery(),
        sent=step is None and any(one.state == "completed" and declared(one.name).delivers for one in steps),
    )


def delivery_of(job: RunningJob, there: Inventory, *, read: Callable[[int], None]) -> Delivery:
    """Return the files measured for a report: those ``there``, and those of the import."""
    first = min(job.steps.values(), key=lambda step: step.position, default=None)
    folder = first.output if first is not None else None
    return Delivery(
        base=job.directory.path,
        leaving=[job.directory.path / entry.name for entry in there.entries],
        imported=list(finished_files(job.directory.path / folder)) if folder else [],
        k=job.config.report.k,
        region_prefix=job.config.report.region_prefix,
        longest=job.config.limits.max_line_mb << 20,
        today=(datetime.now(UTC) + _AHEAD).date(),
        stop=job.stop,
        read=read,
    )


def _changed_since(job: RunningJob, place: Path, there: Inventory) -> tuple[str, ...]:
    """Return the names of files that are missing or changed since their step wrote them; none for corrected files."""
    wrote = [step for step in job.steps.values() if step.output == place.name and step.inventory]
    digest = wrote[-1].inventory if wrote else None
    found = there.below(place.name)
    if digest is None or found.digest == digest:
        return ()
    before = load(kept_at(job.directory.path, wrote[-1].position), digest)
    if before is None:
        return (f"{place.name}/",)
    names = before.by_name | found.by_name
    return tuple(name for name in sorted(names) if before.by_name.get(name) != found.by_name.get(name))


def _corrected(job: RunningJob) -> Iterable[Corrected]:
    for folder in dict.fromkeys(step.directory for step in job.steps.values() if step.directory):
        for file in finished_files(job.directory.path / folder):
            found = file.stat()
            when = datetime.fromtimestamp(found.st_mtime, UTC).isoformat(timespec="seconds")
            yield Corrected(file.relative_to(job.directory.path).as_posix(), when, _user(found.st_uid))


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _asked_patients(inputs: JobInputs) -> int | None:
    """Return the number of patients in the list given to the job; ``None`` without a readable list."""
    if inputs.patients is None:
        return None
    try:
        with Path(inputs.patients).open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    except OSError:
        return None


def rules_of(config: PipelineConfig) -> tuple[Path | None, tuple[str, ...]]:
    """Return the file of pseudonymization rules and the kept identifiers, if a step uses them."""
    takes = any("anonymization_config" in declared(name).takes for name in config.pipeline.enabled_steps)
    service = config.services.pseudonymizer
    return (service.anonymization_config, tuple(service.kept_identifiers)) if takes else (None, ())
