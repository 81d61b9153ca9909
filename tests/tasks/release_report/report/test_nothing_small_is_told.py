"""Promises 1 and 2 (document 5, section 4): a solver over all printed cells, totals and complements tells no number of
patients from 1 to k - 1, N aside, and from the recipient's copy not N either.

The reader is taken to know all categories, and that what could be one a patient is one a patient. What she is told of
an unknown is the set of numbers that are said with the same word.
"""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from tasks.release_report.measure.measured import MeasuredFile
from tasks.release_report.publication import ALL, HIDDEN, NONE, Count, count, count_of_text, possible_range, technical
from tasks.release_report.publication_counts import least_beside
from tasks.release_report.report.build import KeptFigures, build
from tasks.release_report.report.document import ReleaseReport, Table, Value
from tasks.release_report.report.facts import ReportFacts
from tasks.release_report.report.risk import below_k, class_sizes, size_bands
from tasks.release_report.report.sections.leaving import split
from tests.tasks.release_report.report.attacker import Puzzle
from tests.tasks.release_report.report.population import ODD, SPANS, Population, facts, person, population, quarter_of
from tests.tasks.release_report.report.reporting import section_of


def tables(report: ReleaseReport, name: str) -> Iterable[Table]:
    return (table for section in report.sections for table in section.tables if table.name == name)


def cell(report: ReleaseReport, table: str, row: str, column: str) -> Value:
    for one in tables(report, table):
        for values in one.rows:
            if values[0] == row and column in one.columns:
                return values[one.columns.index(column)]
    return None


@functools.cache
def said_of(k: int, total: int, *, text: bool, asked: bool, rounded: bool = False) -> dict[Count, set[int]]:
    """Return the numbers that each word stands for, for this total of patients."""
    numbers: defaultdict[Count, set[int]] = defaultdict(set)
    for n in range(total + 1):
        said = count(n, k, of=total, rounded=rounded)
        numbers[count_of_text(n, k, of=total, asked=asked, rounded=rounded) if text else said].add(n)
    return numbers


def meant(said: Count, k: int, most: int) -> tuple[set[int], set[int]]:
    """Return the numbers that a word allows for patients with a value and without one, for any total."""
    some, few, enough, all_ = set(range(1, most)), set(range(1, k)), set(range(k, most)), set(range(most))
    return {
        "none": ({0}, all_),
        "all": (all_, {0}),
        "some": (some, all_),
        "fewer": (few, all_),
        "all_but_fewer": (enough, set(range(1, said.number or 0))),
        "about": ({n for n in enough if count(n, k) == said}, enough),
    }[said.word]


