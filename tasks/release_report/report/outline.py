"""The outline of the release report: its sections, tables and findings, each declared once (document 5, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tasks.release_report.publication import Count
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import Fact, Level, ReportFinding, ReportSection, Table, Value
from tasks.release_report.report.facts import ReportFacts

Parts = Iterable[str | Fact | Table]
"""What a section consists of: names of sentences, facts and tables, in their order."""


@dataclass(frozen=True)
class SectionRule:
    """A section by its number. ``from_k``: it has figures from ``k`` patients on, else a sentence (R6).

    ``of_tables`` is the sentence in its place if tables leave.
    """

    number: int
    name: str
    parts: Callable[[ReportFacts, Disclosure], Parts]
    from_k: bool = False
    of_tables: str = ""

    def section(self, facts: ReportFacts, show: Disclosure) -> ReportSection:
        """Return the section of a report on these facts."""
        if self.from_k and not show.enough:
            return section(self.number, self.name, ["too-few"])
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
    rounded: bool = False
    bars: str | None = None
    always: bool = False


_QUARTILES: Final = ("quartile_1", "median", "quartile_3")

TABLES: Final[Mapping[str, TableRule]] = {
    # 2, what leaves, and 3, the query
    "files": TableRule(("file", "bytes", "content_bytes", "lines", "resources", "sha256"), rounded=True, always=True),
    "cohort": TableRule(("criterion", "row", "context", "term", "restriction", "codes"), most=150, always=True),
    "groups": TableRule(
        ("group", "type", "profile", "required_attributes", "optional_attributes", "filter", "enrichment"),
        most=150, always=True,
    ),
    "attributes": TableRule(
        ("group", "attribute", "required", "links", "enrichment"), most=150, folded=True, always=True
    ),
    # 4, patients, and 6, resources by type
    "flow": TableRule(("step", "patients", "reason")),
    "excluded": TableRule(("reason", "patients")),
    "types": TableRule(
        ("type", "resources_before", "patients_before", "resources", "patients", "asked"), rounded=True, always=True
    ),
    "nobody": TableRule(("type", "resources", "asked"), rounded=True),
    # 7, what still identifies
    "left": TableRule(("path", "kind", "patients_before", "patients", "original", "level"), most=60, always=True),
    "beside_codes": TableRule(
        ("path", "kind", "patients_before", "patients", "original", "level"), most=60, folded=True
    ),
    "attachments": TableRule(("path", "mime_type", "patients"), most=60),
    "one_each": TableRule(("path", "patients"), most=60, folded=True),
    "ids": TableRule(("form", "patients")),
    "date_precision": TableRule(("path", "year", "month", "day", "time"), most=60, folded=True),
    "date_moves": TableRule(("path", "compared", "same", "days")),
    "changed": TableRule(("path",)),
    "extensions": TableRule(("url", "patients"), most=60),
    "identifier_systems": TableRule(("system", "patients"), most=60),
    "removed": TableRule(("path", "kind", "patients_before"), most=60, folded=True),
    "unspoken": TableRule(("path", "patients"), folded=True),
    # 8, telling patients apart, and 9, completeness
    "apart": TableRule(
        ("classes", "alone", "with_few", "with_some", "with_many", "mean_risk", "highest_risk"), always=True
    ),
    "incomplete": TableRule(("group", "attribute", "required", "before", "after", "state"), most=150, always=True),
    "complete": TableRule(
        ("group", "attribute", "required", "before", "after", "state"), most=150, folded=True, always=True
    ),
    # 10, content, and 11, time, whose columns are the types
    "codes": TableRule(("path", "code", "display", "system", "patients", "share"), most=150, folded=True, bars="share"),
    "systems": TableRule(("path", "system", "patients"), most=150, folded=True),
    "numbers": TableRule(("path", "code", "unit", *_QUARTILES, "patients"), most=150),
    "statuses": TableRule(("path", "status", "patients"), most=150, folded=True),
    "multiplicity": TableRule(("type", *_QUARTILES), folded=True),
    "over_time": TableRule(()),
    # 12 to 18
    "hosts": TableRule(("host", "patients")),
    "validation": TableRule(("position", "severity", "type", "profile", "message", "patients"), most=100, always=True),
    "steps": TableRule(("position", "step", "retries", "warnings"), always=True),
    "warnings": TableRule(("position", "step", "text"), most=40),
    "corrected": TableRule(("file", "changed", "user"), most=100),
    "changes": TableRule(("change", "level", "finding", "about"), most=100),
    "versions": TableRule(("name", "version")),
}  # fmt: skip


def table(
    name: str,
    rows: Iterable[Iterable[Value]],
    *,
    withheld: bool = False,
    folded: bool | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Return a table as it is declared; ``withheld`` says that rules R4 to R8 keep rows back."""
    rule = TABLES[name]
    return Table(
        name=name,
        columns=rule.columns if columns is None else tuple(columns),
        rows=tuple(tuple(row) for row in rows)[: rule.most],
        withheld=withheld,
        rounded=rule.rounded,
        folded=rule.folded if folded is None else folded,
        bars=rule.bars,
    )


class FindingRule(NamedTuple):
    """A finding: how much it weighs, and the section with the details."""

    level: Level
    section: int


_BY_SECTION: Final[Mapping[tuple[Level, int], tuple[str, ...]]] = {
    ("stop", 2): ("unencrypted", "file-changed", "file-unread"),
    ("look", 2): ("unencrypted-private", "first-time"),
    ("look", 3): ("terms-missing", "query-not-applied"),
    ("stop", 4): ("patients-gained", "patients-lost", "lines-differ", "server-counts-differ"),
    ("look", 4): ("patients-fewer", "no-patients"),
    ("look", 5): ("consent-unchecked",),
    ("stop", 6): ("type-not-asked",),
    ("stop", 7): (
        "original-ids", "original-ids-referred", "content-changed", "original-left", "identifying-left",
        "undefined-element", "identifier-unchecked", "dates-raw", "birthday-left",
    ),
    ("look", 7): (
        "texts-beside-codes", "not-pseudonymized", "above-89", "dates-not-shifted", "one-shift", "shift-told",
        "kept-on-purpose", "content-differs", "original-of-place", "address-part", "free-text", "birthday-event",
    ),
    ("note", 7): ("identifier-replaced",),
    ("look", 8): ("told-apart",),
    ("look", 9): ("required-thinned",),
    ("note", 9): ("removed-by-rules",),
    ("look", 10): ("several-units",),
    ("look", 11): ("future-date", "before-birth"),
    ("stop", 12): ("foreign-reference",),
    ("look", 12): ("dangling-reference", "duplicates"),
    ("note", 13): ("validation-silent",),
    ("look", 14): ("import-unread",),
    ("look", 15): ("warnings",),
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
