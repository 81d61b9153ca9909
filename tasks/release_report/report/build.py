"""The document out of the facts: sections 0 to 18, each number and text by the rules of publication.

R10: two reports of one query may lie side by side, and a figure that changes by one patient would identify the patient.
Where the number of patients moved by fewer than ``k`` since the last report, a section keeps the figures printed then,
with their rows: a new row reveals as much as a number. The section is made anew where a figure moved by ``k`` or more.
Alarms are always those of now (R9): they keep a figure, never that there was none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from config.report import Language
from tasks.release_report.measure.delivery import Measures, digest_of
from tasks.release_report.publication import HIDDEN, ROUNDED_TO, Count, recipients_k
from tasks.release_report.report.disclosure import Disclosure
from tasks.release_report.report.document import (
    Fact,
    Level,
    ReleaseReport,
    ReportFinding,
    ReportSection,
    Table,
    Tiles,
    Value,
    decisions_for,
)
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.findings import findings
from tasks.release_report.report.outline import SectionRule, section
from tasks.release_report.report.risk import most_of_some, patients_apart
from tasks.release_report.report.sections import content, identifying, leaving, query, review
from tasks.release_report.report.step_files import patients_outside, read_validated
from tasks.shared.stop import Stop

_KEPT_SECTIONS: Final = range(4, 14)
"""Sections with figures of patients."""
_ALARMS: Final = 7
_CLASSES: Final = 8
_ALARM_TABLES: Final = frozenset({"left", "beside_codes", "changed"})
"""Tables of section 7 in which each row is an alarm."""
_ALARM_ROWS: Final = frozenset({"@days-raw", "@ids-original"})
"""Words that make a row of another table one."""
_LEAVING: Final = "@leaving"

_COMPLETE: Final = frozenset({"types", "extensions", "identifier_systems", "unspoken"})
"""Tables that have a row for all that ``k`` patients share: one of 2k patients is not there for one patient more."""
_FIGURES: Final = frozenset({"share", "mean_risk", "highest_risk"})
"""Columns of figures that are texts."""


@dataclass(frozen=True)
class KeptFigures:
    """The last report, as far as its figures are kept."""

    last: ReleaseReport
    k: int

    @property
    def patients(self) -> Count | None:
        """Return the number of patients that was printed, where it was rounded."""
        return self.last.tiles.patients if isinstance(self.last.tiles.patients, Count) else None

    def section(self, now: ReportSection) -> ReportSection:
        """Return a section with the figures that were printed last time, or as it is now."""
        then = next((one for one in self.last.sections if one.number == now.number), None)
        if now.number not in _KEPT_SECTIONS or then is None or self._moved(now, then):
            return now
        alarms = now.number == _ALARMS
        tables = [self._alarms(table, then) for table in now.tables if alarms and table.name in _ALARM_TABLES]
        if alarms:
            tables += self._with_alarms(now, then)
        else:
            tables += [_with_all(table, now) for table in then.tables]
        said = now.said if alarms else then.said
        return now.model_copy(
            update={
                "said": tuple(dict.fromkeys((*said, "figures-kept"))),
                "facts": tuple(self._facts(now, then)),
                "tables": tuple(tables),
            }
        )

    def findings(self, found: tuple[ReportFinding, ...]) -> tuple[ReportFinding, ...]:
        """Return what was found now, with the figures of last time."""
        before = {one.key: one.patients for one in self.last.findings}
        return tuple(
            one.model_copy(update={"patients": self._alarm(one.patients, before.get(one.key))}) for one in found
        )

    def _facts(self, now: ReportSection, then: ReportSection) -> Iterator[Fact]:
        before = {one.name: one for one in then.facts}
        for one in now.facts:
            kept = before.get(one.name)
            if kept is not None and isinstance(one.value, Count):
                value = self._alarm(one.value, kept.value) if now.number == _ALARMS else kept.value
                yield Fact(name=one.name, value=value)
            elif not isinstance(one.value, Count) or now.number == _ALARMS:
                yield one

    def _alarms(self, now: Table, then: ReportSection) -> Table:
        """Return a table of alarms with the rows of now, and the figures of last time."""
        before = dict(_rows(then))
        rows = []
        for row in now.rows:
            then_ = [before.get((*_key(now, row), column)) for column in now.columns]
            rows.append(tuple(map(self._alarm, row, then_)))
        return now.model_copy(update={"rows": tuple(rows)})

    def _with_alarms(self, now: ReportSection, then: ReportSection) -> Iterator[Table]:
        """Yield the tables of the last report in which not every row is an alarm. Rows that are alarms, or were, are
        those of now."""
        names = dict.fromkeys(table.name for section in (then, now) for table in section.tables)
        for name in (name for name in names if name not in _ALARM_TABLES):
            old, new = (next((one for one in part.tables if one.name == name), None) for part in (then, now))
            fresh = {row[0]: row for row in (new.rows if new is not None else ())}
            rows: list[tuple[Value, ...]] = []
            for row in old.rows if old is not None else ():
                of_now = fresh.get(row[0], ())
                if _is_alarm(of_now) or (_is_alarm(row) and of_now):
                    rows.append(tuple(map(self._alarm, of_now, row)))
                elif not _is_alarm(row):
                    rows.append(row)
            there = {row[0] for row in old.rows} if old is not None else set()
            rows += [row for about, row in fresh.items() if about not in there and _is_alarm(row)]
            withheld = old is not None and old.withheld
            if (table := new or old) is not None and (rows or withheld):
                yield table.model_copy(update={"rows": tuple(rows), "withheld": withheld})

    def _alarm(self, now: Value, then: Value) -> Value:
        counts = isinstance(now, Count) and isinstance(then, Count)
        known = counts and "none" not in (now.word, then.word)  # type: ignore[union-attr]
        return then if known and not self.far(now, then) else now

    def _moved(self, now: ReportSection, then: ReportSection) -> bool:
        """Return whether a figure moved by ``k``, or one of 2k patients appears or is gone without a reason."""
        one, other = dict(_rows(now)), dict(_rows(then))
        # One patient more moves a class of section 8 into the next band.
        least = most_of_some(self.k) + 2 if now.number == _CLASSES else self.k
        if any(self.far(value, other.get(key), least) for key, value in one.items()):
            return True
        joined = {table.name for section in (now, then) for table in section.tables if table.withheld}
        alone = [(key, one.get(key, other.get(key))) for key in one.keys() ^ other.keys()]
        return any(
            key[0] in _COMPLETE - joined and isinstance(value, Count) and self._bounds(value)[0] >= 2 * self.k
            for key, value in alone
        )

    def far(self, one: Value, other: Value, least: int = 0) -> bool:
        """Return whether two counts differ by at least ``least`` (default ``k``), whatever they stand for."""
        least = least or self.k
        if not isinstance(one, Count) or not isinstance(other, Count):
            return False
        (low, high), (lowest, highest) = self._bounds(one), self._bounds(other)
        return low - highest >= least or lowest - high >= least

    def _bounds(self, said: Count) -> tuple[int, int]:
        """Return the least and the most patients that a count stands for."""
        patients = self.last.tiles.patients
        everybody, k = patients if isinstance(patients, int) else patients.number or 0, self.k
        number = said.number or 0
        return {
            "none": (0, 0),
            "some": (1, everybody),
            "fewer": (1, k - 1),
            "about": (max(number - ROUNDED_TO // 2, k), number + ROUNDED_TO // 2),
            "all": (everybody, everybody),
            "all_but_fewer": (everybody - number + 1, everybody - 1),
        }[said.word]


def _is_alarm(row: tuple[Value, ...]) -> bool:
    return any(isinstance(value, str) and value in _ALARM_ROWS for value in row)


def _is_about(said: Count | int) -> bool:
    return isinstance(said, Count) and said.word == "about"


def kept_from(last: ReleaseReport | None, patients: int | Count, k: int) -> KeptFigures | None:
    """Return the last report whose figures are kept; ``None`` where there is none, or patients moved by ``k``."""
    if last is None or last.k != k:
        return None
    before = last.tiles.patients
    if isinstance(patients, int) and isinstance(before, int):
        return KeptFigures(last, k) if abs(patients - before) < k and min(patients, before) >= k else None
    found = KeptFigures(last, k)
    return found if _is_about(patients) and _is_about(before) and not found.far(patients, before) else None


def _with_all(table: Table, now: ReportSection) -> Table:
    """Return a table of the last report, in which an exact number of all patients is that of now."""
    fresh = {row[0]: row for one in now.tables if one.name == table.name for row in one.rows}
    rows = [fresh.get(row[0], row) if row[0] == _LEAVING and isinstance(row[1], int) else row for row in table.rows]
    return table.model_copy(update={"rows": tuple(rows)})


def _rows(section: ReportSection) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Yield each cell and fact with its key."""
    for one in section.facts:
        yield ("", one.name), one.value
    for table in section.tables:
        for row in table.rows:
            for column, value in zip(table.columns, row, strict=True):
                yield (*_key(table, row), column), value