class ReportReader:
    """Puts what a report says into a puzzle. ``exact`` says that she knows the number of all patients, ``last`` is the
    report whose figures this one keeps."""

    def __init__(
        self,
        report: ReleaseReport,
        people: ReportFacts,
        puzzle: Puzzle,
        tag: str = "",
        *,
        exact: bool = True,
        last: ReleaseReport | None = None,
    ) -> None:
        self.report, self.people, self.puzzle, self.tag, self.exact = report, people, puzzle, tag, exact
        self.k, self.all = report.k, people.leaving.patients
        self.kept = KeptFigures(last, report.k) if last is not None else None
        most = self.all if exact else 90
        tile = report.tiles.patients
        known = {n for n in range(1, most + 1) if not isinstance(tile, Count) or count(n, self.k) == tile}
        puzzle.unknown(f"{tag}N", {self.all} if exact else known, self.all)
        if people.imported is not None:
            puzzle.unknown(f"{tag}M", range(200), people.imported.patients)
        self.most = most

    def learn(
        self, name: str, value: Value, truth: int, *, text: bool = False, asked: bool = False, among: Iterable[int] = ()
    ) -> str:
        """One number, and that of those who have it not. The largest ``among`` cells of a recipient's copy has what
        the others leave of the rounded sum."""
        name, rounded = f"{self.tag}{name}", self.report.recipient
        known = others = set(range(self.most + 1))
        if rounded and isinstance(value, Count) and truth == max(among, default=0):
            if value.word == "about" and value.number is not None:
                known = set(range(value.number - 7, value.number + 8)) & known
        elif isinstance(value, Count) and not self.exact:
            known, others = meant(value, self.k, self.most + 1)
        elif isinstance(value, Count) and self.kept is not None:
            fresh = said_of(self.k, self.all, text=text, asked=asked).items()
            known = set().union(*(numbers for said, numbers in fresh if not self.kept.far(said, value)))
        elif isinstance(value, Count):
            known = said_of(self.k, self.all, text=text, asked=asked, rounded=rounded)[value]
        self.puzzle.unknown(name, known, truth)
        self.puzzle.unknown(f"not {name}", others, self.all - truth)
        self.puzzle.sums.append(((name, f"not {name}"), f"{self.tag}N"))
        return name

    def cells(self, name: str, numbers: Mapping[str, int], said: Callable[[str], Value], *, text: bool = False) -> None:
        """Disjoint cells that are everybody."""
        for each, truth in numbers.items():
            self.learn(f"{name} {each}", said(each), truth, text=text, among=numbers.values())
        self.puzzle.sums.append((tuple(f"{self.tag}{name} {each}" for each in numbers), f"{self.tag}N"))

    def everything(self) -> None:
        """Return all values of the report."""
        leaving = self.people.leaving
        if any("too-few" in section.said for section in self.report.sections):
            return
        self._types()
        for path, at in leaving.paths.items():
            name = self.learn(path, cell(self.report, "left", path, "patients"), at.patients)
            if at.original and at.patients:
                original = self.learn(f"o {path}", cell(self.report, "left", path, "original"), at.original)
                self.puzzle.orders.append((original, name))
        for one in self.report.findings:
            if one.about in leaving.paths and one.patients is not None:
                name = f"o {one.about}" if one.code == "original-left" else one.about
                truth = leaving.paths[one.about]
                self.learn(name, one.patients, truth.original if one.code == "original-left" else truth.patients)
            elif one.code == "above-89" and one.patients is not None:
                self.learn("old", one.patients, leaving.above_89)
        for table in (*tables(self.report, "complete"), *tables(self.report, "incomplete")):
            for row in table.rows:
                path = str(row[1])
                self.learn(path, row[4], leaving.paths[path].patients if path in leaving.paths else 0)
        sexes = leaving.codes["Patient.gender"].codes
        self.cells("sex", sexes, lambda code: self._code("Patient.gender", code.partition("|")[2]), text=True)
        coded = leaving.codes["Condition.code"].codes
        among = coded.values() if sum(coded.values()) <= self.all else ()
        for code, n in coded.items():
            value = code.partition("|")[2]
            said = self._code("Condition.code", value)
            self.learn(f"code {value}", said, n, text=True, asked=value == "I10", among=among)
        statuses = {status.partition("|")[2]: n for status, n in leaving.statuses.items()}
        self.cells("status", statuses, self._status, text=True)
        self._moves()
        self._time("Encounter", "Encounter.period.start", "N")
        if "Condition" in leaving.types:
            self._time("Condition", "Condition.recordedDate", "type Condition")
        self._validation()
        self._files()
        self._apart()
        self._flow()

    def _code(self, path: str, value: str) -> Value:
        rows = (row for table in tables(self.report, "codes") for row in table.rows)
        return next((row[4] for row in rows if row[0] == path and row[1] == value), None)

    def _status(self, value: str) -> Value:
        rows = (row for table in tables(self.report, "statuses") for row in table.rows)
        return next((row[2] for row in rows if row[1] == value), None)

    def _time(self, kind: str, path: str, whole: str) -> None:
        """Months are parts of quarters, quarters of years, and years of ``whole``; shown is one of the three."""
        dates = self.people.leaving.dates[path]
        shown: dict[str, Value] = {}
        for table in tables(self.report, "over_time"):
            if kind in table.columns:
                shown |= {str(row[0]): row[table.columns.index(kind)] for row in table.rows}
        names: dict[str, str] = {}
        for periods in (dates.years, dates.quarters, dates.months):
            for period, n in periods.items():
                fine = len(period) > 4
                said = shown.get(period)
                name = names[period] = self.learn(f"{kind} {period}", said, n, text=fine, among=periods.values())
                if fine and period in shown and self.kept is None:
                    self.puzzle.never(name, range(2 * self.k))
        self._parts([names[year] for year in dates.years], f"{self.tag}{whole}")
        for year in dates.years:
            self._parts([names[one] for one in dates.quarters if one[:4] == year], names[year])
        for quarter in dates.quarters:
            self._parts([names[one] for one in dates.months if quarter_of(one) == quarter], names[quarter])

    def _parts(self, names: list[str], whole: str) -> None:
        self.puzzle.sums.append((tuple(names), whole))

    def _validation(self) -> None:
        """One odd resource a patient, or none: by profile they are disjoint cells, and so is "other profiles"."""
        people = self.people.validated[0].findings[ODD]
        numbers = {profile: one.patients for profile, one in people.items()}
        shown = {str(row[3]): row[5] for table in tables(self.report, "validation") for row in table.rows}
        hidden: list[str] = []
        names = [f"{self.tag}valid"]
        self.learn("valid", None, self.all - sum(numbers.values()))
        for profile, n in numbers.items():
            spelled = profile.replace(" ", ", ") or "@no-profile"
            said = shown.get(spelled)
            name = self.learn(f"claim {profile}", said, n, text=bool(profile), among=numbers.values())
            names.append(name)
            if said is None:
                hidden.append(name)
        self._parts(names, f"{self.tag}N")
        if "@other-profiles" in shown:
            together = sum(self.puzzle.truth[name] for name in hidden)
            self._parts(hidden, self.learn("other claims", shown["@other-profiles"], together))

    def _types(self) -> None:
        """Patients by type, and their resources: as many at least. What is printed of these adds up to all that is."""
        leaving, imported = self.people.leaving, self.people.imported
        shown = {str(row[0]): row for table in tables(self.report, "types") for row in table.rows}
        hidden = []
        for name, of in leaving.types.items():
            row = shown.get(name)
            patients = self.learn(f"type {name}", row[4] if row else None, of.patients)
            then = imported.types[name].patients if imported is not None and name in imported.types else None
            if then is not None and imported is not None:
                was = f"{self.tag}type {name} before"
                known = self._before(row[2] if row else None)
                self.puzzle.unknown(was, known, max(then, min(known)))
                self.puzzle.unknown(f"lost {was}", range(100), self.puzzle.truth[was] - of.patients)
                self.puzzle.sums.append(((patients, f"lost {was}"), was))
            resources = f"{self.tag}resources {name}"
            known = {n for n in range(500) if self._technical(n) == row[3]} if row else set(range(self.k - 1, 500))
            known = known if self.kept is None else set(range(500))
            rounded = self.report.recipient
            said = count(of.patients, self.k, of=self.all, rounded=rounded)
            least = least_beside(said, possible_range(self.all, self.k, rounded=rounded)[1])
            self.puzzle.unknown(resources, known, max(of.resources, least))
            self.puzzle.orders.append((patients, resources))
            hidden += [] if row else [resources]
        if hidden and self.kept is None:
            others = {n for n in range(900) if self._technical(n) == shown["@other-types"][3]}
            total = sum(self.puzzle.truth[one] for one in hidden)
            self.puzzle.unknown(f"{self.tag}resources of others", others, total)
            self._parts(hidden, f"{self.tag}resources of others")
        self._totals(sum(row[3] for row in shown.values() if isinstance(row[3], int)))

    def _moves(self) -> None:
        """7j: of each path patients with days that were compared, those with one that is the same, and the others."""
        for path, dates in self.people.leaving.dates.items():
            row = [cell(self.report, "date_moves", path, column) for column in ("compared", "same", "days")]
            compared = self.learn(f"compared {path}", row[0], dates.compared)
            same, moved = self.learn(f"same {path}", row[1], dates.same), f"{self.tag}moved {path}"
            states = {"@days-same": {0}, "@days-moved": range(1, 200)} if self.kept is None else {}
            self.puzzle.unknown(moved, states.get(str(row[2]), range(200)), dates.compared - dates.same)
            self.puzzle.sums.append(((same, moved), compared))

    def _totals(self, resources: int) -> None:
        """R1: a total is the sum of its printed parts, wherever it stands, so nothing is to be learned from it."""
        (files,) = tables(self.report, "files")
        facts = {one.name: one.value for section in self.report.sections for one in section.facts}
        assert self.report.tiles.resources == facts["resources"] == resources
        assert sum(row[4] for row in files.rows if isinstance(row[4], int)) == resources
        assert sum(row[3] for row in files.rows if isinstance(row[3], int)) == facts["lines"]

    def _technical(self, number: int) -> int:
        return technical(number, recipient=self.report.recipient)

    def _before(self, said: Value) -> set[int]:
        """Return the possible values of a count in ``import/``, whose total the flow section may state."""
        if not isinstance(said, Count) or self.kept is not None:
            return set(range(200))
        k, told = self.k, isinstance(cell(self.report, "flow", "@in-import", "patients"), Count)
        if not told:
            return {n for n in range(200) if count(n, k) == said}
        by_total = (said_of(k, n, text=False, asked=False, rounded=self.report.recipient) for n in range(k, 110))
        return set().union(*(by_word.get(said, set()) for by_word in by_total))

    def _files(self) -> None:
        """Lines are patients: those of a file are a part of all, and the largest file has what the others leave."""
        shown = {str(row[0]): row for table in tables(self.report, "files") for row in table.rows}
        files, total = self.people.leaving.files, technical(self.all)
        apart = len(files) > 1 and any(file.lines != file.resources for file in files) and not self.report.recipient
        largest, names = max(file.patients for file in files), []
        for file in files:
            row = shown.get(file.name)
            name = f"{self.tag}file {file.name}"
            part = {n for n in range(self.k, 300) if row and technical(total * n // self.all) == row[3]}
            told = apart and row is not None and file.patients < largest
            self.puzzle.unknown(name, part if told else range(300), file.patients)
            names.append(name)
        self.puzzle.sums.append((tuple(names), f"{self.tag}N"))

    def _apart(self) -> None:
        if self.kept is not None:
            return
        k = self.k
        for row_name, years, region in (("@as-it-is", 1, True), ("@years-10", 10, True), ("@without-region", 1, False)):
            sizes = class_sizes(self.people, years=years, region=region)
            bands = size_bands(sizes, k)
            columns = dict(zip(bands, ("alone", "with_few", "with_some", "with_many"), strict=True))
            self.cells(row_name, bands, lambda band, c=columns, r=row_name: cell(self.report, "apart", r, c[band]))  # type: ignore[misc]
            few, some = f"{self.tag}{row_name} @with-few", f"{self.tag}{row_name} @with-some"
            self.puzzle.never(few, {1})
            self.puzzle.never(some, range(1, k))
            self.puzzle.never(f"{self.tag}{row_name} @with-many", range(1, max(10, 2 * k) + 1))
            if row_name == "@as-it-is":
                told = next((one.patients for one in self.report.findings if one.code == "told-apart"), None)
                both = self.learn("told apart", told, below_k(sizes, k))
                if told is None:
                    self.puzzle.unknown(both, {0}, below_k(sizes, k))
                self.puzzle.sums.append(((f"{self.tag}{row_name} @alone", few), both))

    def _flow(self) -> None:
        """Each figure around the number of patients is rounded, and differs from it by none or by k."""
        for figure, truth in self.people.around:
            said = cell(self.report, "flow", figure, "patients")
            name, lost = ("M", "lost") if figure == "@in-import" else (figure, f"less {figure}")
            name, lost = self.tag + name, self.tag + lost
            known = {n for n in range(200) if count(n, self.k) == said} if said != ALL else set(range(200))
            least, most = (0, 0) if said == ALL else (self.k, 200) if said != HIDDEN else (1, self.k - 1)
            if self.kept is not None or said == HIDDEN:
                known, least, most = set(range(200)), 0, 200
            self.puzzle.unknown(name, known, truth)
            self.puzzle.unknown(lost, range(least, most + 1), truth - self.all)
            self.puzzle.sums.append(((f"{self.tag}N", lost), name))
        for one in self.report.findings:
            if one.code in ("patients-fewer", "patients-lost") and one.patients is not None and self.kept is None:
                (imported,) = (n for name, n in self.people.around if name == "@in-import")
                known, _ = meant(one.patients, self.k, 200)
                self.puzzle.unknown(f"{self.tag}lost", known, imported - self.all)


def read(people: Population, k: int, *, recipient: bool = False, exact: bool = True) -> Puzzle:
    given = facts(people)
    puzzle = Puzzle()
    ReportReader(build(given, k=k, recipient=recipient), given, puzzle, exact=exact).everything()
    return puzzle


@pytest.mark.parametrize("k", [3, 5, 11])
def test_no_small_number_can_be_told_from_a_report(k: int) -> None:
    dice = random.Random(k)
    for size in (k, k + 1, 20, 60):
        puzzle = read(population(dice, size), k)
        assert puzzle.revealed(k) == []


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 5, 11])
@pytest.mark.parametrize("seed", range(8))
def test_no_small_number_can_be_told_from_any_report(k: int, seed: int) -> None:
    dice = random.Random(1000 * seed + k)
    for size in range(3, 61, 3):
        puzzle = read(population(dice, size), k, recipient=seed % 4 == 3 and k == 11)
        assert [name for name in puzzle.revealed(k) if name != "N"] == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_the_recipients_copy_tells_neither_a_small_number_nor_that_of_all_patients(seed: int) -> None:
    dice = random.Random(seed)
    for size in range(3 + seed, 61, 5) if seed else (8, 14, 27):
        puzzle = read(population(dice, size), 11, recipient=True, exact=False)
        assert puzzle.revealed(11) == []
        assert size < 11 or puzzle.only("N") == []


