"""An extraction job as its FHIR Task tells it (document 2, "Task resource mapping", "Progress extension on Task")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from tasks.shared.units import human_count


def parse_json(body: bytes) -> Any:
    """Parse a JSON body; return ``None`` if it is not JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def object_of(value: Any) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def int_of(value: Any) -> int | None:
    """Return the value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


STAGES = ("CONSENT_FETCH", "DIRECT_LOAD", "REFERENCE_RESOLVE", "CASCADING_DELETE", "COPY_REDACT")
"""The stages of a batch, in order."""

OTHER = "(other)"
"""What is counted under no name that is known: what a server calls by one of its own is not repeated."""

_SPELLINGS = {"CONSENT": "CONSENT_FETCH"}
"""How deployed servers spell a stage otherwise (document 3 §2)."""

CONSENT_AUDIT = "Consent audit NDJSON"
_PREFIXES = ("extractor-", "torch-")


class JobStatus(StrEnum):
    """The states of an extraction job (document 2)."""

    PENDING = "PENDING"
    RUNNING_GET_COHORT = "RUNNING_GET_COHORT"
    RUNNING_PROCESS_BATCH = "RUNNING_PROCESS_BATCH"
    RUNNING_PROCESS_CORE = "RUNNING_PROCESS_CORE"
    PAUSED = "PAUSED"
    TEMP_FAILED = "TEMP_FAILED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


DELETED = "DELETED"
"""What deployed servers say of a deleted job, beside a ``Task.status`` of ``cancelled``; none of document 2's."""

_KNOWN = frozenset({*JobStatus, DELETED})


class Priority(StrEnum):
    """The two priorities of a job."""

    HIGH = "high"
    NORMAL = "normal"

    @property
    def code(self) -> str:
        """As ``Task.priority`` writes it."""
        return "asap" if self is Priority.HIGH else "routine"

    @classmethod
    def of(cls, code: Any) -> Priority:
        """Return the priority for a ``Task.priority``."""
        return cls.HIGH if code in ("asap", "stat", "urgent") else cls.NORMAL


def stage_of(name: Any) -> str:
    """Return the stage with a name, in either spelling; ``OTHER`` if it is unknown."""
    stage = _SPELLINGS.get(name, name) if isinstance(name, str) else None
    return stage if stage in STAGES else OTHER


def cohort(patients: int) -> str:
    """Return the size of a cohort in words."""
    return f"cohort of {human_count(patients, 'patient')}" if patients else "empty cohort"


@dataclass(frozen=True)
class JobProgress:
    """The progress of a job. ``stages`` are those of the current batches, ``OTHER`` for an unknown one; ``None`` means
    not reported."""

    cohort_size: int | None = None
    batch_size: int | None = None
    batches_total: int | None = None
    batches_completed: int = 0
    stages: tuple[str, ...] = ()

    @property
    def fraction(self) -> float | None:
        """Return (batches completed + a fifth for each completed stage of an active one) / batches (document 3 §2)."""
        if not self.batches_total:
            return None
        active = sum(STAGES.index(stage) / len(STAGES) for stage in self.stages if stage in STAGES)
        return min(1.0, max(0.0, (self.batches_completed + active) / self.batches_total))

    def describe(self) -> str:
        """Return one line about the progress."""
        parts = []
        if self.batches_total:
            parts.append(f"{self.batches_completed}/{self.batches_total} batches")
        if self.cohort_size is not None:
            parts.append(cohort(self.cohort_size))
        shown = [stage for stage in STAGES if stage in self.stages]
        parts += [f"{self.stages.count(stage)} in {stage}" for stage in shown]
        if others := self.stages.count(OTHER):
            parts.append(f"{others} in another stage")
        return ", ".join(parts)


