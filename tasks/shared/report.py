"""Models of a step and of its end, stored in the record and shown in every output.

``StepReport`` is declared once: a step returns it, its whole goes into the step's result file, its brief form into the
label ``job.step.<n>``, and its cells are the columns of the terminal's line, the tables and the page.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from tasks.shared.errors import SluiceError
from tasks.shared.units import human_bytes, human_count, human_duration, human_rate

StepState = Literal["pending", "running", "waiting", "completed", "failed", "stopped"]

REPORT_MISSING = "report-missing"
"""The one open stop where there is no release report."""

MORE_STOPS = "more-stops"
"""The open stop for all those that the record does not name."""

ON_DEMAND = "the job has no send or wait step, so no release report was made"

FINDINGS_TABLE = "summary.csv"
"""The list of findings that a validation leaves in its directory, and that the release report counts."""

MOST_SAID = 10
"""How many overridden stops are said in one sentence."""


class StoredModel(BaseModel):
    """Base of what is kept as JSON. A key that is not known is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", json_schema_serialization_defaults_required=True)


def _column(title: str, unit: str = "") -> Any:
    """Return a field that is a column wherever steps are shown."""
    return Field(None, title=title, json_schema_extra={"unit": unit})


class StepReport(StoredModel):
    """One step instance: what it counted, and what became of it. ``None`` where a count does not apply.

    ``output`` is the directory with the step's data files, relative to the job directory; ``None`` when the step
    produces no data and the next step reads what this one read. ``tables`` says that this data is CSV. ``inventory`` is
    the digest over the files in it as the step left them. A resource is what a service counts as one; a line may be a
    Bundle of many, and lines are what two steps can compare: ``lines_expected`` is how many the step before says it
    wrote. Bytes are those of files as they are stored, compressed or not, so what one step wrote the next one read; or
    those that came over a network or went out. ``content`` are the bytes of content, uncompressed, that this run of the
    step did in ``seconds``. ``identifying`` says by path in how many lines something identifying is still there,
    ``kept_identifiers`` what is meant to be; ``left_out`` by reason how many a service did not give. ``findings`` is
    how many errors a validation found in the data. ``directory`` is a wait's place for corrected files.
    ``warnings`` quote no data, ``details`` are small facts of the step's own (names of written reports, counts by
    code); both are in the result file only.
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
    left_out: dict[str, int] | None = None
    findings: int | None = None
    inventory: str | None = None
    directory: str | None = None
    started: str | None = None
    warnings: tuple[str, ...] = ()
    details: dict[str, Any] = Field(default_factory=dict)

    def label(self) -> str:
        """Return the brief form for the record: without warnings and details, and without what is not known."""
        return self.model_dump_json(exclude={"warnings", "details"}, exclude_none=True)

    def result(self) -> dict[str, Any]:
        """Return the report as a small JSON object, for the step's result file."""
        return self.model_dump(mode="json")

    def cells(self) -> dict[str, str]:
        """Return the cells by the title of their column, in the order of the columns; empty if unknown."""
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
        """Return one line for a finished step (``4-product.md`` §5)."""
        cells = self.cells()
        parts = [human_count(self.files, "file") if self.files is not None else ""]
        if cells["resources in"] or cells["resources out"]:
            parts.append(f"{cells['resources in'] or '–'} → {cells['resources out'] or '–'} resources")
        if cells["in"] or cells["out"]:
            parts.append(f"{cells['in'] or '–'} → {cells['out'] or '–'}")
        parts += [cells["time"], cells["rate"]]
        if cells["requests"]:
            sent = human_count(self.requests or 0, "request"), human_count(self.retries or 0, "retry", "retries")
            parts.append(f"{', '.join(sent)}, p50 {cells['p50']}, p95 {cells['p95']}")
        if self.findings is not None:
            parts.append(human_count(self.findings, "finding") if self.findings else "no findings")
        if self.left_out:
            parts.append("left out: " + ", ".join(f"{what} {number:,}" for what, number in self.left_out.items()))
        parts += [_first("still identifying", self.identifying), _first("kept", self.kept_identifiers)]
        return ", ".join(part for part in parts if part)


def _first(what: str, paths: dict[str, str] | None) -> str:
    """Return the first path, and how many follow: all of them are in the warnings and on the job's page."""
    if not paths:
        return ""
    first, *others = paths
    return f"{what}: {first}" + (f" and more ({len(others)})" if others else "")


_SHOWN: dict[str, Callable[[Any], str]] = {
    "": lambda value: f"{value:,}",
    "bytes": human_bytes,
    "seconds": human_duration,
}

COLUMNS = tuple(StepReport().cells())
"""Titles of all columns, in their order."""


class Corrections(StrEnum):
    """Kind of corrected files that a ``wait`` accepts: that of its input, or none that would be sent."""

    NDJSON = "ndjson"
    TABLES = "tables"
    NOT_SENT = "not sent"