def test_the_solver_tells_what_can_be_told() -> None:
    puzzle = Puzzle()
    parts = {"a": (range(15, 18), 17), "b": (range(8, 13), 12), "c": (range(1, 5), 4), "N": ({33}, 33)}
    for name, (values, truth) in parts.items():
        puzzle.unknown(name, values, truth)
    puzzle.sums.append((("a", "b", "c"), "N"))
    assert puzzle.revealed(5) == ["c"]
    puzzle.domains["a"] |= 1 << 18
    assert puzzle.revealed(5) == []


MEASURED = range(4, 14)
"""Sections with figures of patients."""


def differing(
    dice: random.Random, size: int, k: int, *, recipient: bool = False
) -> list[tuple[ReleaseReport, ReportFacts]]:
    """Two reports of one query: in the second there is one patient more."""
    months = dice.choice(SPANS)
    first = population(dice, size, months)
    added = person(dice, months)
    one, other = facts(first), facts(Population([*first.before, added], [*first.after, added]))
    last = build(one, k=k, recipient=recipient)
    return [(last, one), (build(replace(other, last=last), k=k, recipient=recipient), other)]


@pytest.mark.parametrize("k", [3, 5, 11])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_nor_can_it_from_two_reports_that_differ_by_one_patient(k: int, seed: int) -> None:
    """The reader knows both numbers of patients. What was no alarm and is one now is the new patient's (R9)."""
    dice = random.Random(100 * seed + k)
    for size in (k, k + 1, dice.randint(k + 2, 4 * k), 4 * k, dice.randint(4 * k, 60)):
        (last, one), (report, other) = differing(dice, size, k)
        puzzle = Puzzle()
        ReportReader(last, one, puzzle, "1 ").everything()
        kept = [one for one in report.sections if "figures-kept" in one.said]
        ReportReader(report, other, puzzle, "2 ", last=last if kept else None).everything()
        for name in list(puzzle.truth):
            later = name.replace("1 ", "2 ", 1)
            if name.startswith("1 ") and later in puzzle.truth and "resources" not in name:
                more = puzzle.truth[later] - puzzle.truth[name]
                if more in (0, 1):
                    puzzle.unknown(f"more {name}", range(2), more)
                    puzzle.sums.append(((name, f"more {name}"), later))
        new = {
            name for name, truth in puzzle.truth.items() if name[:2] == "2 " and not puzzle.truth.get("1" + name[1:])
        }
        assert [name for name in puzzle.revealed(k) if name not in new and not name.startswith("more ")] == []