def _key(table: Table, row: tuple[Value, ...]) -> tuple[str, ...]:
    """Return the table and the texts of a row, without figures and marks."""
    about = zip(table.columns, row, strict=True)
    return (
        table.name,
        *(v for name, v in about if isinstance(v, str) and name not in _FIGURES and v != HIDDEN),
    )


_UNCHECKED: Final = 14
_SECTIONS: Final = (
    SectionRule(3, "query", query.query),
    SectionRule(4, "flow", leaving.patients),
    SectionRule(5, "consent", query.consent),
    SectionRule(6, "types", leaving.types, from_k=True),
    SectionRule(7, "identifying", identifying.identifying),
    SectionRule(8, "apart", patients_apart, from_k=True, of_tables="not-of-tables"),
    SectionRule(9, "completeness", content.completeness, from_k=True, of_tables="not-of-tables"),
    SectionRule(10, "content", content.content, from_k=True),
    SectionRule(11, "time", content.time, from_k=True),
    SectionRule(12, "references", content.references),
    SectionRule(13, "validation", review.validation),
    SectionRule(_UNCHECKED, "unchecked", review.unchecked),
    SectionRule(15, "warnings", review.warnings),
    SectionRule(17, "decision", review.decision),
)
"""Sections that the facts alone make; the others are about them."""


