"""The release report as a document: ``release-report.json``, the one source of the page and the artifact.

It has names of texts, which ``words.py`` translates, and numbers as they are printed. Its JSON Schema is
``docs/schemas/release-report.schema.json``; ``python -m tasks.release_report.document`` writes it.
"""

from __future__ import annotations

import json
import sys
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.release_report.numbers import Count

Level = Literal["stop", "look", "note"]
LEVELS: Final[tuple[Level, ...]] = ("stop", "look", "note")

Outcome = Literal["waits", "unasked", "sent", "sent-undecided"]

Value = Count | str | int | None
"""Value of a cell. A ``str`` is a text that is shown as it is, or the name of a text (``@name``)."""


class ReportPart(BaseModel):
    """Base of all parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReportFinding(ReportPart):
    """A reason to stop, a point to look at, or a note: what it is about (a path, a file, a host), its kind, how
    many patients or lines it affects, and the section with details."""

    level: Level
    code: str
    section: int = Field(ge=2, le=9)
    about: str = ""
    kind: str = ""
    affects: Count | None = None
    values: dict[str, Value] = Field(default_factory=dict)


class Table(ReportPart):
    """Rows below named columns."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...] = ()


class ReportSection(ReportPart):
    """One of the sections 3 to 9: names of sentences, facts (value by name) and tables."""

    number: int = Field(ge=3, le=9)
    name: str
    sentences: tuple[str, ...] = ()
    facts: dict[str, Value] = Field(default_factory=dict)
    tables: tuple[Table, ...] = ()


class Tiles(ReportPart):
    """The first screen: exact totals, the destination, and the terms (``None``: not given)."""

    patients: int
    files: int
    bytes: int
    resources: int
    tables: bool
    destination: str | None
    encrypted: bool | None
    terms: dict[str, str | None]


class Decided(ReportPart):
    """A person's decision, as the record has it."""

    approved: bool
    by: str
    where: Literal["command", "ui"]
    when: str
    comment: str = ""


class ReleaseReport(ReportPart):
    """A release report.

    ``step`` is the position of the wait or of the step that sends, ``None`` at the end of the job. ``inside``: a
    further step processes the data before they are sent, so identifying values are no reason to stop. ``outcome``: a
    person is asked (``waits``) or not (``unasked``), or the data have left, with or without a decision; ``sent`` is
    when that began. ``files`` and ``settings`` are digests of what the report depends on; ``checksum`` is the SHA-256
    that a person can check.
    """

    version: Literal[1] = 1
    job: str
    project: str
    step: int | None
    made: str
    inside: bool = False
    language: Literal["en", "de"]
    k: int
    tiles: Tiles
    findings: tuple[ReportFinding, ...]
    sections: tuple[ReportSection, ...]
    decisions: tuple[Decided, ...] = ()
    outcome: Outcome = "waits"
    sent: str | None = None
    files: str
    settings: str
    checksum: str

    def number_of(self, level: Level) -> int:
        """Return how many findings have a level."""
        return sum(one.level == level for one in self.findings)

    @property
    def level(self) -> Level:
        """Return the level of the most severe finding; ``note`` when nothing speaks against a release."""
        return next((level for level in LEVELS if self.number_of(level)), "note")

    @property
    def answer(self) -> str:
        """Return the name of the verdict, by decision or outcome, else by the findings."""
        stops = self.number_of("stop")
        if self.outcome == "sent-undecided":
            return "sent_despite" if stops else "sent"
        if not self.decisions:
            return self.level
        if not self.decisions[-1].approved:
            return "rejected"
        return "despite" if stops else "released"

    @property
    def because(self) -> str:
        """Return the name of the sentence below the verdict."""
        return "unasked" if self.outcome == "unasked" and not self.decisions else self.answer


def schema() -> str:
    """Return the JSON Schema (2020-12) of the document as it is written, with every key."""
    found = ReleaseReport.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
    for model in (found, *found["$defs"].values()):
        model.pop("title", None)
        model["required"] = list(model["properties"])
        for value in model["properties"].values():
            value.pop("title", None)
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(dialect | found | {"title": "A job's release-report.json"}, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema())