@pytest.mark.parametrize("recipient", [False, True])
@pytest.mark.parametrize("k", [3, 5, 11])
def test_where_one_patient_is_more_figures_and_rows_are_those_of_the_last_report(k: int, recipient: bool) -> None:
    dice = random.Random(k)
    for size in (*range(max(k, 11 * recipient), 60, 4),):
        (last, _), (report, _) = differing(dice, size, k, recipient=recipient)
        before = {one.number: one for one in last.sections}
        for section in report.sections:
            then = before.get(section.number)
            if section.number in MEASURED and then is not None:
                kept = [one for one in section.tables if one.name not in ("left", "flow")]
                assert kept == [one for one in then.tables if one.name not in ("left", "flow")]
        if recipient:
            assert report.tiles.patients == last.tiles.patients
            assert report.tiles.resources == last.tiles.resources
            assert 16 not in {one.number for one in report.sections}


def test_the_figures_of_a_file_whose_patients_nobody_could_count_are_not_shown() -> None:
    core, many, few = (
        MeasuredFile(name, 9, 9, 1, 1, patients, "") for name, patients in (("c", 0), ("m", 40), ("f", 0))
    )
    shown, others = split((core, many, few), 5)
    assert (shown, others) == ([core, few, many], [])
    shown, others = split((core, many, few), 5, {"f"})  # with it goes the smallest that is shown (R4)
    assert (shown, others) == ([core], [few, many])


