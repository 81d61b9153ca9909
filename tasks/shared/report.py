"""What is known of a step and of its end: one model each, which the record keeps and every outlet shows.

``StepReport`` is declared once: a step returns it, its whole goes into the step's result file, its brief form into the
label ``job.step.<n>``, and its cells are the columns of the terminal's line, the tables and the page.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.shared.errors import SluiceError
from tasks.shared.units import human_bytes, human_rate, human_seconds

StepState = Literal["pending", "running", "waiting", "completed", "failed", "stopped"]

IN_THE_UI = "Prefect UI or API"
"""Who decided, in records of versions whose form did not ask for a name."""


class Kept(BaseModel):
    """Base of what is kept as JSON and read by other versions, too: a key that is not known is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", json_schema_serialization_defaults_required=True)


def _column(title: str, unit: str = "") -> Any:
    """A field that is a column wherever steps are shown."""
    return Field(None, title=title, json_schema_extra={"unit": unit})


class StepReport(Kept):
    """One step instance: what it counted, and what became of it. ``None`` where a count does not apply.

    ``output`` is the directory with the step's data files, relative to the job directory; ``None`` when the step
    produces no data and the next step reads what this one read. ``tables`` says that this data is CSV. ``inventory`` is
    the digest over the files in it as the step left them. A resource is what a service counts as one; a line may be a
    Bundle of many, and lines are what two steps can compare: ``lines_expected`` is how many the step before says it
    wrote. ``directory`` is a wait's place for corrected files. ``warnings`` quote no data, ``details`` are small facts
    of the step's own (names of written reports, counts by code); both are in the result file only.
    """

    position: int = 0
    name: str = ""
    state: StepState = "pending"
    files: int | None = _column("files")
    resources_in: int | None = _column("resources in")
    resources_out: int | None = _column("resources out")
    lines_in: int | None = None
    lines_out: int | None = None
    lines_expected: int | None = None
    bytes_in: int | None = _column("in", "bytes")
    bytes_out: int | None = _column("out", "bytes")
    seconds: float | None = _column("time", "seconds")
    requests: int | None = _column("requests")
    retries: int | None = _column("retries")
    p50: float | None = _column("p50", "milliseconds")
    p95: float | None = _column("p95", "milliseconds")
    output: str | None = None
    tables: bool = False
    inventory: str | None = None
    directory: str | None = None
    started: str | None = None
    warnings: tuple[str, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _as_kept(cls, kept: Any) -> Any:
        if isinstance(kept, dict) and isinstance(kept.get("statistics"), dict):
            kept = kept | kept["statistics"]  # an earlier version kept them apart
        if isinstance(kept, dict) and isinstance(kept.get("warnings"), list):
            kept = kept | {"warnings": tuple(kept["warnings"])}
        return kept

    def label(self) -> str:
        """The brief form for the record: without warnings and details, and without what is not known."""
        return self.model_dump_json(exclude={"warnings", "details"}, exclude_none=True)

    def result(self) -> dict[str, Any]:
        """The whole as a small JSON object, for the step's result file."""
        return self.model_dump(mode="json")

    def cells(self) -> dict[str, str]:
        """What a person sees, by the title of its column, in the order of the columns; empty where nothing is known."""
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
        moved = self.bytes_in if self.bytes_in is not None else self.bytes_out
        return human_rate(moved / self.seconds) if moved and self.seconds else ""

    def summary(self) -> str:
        """One line for a finished step (``4-product.md`` §5)."""
        cells = self.cells()
        parts = [f"{cells['files']} files" if cells["files"] else ""]
        if cells["resources in"] or cells["resources out"]:
            parts.append(f"{cells['resources in'] or '–'} → {cells['resources out'] or '–'} resources")
        if cells["in"] or cells["out"]:
            parts.append(f"{cells['in'] or '–'} → {cells['out'] or '–'}")
        parts += [cells["time"], cells["rate"]]
        if cells["requests"]:
            parts.append(
                f"{cells['requests']} requests, {cells['retries']} retries, p50 {cells['p50']}, p95 {cells['p95']}"
            )
        return ", ".join(part for part in parts if part)


_SHOWN: dict[str, Callable[[Any], str]] = {
    "": lambda value: f"{value:,}",
    "bytes": human_bytes,
    "seconds": lambda value: f"{value:.1f} s" if value < 60 else human_seconds(value),
    "milliseconds": lambda value: f"{value * 1000:.0f} ms",
}

COLUMNS = tuple(StepReport().cells())
"""Titles of all columns, in their order."""


class Corrections(StrEnum):
    """Which corrected files a ``wait`` can take: those of the kind it looks at, or none that would be sent."""

    NDJSON = "ndjson"
    TABLES = "tables"
    NOT_SENT = "not sent"


class Approval(Kept):
    """A person's decision at a ``wait``: kept with who, when and where, as ``pipeline status --json`` shows it.

    ``files`` is the digest of what it was made on. Records of earlier versions have ``who`` for ``by``, and do not say
    where, nor on what.
    """

    approved: bool
    files: str = ""
    by: str = ""
    when: str = ""
    comment: str = ""
    where: Literal["cli", "ui"] = "cli"

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, kept: Any) -> Any:
        if isinstance(kept, dict) and "who" in kept:
            kept = kept | {"by": kept["who"], "where": "ui" if kept["who"] == IN_THE_UI else "cli"}
        return kept

    def told(self, shown: Callable[[str], str]) -> str:
        """The decision in words; what a person wrote is put through ``shown``, the escaping of the outlet."""
        verb = "approved" if self.approved else "rejected"
        place = "in the Prefect UI or through its API" if self.where == "ui" else "on the command line"
        comment = f": {shown(self.comment)}" if self.comment else ""
        return f"{verb} by {shown(self.by) or 'a person'} {place} at {self.when}{comment}"


class Waiting(Kept):
    """Where a job waits and for what.

    ``reads`` is the directory that the next step read if it went on as it was parked, ``files`` what is there, a line
    each for a person. ``leaves`` is what will leave the house, unless corrections take its place; ``None`` when a step
    makes other data of it before. ``reader`` is who reads it, in words. ``corrections`` says which corrected files can
    be taken, ``again`` why an approval that was given does not count any more, a line each.
    """

    position: int
    step: str
    directory: str
    looked_at: str
    since: str
    reads: str | None = None
    files: tuple[str, ...] = ()
    leaves: str | None = None
    reader: str = "the next step"
    corrections: Corrections = Corrections.NDJSON
    again: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, kept: Any) -> Any:
        if isinstance(kept, dict) and kept.get("leaves") and "reader" not in kept:
            kept = kept | {"reader": "send"}
        return kept


class Problem(Kept):
    """An error that ended a run of a job; ``step`` is ``None`` when it was none of a step."""

    reference: str
    message: str
    context: str | None = None
    hint: str | None = None
    transient: bool = False
    exit_code: int = 1
    step: str | None = None

    @classmethod
    def of(cls, error: SluiceError, step: str | None = None) -> Problem:
        """The record of one error."""
        return cls(
            reference=error.reference,
            message=error.message,
            context=error.context,
            hint=error.hint,
            transient=error.transient,
            exit_code=error.exit_code,
            step=step,
        )
