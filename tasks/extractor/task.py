"""Read an extraction job from its FHIR Task (docs/services.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from tasks.shared.fhir.resource import list_of, object_of
from tasks.shared.units import human_count

_STAGES: Final = ("CONSENT_FETCH", "DIRECT_LOAD", "REFERENCE_RESOLVE", "CASCADING_DELETE", "COPY_REDACT")
_CONSENT_AUDIT: Final = "Consent audit NDJSON"
_PREFIXES: Final = ("extractor-", "torch-")
_DELETED: Final = "DELETED"
"""The state that deployed servers give a deleted job, besides the documented ones; ``Task.status`` is ``cancelled``."""


class JobStatus(StrEnum):
    """The states of an extraction job."""

    PENDING = "PENDING"
    RUNNING_GET_COHORT = "RUNNING_GET_COHORT"
    RUNNING_PROCESS_BATCH = "RUNNING_PROCESS_BATCH"
    RUNNING_PROCESS_CORE = "RUNNING_PROCESS_CORE"
    PAUSED = "PAUSED"
    TEMP_FAILED = "TEMP_FAILED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Priority(StrEnum):
    """The two priorities of a job."""

    HIGH = "high"
    NORMAL = "normal"

    @property
    def code(self) -> str:
        """Return the code of ``Task.priority``."""
        return "asap" if self is Priority.HIGH else "routine"


@dataclass(frozen=True)
class JobProgress:
    """The progress of a job; ``stages`` are those of the current batches, ``None`` means not reported."""

    cohort_size: int | None = None
    batches_total: int | None = None
    batches_completed: int = 0
    stages: tuple[str, ...] = ()

    @property
    def fraction(self) -> float | None:
        """Return the completed share of the batches."""
        return min(1.0, self.batches_completed / self.batches_total) if self.batches_total else None

    def describe(self) -> str:
        """Return one line about the progress."""
        parts = [f"{self.fraction:.0%}"] if self.fraction is not None else []
        if self.batches_total:
            parts.append(f"{self.batches_completed}/{self.batches_total} batches")
        if self.cohort_size is not None:
            parts.append(f"cohort of {human_count(self.cohort_size, 'patient')}")
        counts = Counter(self.stages)
        return ", ".join([*parts, *(f"{counts[stage]} in {stage}" for stage in _STAGES if counts[stage])])


@dataclass(frozen=True)
class ExtractionTask:
    """The used part of a Task. ``version`` is ``meta.versionId``, for ``If-Match``.

    ``cancelled``: somebody cancelled the job, by ``Task.businessStatus``, or else by ``Task.status``.
    ``issues`` are unchanged and may quote data.
    """

    id: str
    status: str
    task_status: str
    priority: Priority
    version: str | None = None
    authored: str | None = None
    started: str | None = None
    ended: str | None = None
    intent: str = "order"
    progress: JobProgress | None = None
    consent_urls: tuple[str, ...] = ()
    cancelled: bool = False
    issues: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    @property
    def state(self) -> str:
        """Return the state of the job, or that of the Task if the server does not give one."""
        return self.status or self.task_status

    @property
    def seconds(self) -> float | None:
        """Return seconds from start to end; ``None`` before the end, or if the server gives no times."""
        try:
            begin, end = (datetime.fromisoformat(moment or "") for moment in (self.started, self.ended))
            return max(0.0, (end - begin).total_seconds())
        except (ValueError, TypeError):
            return None

    def describe_progress(self) -> str:
        """Return one line about the progress; empty if the server reports none."""
        return self.progress.describe() if self.progress is not None else ""


def parse_task(resource: Any) -> ExtractionTask | None:
    """Return the Task in a parsed JSON document; ``None`` if it is none."""
    if object_of(resource).get("resourceType") != "Task" or (task_id := _text(resource.get("id"))) is None:
        return None
    meta, business, period = (object_of(resource.get(key)) for key in ("meta", "businessStatus", "executionPeriod"))
    codes = [code for coding in _objects(business, "coding") if (code := _text(coding.get("code")))]
    task_status = _text(resource.get("status")) or ""
    version = meta.get("versionId")
    return ExtractionTask(
        id=task_id,
        status=next((code for code in codes if code in {*JobStatus, _DELETED}), ""),
        task_status=task_status,
        priority=Priority.HIGH if resource.get("priority") in ("asap", "stat", "urgent") else Priority.NORMAL,
        version=str(version) if isinstance(version, str | int) else None,
        authored=_text(resource.get("authoredOn")),
        started=_text(period.get("start")),
        ended=_text(period.get("end")),
        intent=_text(resource.get("intent")) or "order",
        progress=_progress(resource),
        consent_urls=tuple(_consent_urls(resource)),
        cancelled=(JobStatus.CANCELLED in codes) if codes else task_status == "cancelled",
        issues=tuple(_issues(resource)),
    )


def parse_tasks(bundle: Any) -> list[ExtractionTask] | None:
    """Return the Tasks of a searchset, in the server's order; ``None`` if it is not a Bundle."""
    if object_of(bundle).get("resourceType") != "Bundle":
        return None
    found = (parse_task(entry.get("resource")) for entry in _objects(bundle, "entry"))
    return [task for task in found if task is not None]


def extensions_of(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each extension with its name: the last path segment of its URL, without a server's prefix."""
    for extension in _objects(node, "extension"):
        name = str(extension.get("url")).rstrip("/").rpartition("/")[2]
        yield next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name), extension


def _objects(node: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    return map(object_of, list_of(node.get(key)))


def _progress(resource: dict[str, Any]) -> JobProgress | None:
    found = next((extension for name, extension in extensions_of(resource) if name == "job-progress"), None)
    if found is None:
        return None
    parts = [*extensions_of(found)]
    numbers = {name: number for name, part in parts if type(number := part.get("valueInteger")) is int}
    active = [extensions_of(part) for name, part in parts if name == "activeBatch"]
    return JobProgress(
        cohort_size=numbers.get("cohortSize"),
        batches_total=numbers.get("batchesTotal"),
        batches_completed=numbers.get("batchesCompleted", 0),
        stages=tuple(str(part.get("valueString")) for batch in active for name, part in batch if name == "stage"),
    )


def _consent_urls(resource: dict[str, Any]) -> Iterator[str]:
    for output in _objects(resource, "output"):
        url = output.get("valueUrl")
        if isinstance(url, str) and url and object_of(output.get("type")).get("text") == _CONSENT_AUDIT:
            yield url


def _issues(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the issues of a Task: from an extension, or a contained OperationOutcome."""
    for name, extension in extensions_of(resource):
        if name == "job-issues":
            yield from _objects(extension, "valueObject")
    for contained in _objects(resource, "contained"):
        yield from _objects(contained, "issue")


def _text(value: Any) -> str | None:
    """Return text that may be shown on a terminal."""
    return value if isinstance(value, str) and value and value.isprintable() else None
