"""Read an extraction job from its FHIR Task (docs/services.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tasks.shared.fhir.resource import list_of, object_of
from tasks.shared.units import human_count

PRIORITIES: Final = {"high": "asap", "normal": "routine"}
"""Priority of a job → code of ``Task.priority``."""

_STAGES: Final = ("CONSENT_FETCH", "DIRECT_LOAD", "REFERENCE_RESOLVE", "CASCADING_DELETE", "COPY_REDACT")
_CONSENT_AUDIT: Final = "Consent audit NDJSON"


@dataclass(frozen=True)
class ExtractionTask:
    """The used part of a Task; a text that the server does not give is empty.

    ``state`` is that of the job, or else ``task_status``. ``version`` is ``meta.versionId``, for ``If-Match``.
    ``progress`` is one line.
    """

    id: str
    state: str
    task_status: str
    priority: str
    version: str
    authored: str
    started: str
    ended: str
    progress: str
    consent_urls: tuple[str, ...]

    @property
    def cancelled(self) -> bool:
        """Return whether somebody cancelled the job. A deleted job has the Task status ``cancelled``, too."""
        return self.state.upper() == "CANCELLED"

    @property
    def seconds(self) -> float | None:
        """Return seconds from start to end; ``None`` before the end, or if the server gives no times."""
        try:
            begin, end = map(datetime.fromisoformat, (self.started, self.ended))
            return max(0.0, (end - begin).total_seconds())
        except (ValueError, TypeError):
            return None


def parse_task(resource: Any) -> ExtractionTask | None:
    """Return the Task in a parsed JSON document; ``None`` if it is none."""
    if object_of(resource).get("resourceType") != "Task" or not (task_id := _text(resource, "id")):
        return None
    meta, business, period = (object_of(resource.get(key)) for key in ("meta", "businessStatus", "executionPeriod"))
    codes = [code for coding in _objects(business, "coding") if (code := _text(coding, "code"))]
    task_status = _text(resource, "status")
    return ExtractionTask(
        id=task_id,
        state=codes[0] if codes else task_status,
        task_status=task_status,
        priority="high" if resource.get("priority") in ("asap", "stat", "urgent") else "normal",
        version=_text(meta, "versionId"),
        authored=_text(resource, "authoredOn"),
        started=_text(period, "start"),
        ended=_text(period, "end"),
        progress=_progress(resource),
        consent_urls=tuple(_consent_urls(resource)),
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
        name = str(extension.get("url")).rpartition("/")[2]
        yield name.removeprefix("extractor-").removeprefix("torch-"), extension


def _objects(node: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    return map(object_of, list_of(node.get(key)))


def _progress(resource: dict[str, Any]) -> str:
    parts = [part for name, one in extensions_of(resource) if name == "job-progress" for part in extensions_of(one)]
    numbers = {name: number for name, part in parts if type(number := part.get("valueInteger")) is int}
    batches = [extensions_of(part) for name, part in parts if name == "activeBatch"]
    stages = Counter(str(part.get("valueString")) for batch in batches for name, part in batch if name == "stage")
    told = []
    if total := numbers.get("batchesTotal"):
        completed = numbers.get("batchesCompleted", 0)
        told += [f"{completed / total:.0%}", f"{completed}/{total} batches"]
    if (size := numbers.get("cohortSize")) is not None:
        told.append(f"cohort of {human_count(size, 'patient')}")
    return ", ".join([*told, *(f"{stages[stage]} in {stage}" for stage in _STAGES if stages[stage])])


def _consent_urls(resource: dict[str, Any]) -> Iterator[str]:
    for output in _objects(resource, "output"):
        url = output.get("valueUrl")
        if isinstance(url, str) and url and object_of(output.get("type")).get("text") == _CONSENT_AUDIT:
            yield url


def _text(node: dict[str, Any], key: str) -> str:
    """Return a text that may be shown on a terminal; empty if there is none."""
    value = node.get(key)
    return value if isinstance(value, str) and value.isprintable() else ""