class Approval(StoredModel):
    """A person's decision at a ``wait``: kept with who, when and where, as ``pipeline status --json`` shows it.

    ``files`` is the digest of what it was made on, ``report`` the SHA-256 of the release report. ``overridden`` are
    the stops that were open, by their keys, and ``despite`` the reason for which she released nevertheless. ``login``
    is the user of the machine, where known. ``accepted`` and ``refused`` are a reviewer's answers to findings: the
    reason for each by the key of the finding; ``questions`` were asked before.
    """

    approved: bool
    files: str = ""
    report: str = ""
    by: str = ""
    login: str = ""
    when: str = ""
    comment: str = ""
    despite: str = ""
    overridden: tuple[str, ...] = ()
    where: Literal["cli", "ui"] = "cli"
    accepted: dict[str, str] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    questions: tuple[str, ...] = ()

    def describe_decision(self, shown: Callable[[str], str]) -> str:
        """Return the decision in words; text of a person is escaped by ``shown``."""
        verb = "approved" if self.approved else "rejected"
        place = "in the Prefect UI or through its API" if self.where == "ui" else "on the command line"
        comment = f": {shown(self.comment)}" if self.comment else ""
        first, rest = self.overridden[:MOST_SAID], len(self.overridden[MOST_SAID:])
        stops = ", ".join([*map(shown, first), *([f"{rest} more"] if rest else [])])
        despite = f"; despite {stops}: {shown(self.despite)}" if stops and self.despite else ""
        answers = [f"; accepted {shown(key)}: {shown(why)}" for key, why in self.accepted.items()]
        answers += [f"; not acceptable {shown(key)}: {shown(why)}" for key, why in self.refused.items()]
        return f"{verb} by {shown(self.by) or 'a person'} {place} at {self.when}{comment}{despite}{''.join(answers)}"

    @property
    def unexplained(self) -> tuple[str, ...]:
        """Return the overridden stops for which no reason is given, neither for each nor for all of them."""
        return () if visible_text(self.despite) else tuple(key for key in self.overridden if key not in self.accepted)

    def same_person(self, other: Approval) -> bool:
        """Return whether both names are the same person's: protects against haste, not against fraud."""
        return _as_name(self.by) == _as_name(other.by)


LONGEST_TEXT: Final = 2_000
"""Characters of a comment, a reason, an answer to a finding, or a question."""

_BLANK: Final = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols that look like a space."""


def visible_text(text: str) -> str:
    """Return the text without spaces around it; empty if it consists of spaces, format and zero-width characters."""
    seen = any(unicodedata.category(sign)[0] in "LNPS" and sign not in _BLANK for sign in text)
    return text.strip() if seen else ""


def _as_name(by: str) -> str:
    """Return a name without invisible differences: case, composition, width of gaps, zero-width characters."""
    seen = "".join(sign for sign in unicodedata.normalize("NFKC", by) if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(seen.split()).casefold())


class Shown(StoredModel):
    """The release report as a person has it before her where she decides, or where data leave without a person.

    ``sha256`` is that of the report, ``seen`` the digest of the files that it covers, ``settings`` that of what else
    it rests on: where the data go, and how the report is configured. ``page`` is its path below the job's directory,
    ``copied`` where a copy of it lies and ``link`` its address, or its path in the Prefect UI. ``lines`` say it in
    short, for a terminal and the form. ``stops`` are the keys of what should not
    leave, ``looks`` those of what a person must judge. ``more_stops`` is the number of stops that only the report
    names: they cannot be accepted one by one. ``missing`` says why there is no report. ``inside`` says that a step of
    the hospital reads the data next, so a release here sends nothing and needs no reason. ``on_demand`` says that no
    report was made, because the job has no send or wait step.
    """

    sha256: str = ""
    seen: str = ""
    settings: str = ""
    page: str | None = None
    copied: str | None = None
    link: str | None = None
    lines: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    more_stops: int = 0
    missing: str | None = None
    inside: bool = False
    on_demand: bool = False

    @property
    def open(self) -> tuple[str, ...]:
        """Return the stops that need a reason for a release."""
        if self.inside:
            return ()
        if self.missing is not None:
            return (REPORT_MISSING,)
        return (*self.stops, f"{MORE_STOPS} ({self.more_stops})") if self.more_stops else self.stops

    @property
    def in_ui(self) -> bool:
        """Return whether ``link`` is a path in the Prefect UI, which is of use there and nowhere else."""
        return self.link is not None and self.link.startswith("/")

    @property
    def stop_lines(self) -> tuple[str, ...]:
        """Return the sentences about stops, which come first after the two summary lines."""
        return tuple(line.strip() for line in self.lines[2 : 2 + len(self.stops)])


class Waiting(StoredModel):
    """A job that waits: its place and the reason.

    ``reads`` is the directory that the next step read if it went on as it was parked, ``files`` what is there.
    ``leaves`` is what will be sent, unless corrections take its place; ``None`` when a step makes other data of it
    before. ``reader`` is who reads it, in words. ``corrections`` says which corrected files can be taken, ``again`` why
    an approval that was given does not count any more, ``refused`` why an answer was not taken, a line each, and
    ``questions`` what reviewers asked the project. ``first`` is the first of two decisions, and ``report`` what the
    release report says: both have labels of their own.
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
    refused: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    first: SkipJsonSchema[Approval | None] = Field(None, exclude=True)
    report: SkipJsonSchema[Shown | None] = Field(None, exclude=True)


class Problem(StoredModel):
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
        """Return the record of one error."""
        return cls(
            reference=error.reference,
            message=error.message,
            context=error.context,
            hint=error.hint,
            transient=error.transient,
            exit_code=error.exit_code,
            step=step,
        )

    def render(self) -> str:
        """Return the text shown to a person."""
        return SluiceError(self.reference, self.message, context=self.context, hint=self.hint).render()
