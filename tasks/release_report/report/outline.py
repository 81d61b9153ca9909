"""The outline of the release report: its sections, tables and findings, each declared once (document 5, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Fact, Level, ReportFinding, ReportSection, Table, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.numbers import Count

Parts = Iterable[str | Fact | Table]
"""What a section consists of: names of sentences, facts and tables, in their order."""


@dataclass(frozen=True)
class SectionRule:
    """A section by its number. ``of_tables`` is the sentence in its place if tables leave."""

    number: int
    name: str
    parts: Callable[[ReportFacts, Disclosure], Parts]
    of_tables: str = ""

    def section(self, facts: ReportFacts, show: Disclosure) -> ReportSection:
        """Return the section of a report on these facts."""
        if self.of_tables and facts.leaving.tables:
            return section(self.number, self.name, [self.of_tables])
        return section(self.number, self.name, self.parts(facts, show))


def section(number: int, name: str, parts: Parts) -> ReportSection:
    """Return a section of its parts. A table without rows is left out, unless rows are withheld or it always stands."""
    found = list(parts)
    tables = (one for one in found if isinstance(one, Table))
    return ReportSection(
        number=number,
        name=name,
        said=tuple(one for one in found if isinstance(one, str)),
        facts=tuple(one for one in found if isinstance(one, Fact)),
        tables=tuple(one for one in tables if one.rows or one.withheld or TABLES[one.name].always),
    )


@dataclass(frozen=True)
class TableRule:
    """A table: its columns, the most rows it has, and how the page shows it (``Table``).

    ``always``: it stands also without rows, which says that there are none.
    """

    columns: tuple[str, ...]
    most: int | None = None
    folded: bool = False
    always: bool = False


TABLES: Final[Mapping[str, TableRule]] = {
    "files": TableRule(("file", "bytes", "content_bytes", "lines", "resources", "sha256"), most=30, always=True),
    "cohort": TableRule(("criterion", "row", "context", "term", "restriction", "codes"), most=150, always=True),
    "groups": TableRule(
        ("group", "type", "profile", "required_attributes", "optional_attributes", "filter"), most=150, always=True
    ),
    "flow": TableRule(("step", "patients", "reason")),
    "excluded": TableRule(("reason", "patients")),
    "types": TableRule(
        ("type", "resources_before", "patients_before", "resources", "patients", "asked"), always=True
    ),
    # 7, what still identifies
    "left": TableRule(("path", "kind", "patients_before", "patients", "original", "level"), most=60, always=True),
    "beside_codes": TableRule(
        ("path", "kind", "patients_before", "patients", "original", "level"), most=60, folded=True
    ),
    "ids": TableRule(("form", "patients")),
    "date_precision": TableRule(("path", "year", "month", "day", "time"), most=60, folded=True),
    "date_moves": TableRule(("path", "compared", "same", "days")),
    "extensions": TableRule(("url", "patients"), most=60),
    "identifier_systems": TableRule(("system", "patients"), most=60),
    "apart": TableRule(("classes", "alone", "with_few", "with_many"), always=True),
}  # fmt: skip


def table(
    name: str,
    rows: Iterable[Iterable[Value]],
    *,
    withheld: bool = False,
    folded: bool | None = None,
) -> Table:
    """Return a table as it is declared; ``withheld`` says that it has fewer rows than there are."""
    rule = TABLES[name]
    return Table(
        name=name,
        columns=rule.columns,
        rows=tuple(tuple(row) for row in rows)[: rule.most],
        withheld=withheld,
        folded=rule.folded if folded is None else folded,
    )


class FindingRule(NamedTuple):
    """A finding: how much it weighs, and the section with the details."""

    level: Level
    section: int


_BY_SECTION: Final[Mapping[tuple[Level, int], tuple[str, ...]]] = {
    ("stop", 2): ("unencrypted", "file-changed", "file-unread"),
    ("look", 2): ("unencrypted-private",),
    ("look", 3): ("terms-missing", "query-not-applied"),
    ("stop", 4): ("patients-gained", "patients-lost", "lines-differ", "server-counts-differ"),
    ("look", 4): ("patients-fewer", "no-patients"),
    ("look", 5): ("consent-unchecked",),
    ("stop", 6): ("type-not-asked",),
    ("stop", 7): (
        "original-ids", "original-ids-referred", "original-left", "identifying-left", "undefined-element",
        "identifier-unchecked", "dates-raw", "birthday-left",
    ),
    ("look", 7): (
        "texts-beside-codes", "not-pseudonymized", "above-89", "dates-not-shifted", "one-shift", "shift-told",
        "kept-on-purpose", "original-of-place", "address-part", "free-text", "birthday-event",
    ),
    ("note", 7): ("identifier-replaced",),
    ("look", 8): ("told-apart",),
    ("look", 9): ("import-unread", "warnings"),
}  # fmt: skip

FINDINGS: Final = {code: FindingRule(*rule) for rule, codes in _BY_SECTION.items() for code in codes}
"""All findings by their codes."""


def finding(
    code: str, *, about: str = "", patients: Count | None = None, values: Mapping[str, Value] | None = None
) -> ReportFinding:
    """Return a finding as it is declared."""
    level, section = FINDINGS[code]
    return ReportFinding(
        level=level, code=code, section=section, about=about, patients=patients, values=dict(values or {})
    )


def fact(name: str, value: Value) -> Fact:
    """Return a value under the name of a word of the page's."""
    return Fact(name=name, value=value)
