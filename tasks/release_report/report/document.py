"""The release report as a document: what is published, and nothing else (document 5, sections 0 to 18).

Every number of patients in it is a ``Count``, made by ``tasks/shared/publication.py``; every text from the data passed
R7 there. It holds no words of a language but those of the query, the configuration and a person: a finding, a column, a
fact is a name, which the page words (``words/``). ``release-report.json`` is this document, and the page shows nothing
that is not in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from tasks.release_report.publication import Count
from tasks.shared.report import Approval

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
    stand. The same finding has the same ``key`` in each report of a query, so that two can be compared.
    """

    level: Level
    code: str
    section: int = Field(ge=0, le=18)
    about: str = ""
    patients: Count | None = None
    values: dict[str, Value] = Field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identity of the finding, without its numbers."""
        return f"{self.code} {self.about}".strip()


class Fact(ReportPart):
    """A value under a name."""

    name: str
    value: Value


class Table(ReportPart):
    """Rows below columns, each named; ``withheld`` says that there were more, which rules R4 to R8 keep back.

    ``rounded`` says that resources and lines in it are, with their total. ``folded`` is shown closed. ``bars`` is
    the column that a graph shows, if one helps.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...] = ()
    withheld: bool = False
    rounded: bool = False
    folded: bool = False
    bars: str | None = None


class ReportSection(ReportPart):
    """One of the sections 1 to 18; ``said`` are the names of sentences, such as that nothing was found."""

    number: int = Field(ge=1, le=18)
    name: str
    said: tuple[str, ...] = ()
    facts: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()


class Tiles(ReportPart):
    """Section 0."""

    patients: Count | int
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
    """One person's decision (section 17), as the record has it. ``files`` and ``report`` are the hashes it is for."""

    approved: bool
    by: str
    login: str = ""
    where: Literal["cli", "ui"]
    when: str
    comment: str = ""
    despite: str = ""
    files: str = ""
    report: str = ""
    accepted: dict[str, str] = Field(default_factory=dict)
    refused: dict[str, str] = Field(default_factory=dict)
    questions: tuple[str, ...] = ()

    @classmethod
    def of(cls, approval: Approval) -> Decided:
        """Return a decision of the record."""
        return cls(**{name: getattr(approval, name) for name in cls.model_fields})

    def brief(self) -> Decided:
        """Return who and when, for the recipient: neither the login nor the words beside it."""
        return self.model_copy(
            update={"login": "", "comment": "", "despite": "", "accepted": {}, "refused": {}, "questions": ()}
        )


def decisions_for(decisions: Iterable[Decided], *, recipient: bool) -> tuple[Decided, ...]:
    """Return the decisions for a copy of the report: all of each in-house, who and when for the recipient."""
    return tuple(one.brief() if recipient else one for one in decisions)


class ReleaseReport(ReportPart):
    """The whole.

    ``step`` is the position of the wait for which it was made, ``None`` at the end of the job. ``recipient``
    says that it is the recipient's copy (k 11, N rounded). ``sent`` says that the data have left, and whether on
    somebody's decision.
    """

    version: Literal[1] = 1
    job: str
    project: str
    step: int | None
    made: str
    language: Literal["en", "de"]
    recipient: bool = False
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


_OF_THE_MOMENT: Final = {"decisions", "made", "seconds"}
"""What is not of the data: a report that is made again of the same files has the same hash."""


def sha256(report: ReleaseReport) -> str:
    """Return the SHA-256 (hex) that a decision is given for: over the document as JSON with sorted keys, without its
    decisions, its moment and its seconds."""
    content = report.model_dump(mode="json", exclude=_OF_THE_MOMENT)
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()
