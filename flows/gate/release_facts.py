"""Collect the facts of a release report from a job, and the files that are measured.

``jobs_dir/.released/`` remembers releases in small files with the id of a job: the last one of a query's data to a
destination, and the hosts to which this installation has sent before. A missing or damaged file counts as no release.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import pwd
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from flows.gate.rules import rules_of
from flows.job.inputs import JobInputs
from flows.job.job import RunningJob
from flows.job.steps import Sources
from tasks import declared
from tasks.release_report.measure.delivery import Delivery
from tasks.release_report.page import files
from tasks.release_report.report.document import Decided, ReleaseReport
from tasks.release_report.report.facts import Corrected, Destination, ReportFacts, destination_of
from tasks.release_report.report.query import read_query
from tasks.release_report.report.step_files import read_rules
from tasks.shared.errors import SluiceError
from tasks.shared.files.data_directory import finished_files
from tasks.shared.files.inventory import Inventory, kept_at, load
from tasks.shared.files.out_file import write_file

RELEASED: Final = ".released"
"""The directory, below ``jobs_dir``."""

_AHEAD: Final = timedelta(hours=14)
"""Offset of the most eastern clock from UTC; its date of today is not in the future."""


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Sluice, Python and Prefect in this process."""
    return {"sluice": version("sluice"), "python": platform.python_version(), "prefect": version("prefect")}


def facts_of(job: RunningJob, step: int | None, place: Path, there: Inventory) -> ReportFacts:
    """Return the facts of the report at ``step``, or at the end of the job, on the files ``there`` below ``place``.

    Raises:
        StorageError: something cannot be read.
    """
    rules, kept = rules_of(job.config)
    steps = [job.steps[position] for position in sorted(job.steps)]
    given = Path(job.inputs.crtdl) if job.inputs.crtdl else None
    where = destination_of(job.config)
    if where is not None:
        where = replace(where, first_time=not _is_known_host(job, _host(where)))
    return ReportFacts(
        job=job.id,
        project=job.config.services.send.transfer.project_identifier or job.loaded.path.stem,
        made=datetime.now().astimezone().isoformat(timespec="seconds"),  # local: German pages have local times
        step=step,
        settings=job.config.report,
        destination=where,
        query=read_query(job.crtdl, given if given is not None and given.is_file() else None) if job.crtdl else None,
        rules=read_rules(rules) if rules is not None else None,
        kept=kept,
        steps=steps,
        corrected=tuple(_corrected(job)),
        changed=_changed_since(job, place, there),
        decisions=tuple(Decided.of(one) for _, one in job.record().decisions),
        last=last_released(job),
        last_copy=last_released(job, recipient=True),
        asked_patients=_asked_patients(job.inputs),
        decides=Sources(job.step_names, job.config).asks_before_delivery(),
        sent=step is None and any(one.state == "completed" and declared(one.name).delivers for one in steps),
        versions=versions(),
    )


def delivery_of(job: RunningJob, place: Path, there: Inventory, *, read: Callable[[int], None]) -> Delivery:
    """Return the files measured for a report: those ``there`` below ``place``, and those of the import."""
    first = min(job.steps.values(), key=lambda step: step.position, default=None)
    folder = first.output if first is not None else None
    return Delivery(
        base=job.directory.path,
        leaving=[job.directory.path / entry.name for entry in there.entries],
        imported=list(finished_files(job.directory.path / folder)) if folder else [],
        k=job.config.report.k,
        region_prefix=job.config.report.region_prefix,
        largest=job.config.limits.largest_resource,
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


# --- earlier releases -----------------------------------------------------------------------------------------


def record_release(job: RunningJob) -> None:
    """Remember that the data of this job were sent. A file that cannot be written counts as no release."""
    where = destination_of(job.config)
    if where is None:
        return
    for key in (_host(where), _same(job, where)):
        if key is not None:
            path = _pointer(job, key)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_file(path, job.id.encode() + b"\n")


def last_released(job: RunningJob, *, recipient: bool = False) -> ReleaseReport | None:
    """Return the report of the last job that released data of this query there, or its recipient's copy."""
    where = destination_of(job.config)
    key = _same(job, where) if where is not None else None
    if key is None:
        return None
    try:
        before = _pointer(job, key).read_text(encoding="ascii").strip()
        if not before or "/" in before or before == job.id:
            return None
        return files.read(job.directory.path.parent / before, None, recipient=recipient)
    except (OSError, ValueError, SluiceError):
        return None


def _is_known_host(job: RunningJob, key: str) -> bool:
    return _pointer(job, key).is_file()


def _pointer(job: RunningJob, key: str) -> Path:
    return job.directory.path.parent / RELEASED / hashlib.sha256(key.encode()).hexdigest()[:32]


def _host(where: Destination) -> str:
    return f"host {where.host or where.bucket}"


def _same(job: RunningJob, where: Destination) -> str | None:
    """Return a key of the query and destination of a job; ``None`` for a job without a query."""
    if job.crtdl is None:
        return None
    try:
        query = hashlib.sha256(job.crtdl.read_bytes()).hexdigest()
    except OSError:
        return None
    known: dict[str, Any] = asdict(where)
    place = [str(known[name]) for name in ("mode", "host", "path", "bucket", "project", "organization")]
    return "\n".join(["query", query, *place])