def test_figures_that_moved_by_k_and_what_is_not_alike_are_those_of_now() -> None:
    dice = random.Random(1)
    first = facts(population(dice, 40))
    last = build(first, k=5)
    none = {**first.leaving.codes, "Condition.code": replace(first.leaving.codes["Condition.code"], codes={})}
    few = replace(first.leaving, types={name: of for name, of in first.leaving.types.items() if name == "Patient"})
    for second, numbers in (
        (replace(first, leaving=few), {5, 6}),
        (replace(first, leaving=replace(first.leaving, tables=True)), set(MEASURED)),
        (replace(first, imported=None), set(MEASURED)),
        (replace(first, leaving=replace(first.leaving, patients=45)), set(MEASURED)),
        (replace(first, leaving=replace(first.leaving, codes=none)), set()),
    ):
        report = build(replace(second, last=last), k=5)
        fresh = {one.number for one in report.sections if "figures-kept" not in one.said}
        assert fresh & set(MEASURED) == numbers


def test_alarms_of_section_7_are_those_of_now_however_alike_the_last_report_is() -> None:
    """R9: a path that is raw, an original id, contents that changed; each gone as it came."""
    calm = facts(population(random.Random(1), 40))
    path = "Encounter.period.start"
    raw = {**calm.leaving.dates, path: replace(calm.leaving.dates[path], raw=1)}
    ids = replace(calm.leaving.ids, kinds={**calm.leaving.ids.kinds, "original": 1})
    leaving = replace(calm.leaving, dates=raw, ids=ids, changed={"Condition.code.coding.code": 40})
    alarming = replace(calm, leaving=leaving)

    def alarms(report: ReleaseReport) -> list[Value]:
        moves, *_ = tables(report, "date_moves")
        changed = [row[0] for table in tables(report, "changed") for row in table.rows]
        original = cell(report, "ids", "@ids-original", "patients")
        return [moves.folded, cell(report, "date_moves", path, "days"), original, *changed]

    none = [True, "@days-moved", NONE]
    some = [False, "@days-raw", count(1, 5, of=40), "Condition.code.coding.code"]
    for first, second, expected in ((calm, alarming, some), (alarming, calm, none), (alarming, alarming, some)):
        report = build(replace(second, last=build(first, k=5)), k=5)
        assert "figures-kept" in section_of(report, 7).said
        assert alarms(report) == expected
    never = {name: replace(one, compared=0, same=0) for name, one in calm.leaving.dates.items()}
    last = build(replace(calm, leaving=replace(calm.leaving, dates=never)), k=5)
    assert alarms(build(replace(alarming, last=last), k=5)) == some
