"""The report of a step, stored in the job's record and shown in every output.

A step returns a ``StepReport``. The label ``job.step.<n>`` stores it. Its cells are the columns of the terminal's line,
the tables and the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.shared.units import human_bytes, human_count, human_duration, human_rate

LONGEST_LABEL = 8_000
"""Most characters of a report in its label."""

StepState = Literal["pending", "running", "waiting", "completed", "failed", "stopped"]


class StoredModel(BaseModel):
    """Base of models that are stored as JSON. Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", json_schema_serialization_defaults_required=True)


def _column(title: str, unit: str = "") -> Any:
    """Return a field that is a column wherever steps are shown."""
    return Field(None, title=title, json_schema_extra={"unit": unit})


class StepReport(StoredModel):
    """The counts and the state of one step instance. A count that does not apply is ``None``.

    ``output`` is the directory with the step's data, below the job directory; ``tables``: these data are CSV;
    ``inventory`` is the digest of the files. The next step compares ``lines_out`` with what it reads. ``bytes_in`` and
    ``bytes_out`` are stored or transferred bytes; ``content`` is the uncompressed bytes that this run processed in
    ``seconds``. ``identifying`` has, by path, the number of lines with identifying values that came back,
    ``kept_identifiers`` those that are kept on purpose. ``findings`` is the number of errors of a validation.
    ``directory`` is a wait's directory for corrected files. ``warnings`` quote no data.
    """

    position: int = 0
    name: str = ""
    state: StepState = "pending"
    files: int | None = _column("files")
    resources_in: int | None = _column("resources in")
    resources_out: int | None = _column("resources out")
    lines_in: int | None = None
    lines_out: int | None = None
    bytes_in: int | None = _column("in", "bytes")
    bytes_out: int | None = _column("out", "bytes")
    content: int | None = None
    seconds: float | None = _column("time", "seconds")
    requests: int | None = _column("requests")
    retries: int | None = _column("retries")
    p50: float | None = _column("p50", "seconds")
    p95: float | None = _column("p95", "seconds")
    output: str | None = None
    tables: bool = False
    identifying: dict[str, str] | None = None
    kept_identifiers: dict[str, str] | None = None
    findings: int | None = None
    inventory: str | None = None
    directory: str | None = None
    started: str | None = None
    warnings: tuple[str, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)

    def label(self) -> str:
        """Return the report as JSON text for its label, without fields that are ``None``.

        Lists and tables are cut until the text has at most ``LONGEST_LABEL`` characters; the other entries are only
        counted. Counts by file are in the done records.
        """
        report = self.model_dump(mode="json", exclude_none=True)
        entries = 200
        while len(text := json.dumps({name: _cut(value, entries) for name, value in report.items()})) > LONGEST_LABEL:
            if entries == 1:
                break
            entries //= 2
        return text

    def cells(self) -> dict[str, str]:
        """Return column title → cell, in the order of the columns; the cell of an unknown value is empty."""
        shown = {"#": str(self.position), "step": self.name, "state": self.state}
        for name, field in type(self).model_fields.items():
            if field.title is None:
                continue
            unit = field.json_schema_extra["unit"] if isinstance(field.json_schema_extra, dict) else ""
            value = getattr(self, name)
            shown[field.title] = "" if value is None else _SHOWN[str(unit)](value)
            if name == "seconds":
                shown["rate"] = self._rate()
        return shown

    def _rate(self) -> str:
        return human_rate(self.content / self.seconds) if self.content and self.seconds else ""

    def summary(self) -> str:
        """Return one line for a finished step."""
        cells = self.cells()
        parts = [human_count(self.files, "file") if self.files is not None else ""]
        if cells["resources in"] or cells["resources out"]:
            parts.append(f"{_arrow(cells['resources in'], cells['resources out'])} resources")
        if cells["in"] or cells["out"]:
            parts.append(_arrow(cells["in"], cells["out"]))
        parts += [cells["time"], cells["rate"]]
        if cells["requests"]:
            sent = human_count(self.requests or 0, "request"), human_count(self.retries or 0, "retry", "retries")
            parts.append(f"{', '.join(sent)}, p50 {cells['p50']}, p95 {cells['p95']}")
        if self.findings is not None:
            parts.append(human_count(self.findings, "finding") if self.findings else "no findings")
        parts += [_first("still identifying", self.identifying), _first("kept", self.kept_identifiers)]
        return ", ".join(part for part in parts if part)


def _arrow(before: str, after: str) -> str:
    return " → ".join(part for part in (before, after) if part)


def _cut(value: Any, entries: int) -> Any:
    """Return a value with at most ``entries`` entries in each list and table, and at most 500 characters in a text."""
    if isinstance(value, str):
        return value if len(value) <= 500 else f"{value[:500]}…"
    if isinstance(value, list):
        kept = [_cut(one, entries) for one in value[:entries]]
        return [*kept, f"and {len(value) - entries:,} more"] if len(value) > entries else kept
    if isinstance(value, dict):
        kept_items = {name: _cut(one, entries) for name, one in [*value.items()][:entries]}
        others = [*value.values()][entries:]
        numbers = all(isinstance(one, int) for one in others)
        return kept_items | ({"…": sum(others) if numbers else f"and {len(others):,} more"} if others else {})
    return value


def _first(what: str, paths: dict[str, str] | None) -> str:
    """Return the first path and the number of others; empty without any."""
    if not paths:
        return ""
    first, *others = paths
    return f"{what}: {first}" + (f" and more ({len(others)})" if others else "")


_SHOWN: dict[str, Callable[[Any], str]] = {
    "": lambda value: f"{value:,}",
    "bytes": human_bytes,
    "seconds": human_duration,
}