@dataclass(frozen=True)
class ExtractionTask:
    """The used part of a Task. ``version`` is ``meta.versionId``, for ``If-Match``.

    ``cancelled`` is whether somebody cancelled the job: ``Task.businessStatus`` decides, ``Task.status`` only where
    there is none (document 3 §2). ``issues`` are those of the job as the server wrote them; they may quote data.
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
        """The state of the job; where the server does not give it, that of the Task."""
        return self.status or self.task_status

    @property
    def seconds(self) -> float | None:
        """Seconds from start to end; ``None`` before the end, or if the server gives no times."""
        try:
            begin, end = (datetime.fromisoformat(moment or "") for moment in (self.started, self.ended))
            return max(0.0, (end - begin).total_seconds())
        except (ValueError, TypeError):
            return None

    def describe_progress(self) -> str:
        """Return one line about the progress, with its percentage; empty if the server reports none."""
        if self.progress is None:
            return ""
        share = self.progress.fraction
        return ", ".join(filter(None, (f"{share:.0%}" if share is not None else "", self.progress.describe())))

    def as_dict(self) -> dict[str, Any]:
        """Return a small JSON object, as printed by ``extraction list --json``."""
        progress = self.progress
        return {
            "id": self.id,
            "status": self.status or None,
            "task_status": self.task_status or None,
            "priority": str(self.priority),
            "version": self.version,
            "authored": self.authored,
            "started": self.started,
            "ended": self.ended,
            "progress": {"fraction": progress.fraction} | asdict(progress) if progress else None,
            "consent_files": len(self.consent_urls),
        }


def parse_task(resource: Any) -> ExtractionTask | None:
    """Return the Task in a parsed JSON document; ``None`` if it is none."""
    if not isinstance(resource, dict) or resource.get("resourceType") != "Task":
        return None
    task_id = _text(resource.get("id"))
    if task_id is None:
        return None
    meta, business, period = (object_of(resource.get(key)) for key in ("meta", "businessStatus", "executionPeriod"))
    codes = [code for coding in list_of(business.get("coding")) if (code := _text(object_of(coding).get("code")))]
    known = [code for code in codes if code in _KNOWN]
    task_status = _text(resource.get("status")) or ""
    version = meta.get("versionId")
    return ExtractionTask(
        id=task_id,
        status=known[0] if known else "",
        task_status=task_status,
        priority=Priority.of(resource.get("priority")),
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
    if not isinstance(bundle, dict) or bundle.get("resourceType") != "Bundle":
        return None
    found = (parse_task(object_of(entry).get("resource")) for entry in list_of(bundle.get("entry")))
    return [task for task in found if task is not None]


def extension_name(url: Any) -> str:
    """Return the name of an extension: the last path segment of its URL, in either spelling."""
    name = url.rstrip("/").rpartition("/")[2] if isinstance(url, str) else ""
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)


def _progress(resource: dict[str, Any]) -> JobProgress | None:
    for extension in list_of(resource.get("extension")):
        if isinstance(extension, dict) and extension_name(extension.get("url")) == "job-progress":
            break
    else:
        return None
    values: dict[str, int] = {}
    stages: list[str] = []
    for part in map(object_of, list_of(extension.get("extension"))):
        name = extension_name(part.get("url"))
        number = int_of(part.get("valueInteger"))
        if name == "activeBatch":
            inner = map(object_of, list_of(part.get("extension")))
            stages += [stage_of(one.get("valueString")) for one in inner if extension_name(one.get("url")) == "stage"]
        elif number is not None and 0 <= number < 1 << 31:  # what an integer may be in FHIR
            values[name] = number
    return JobProgress(
        cohort_size=values.get("cohortSize"),
        batch_size=values.get("batchSize"),
        batches_total=values.get("batchesTotal"),
        batches_completed=values.get("batchesCompleted", 0),
        stages=tuple(stages),
    )


def _consent_urls(resource: dict[str, Any]) -> Iterator[str]:
    for output in map(object_of, list_of(resource.get("output"))):
        url = output.get("valueUrl")
        if isinstance(url, str) and url and object_of(output.get("type")).get("text") == CONSENT_AUDIT:
            yield url


def _issues(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the issues of a Task: from an extension, the serialised job in one, or a contained OperationOutcome."""
    for extension in map(object_of, list_of(resource.get("extension"))):
        name, value = extension_name(extension.get("url")), extension.get("valueObject")
        listed = object_of(value).get("issues") if name == "job" else value if name == "job-issues" else None
        yield from map(object_of, list_of(listed))
    for contained in map(object_of, list_of(resource.get("contained"))):
        yield from map(object_of, list_of(contained.get("issue")))


def _text(value: Any) -> str | None:
    """Text that may be shown on a terminal."""
    return value if isinstance(value, str) and value and value.isprintable() else None