@dataclass(frozen=True)
class Copies:
    """The two copies of a report."""

    in_house: ReleaseReport
    recipient: ReleaseReport


def make(facts: ReportFacts, measures: Measures, job: Path, stop: Stop) -> Copies:
    """Return both copies of the report on what was measured, with what the steps left in the directory of the ``job``.

    Raises:
        Stopped: somebody asked.
    """
    imported, leaving = measures
    facts = replace(
        facts,
        leaving=leaving,
        imported=imported,
        validated=tuple(read_validated(job, facts.steps, leaving, imported)),
        outside_patients=patients_outside(job, facts.steps, stop),
        files=digest_of(leaving.files),
    )
    k = facts.settings.k
    like = replace(facts, last=facts.last_copy)
    return Copies(build(facts, k=k), build(like, k=k, recipient=True))


def build(facts: ReportFacts, *, k: int, recipient: bool = False) -> ReleaseReport:
    """Return the in-house copy, or with ``recipient`` the one that may go with the data (R2: k of 11 at least).

    With fewer than ``k`` patients it says only what leaves, where to, the query and the alarms (R6). The same facts
    give the same report.
    """
    k = recipients_k(k) if recipient else k
    show = Disclosure(
        k=k,
        recipient=recipient,
        measured=facts.leaving,
        imported=facts.imported,
        asked=facts.query.codes if facts.query is not None else frozenset(),
        ours=not facts.corrected,
    )
    patients, found = show.everybody(), findings(facts, show)
    sections = {rule.number: rule.section(facts, show) for rule in _SECTIONS}
    if facts.query_not_applied:
        sections[3] = sections[3].model_copy(update={"name": "query-not-applied"})
    kept = kept_from(facts.last, patients, k) if review.is_alike(facts) else None
    if kept is not None:
        patients, found = kept.patients or patients, kept.findings(found)
        sections = {number: kept.section(one) for number, one in sections.items()}
    nothing = () if found else ("nothing-found",)
    sections[1] = section(1, "first", (*nothing, *sections[_UNCHECKED].said))
    sections[2] = section(2, "leaving", leaving.delivered_files(facts, show, leaving.resources(sections.values())))
    if not recipient:
        sections[16] = section(16, "compared", review.compared(facts, show, found))
    sections[18] = section(18, "rules", review.rules(facts, show, sections.values()))
    return ReleaseReport(
        job=facts.job,
        project=facts.project,
        step=facts.step,
        made=facts.made,
        language="de" if facts.settings.language is Language.DE else "en",
        recipient=recipient,
        sent=None if not facts.sent else "decided" if facts.decides else "undecided",
        k=k,
        tiles=_tiles(facts, show, patients, sections[2], Counter(one.level for one in found)),
        findings=found,
        sections=tuple(sections[number] for number in sorted(sections)),
        decisions=decisions_for(facts.decisions, recipient=recipient),
        files=facts.files,
        seconds=facts.leaving.seconds + (facts.imported.seconds if facts.imported is not None else 0.0),
    )


def _tiles(
    facts: ReportFacts, show: Disclosure, patients: Count | int, leaves: ReportSection, levels: Counter[Level]
) -> Tiles:
    """Return section 0, with the figures of section 2."""
    files, to = facts.leaving.files, facts.destination
    resources = next(one.value for one in leaves.facts if one.name == "resources")
    return Tiles(
        patients=patients,
        files=show.files(len(files)),
        bytes=show.bytes(sum(file.bytes for file in files)),
        resources=resources if isinstance(resources, int) else 0,
        destination=to.shown if to is not None else "@no-destination",
        recipient=facts.settings.recipient or "",
        encrypted=to.encrypted if to is not None else None,
        stops=levels["stop"],
        looks=levels["look"],
        notes=levels["note"],
    )
