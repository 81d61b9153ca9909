"""The release report as a document: what is published, and nothing else (document 5).

Every number of patients but their total is a ``Count`` (``numbers.py``). It holds no words of a language but those of
the query, the configuration and a person: a finding, a column, a fact is a name, which the page words (``words/``).
``release-report.json`` is this document, and the page shows nothing that is not in it.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.release_report.report.numbers import Count

Level = Literal["stop", "look", "note"]
LEVELS: Final[tuple[Level, ...]] = ("stop", "look", "note")
"""Of findings, what weighs most first."""

Value = Count | str | int | float | bool | None
"""What stands in a cell. A ``str`` is a text that may be shown as it is, or the name of a word of the page's
(``@name``)."""


class ReportPart(BaseModel):
    """Base of all parts: nothing unknown, nothing changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReportFinding(ReportPart):
    """One line of section 1.

    ``code`` names the sentence, ``about`` what it is about (a path, a file, a host), ``section`` where the details
    stand.
    """

    level: Level
    code: str
    section: int = Field(ge=0, le=10)
    about: str = ""
    patients: Count | None = None
    values: dict[str, Value] = Field(default_factory=dict)


class Fact(ReportPart):
    """A value under a name."""

    name: str
    value: Value


class Table(ReportPart):
    """Rows below columns, each named; ``withheld`` says that there were more, of fewer than k patients. ``folded`` is
    shown closed.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...] = ()
    withheld: bool = False
    folded: bool = False


class ReportSection(ReportPart):
    """One of the sections 1 to 10; ``said`` are the names of sentences, such as that nothing was found."""

    number: int = Field(ge=1, le=10)
    name: str
    said: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()


class Tiles(ReportPart):
    """Section 0."""

    patients: int
    files: int
    bytes: int
    resources: int
    destination: str
    recipient: str = ""
    encrypted: bool | None
    stops: int
    looks: int
    notes: int


class Decided(ReportPart):
    """One person's decision, as the record has it. ``files`` is the digest of the files that it is for."""

    approved: bool
    by: str
    where: Literal["command", "ui"]
    when: str
    comment: str = ""
    files: str = ""

    @classmethod
    def of(cls, decision: object) -> Decided:
        """Return a decision of the record."""
        return cls(**{name: getattr(decision, name) for name in cls.model_fields})


class ReleaseReport(ReportPart):
    """The whole.

    ``step`` is the position of the wait for which it was made, ``None`` at the end of the job. ``sent`` says that the
    data have left, and whether on somebody's decision.
    """

    version: Literal[1] = 1
    job: str
    project: str
    step: int | None
    made: str
    language: Literal["en", "de"]
    sent: Literal["decided", "undecided"] | None = None
    k: int
    tiles: Tiles
    findings: tuple[ReportFinding, ...]
    sections: tuple[ReportSection, ...]
    decisions: tuple[Decided, ...] = ()
    files: str = ""
    """The digest over what will leave (``Inventory.digest``)."""
    seconds: float = 0.0

    def fact(self, name: str) -> Value:
        """Return the value of a fact, whichever section it is in; ``None`` where it is not there."""
        return next((one.value for section in self.sections for one in section.facts if one.name == name), None)

    def rows(self, name: str) -> tuple[tuple[Value, ...], ...]:
        """Return the rows of a table, whichever section it is in; none where it is not there."""
        return next((one.rows for section in self.sections for one in section.tables if one.name == name), ())
