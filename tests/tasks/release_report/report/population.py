"""Random patients, counted by code of its own as a measuring pass would count them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from config.report import ReportConfig
from tasks.release_report.measure.cells import Bounds, Cell
from tasks.release_report.measure.measured import (
    Codes,
    Dates,
    Ids,
    Measured,
    MeasuredFile,
    Numbers,
    Path,
    References,
    TypeCount,
)
from tasks.release_report.report.facts import Destination, ReportFacts, RulesSummary, Validated
from tasks.release_report.report.query import AskedAttribute, Criterion, EffectiveQuery, QueryGroup
from tasks.shared.report import StepReport

TYPES = ("Condition", "Observation", "Procedure", "Consent", "Device", "Encounter")
CODES = ("I10", "E11.9", "C50", "Z99")
SEXES = ("male", "female", "other")
REGIONS = ("04", "10", "80")
SPANS: tuple[dict[str, int], ...] = (
    {"2019-03": 1, "2020-03": 5, "2021-03": 9},
    {"2020-02": 4, "2020-03": 4, "2020-05": 7},
    {"2020-11": 6, "2021-01": 3, "2021-02": 3, "2021-05": 1},
    {"2020-05": 1},
)
"""Months of which all encounters, and conditions, of a population are, and how frequent they are."""
CLAIMED = ("http://p.example/a", "http://p.example/b", "http://p.example/c http://p.example/a", "", "valid")
"""Profiles of a resource that is found odd, of a patient's own."""
UNITS = ("mg/dL", "mmol/L")


@dataclass(frozen=True)
class Person:
    """One made-up patient: what is of her, each thing with how often."""

    file: str
    year: int
    sex: str
    region: str
    types: dict[str, int]
    codes: frozenset[str]
    paths: frozenset[str]
    encounter: str
    unit: str
    claims: str


@dataclass
class Population:
    """Patients in ``import/`` and those of them that leave."""

    before: list[Person] = field(default_factory=list)
    after: list[Person] = field(default_factory=list)


def person(dice: random.Random, months: Mapping[str, int] = SPANS[0]) -> Person:
    """Return a patient; some things are rare."""
    some = {name: dice.randint(1, 4) for name in TYPES if dice.random() < dice.choice((0.05, 0.3, 0.9))}
    return Person(
        file=dice.choices(("a", "b", "c"), (8, 3, 1))[0],
        year=dice.choice((1932, 1950, 1951, 1955, 1970, 1990)),
        sex=dice.choices(SEXES, (6, 6, 1))[0],
        region=dice.choice(REGIONS),
        types=some,
        codes=frozenset(code for code in CODES if dice.random() < 0.4),
        paths=frozenset(path for path in PATHS if dice.random() < PATHS[path][1]),
        encounter=dice.choices(tuple(months), tuple(months.values()))[0],
        unit=dice.choices(UNITS, (9, 1))[0],
        claims=dice.choices(CLAIMED, (6, 2, 1, 2, 4))[0],
    )


PATHS: dict[str, tuple[str, float]] = {
    "Patient.name.family": ("name", 0.1),
    "Patient.address.city": ("address-part", 0.9),
    "Patient.telecom.value": ("telecom", 0.02),
    "Patient.identifier.value": ("identifier", 0.5),
    "Condition.note.text": ("text", 0.2),
    "Condition.code.text": ("concept-text", 0.7),
    "Patient.deceasedDateTime": ("", 0.3),
}


def population(dice: random.Random, size: int, months: Mapping[str, int] | None = None) -> Population:
    """``size`` patients that leave; a few more, or none, were imported, and they had more."""
    months = months or dice.choice(SPANS)
    before = [person(dice, months) for _ in range(size + dice.choice((0, 0, 0, 1, 4, 7)))]
    after = []
    for one in before[:size]:
        kept = frozenset(path for path in sorted(one.paths) if dice.random() < 0.9)
        types = {name: n for name, n in one.types.items() if dice.random() < 0.95}
        after.append(Person(**{**one.__dict__, "paths": kept, "types": types}))
    return Population(before, after)


def measured(people: list[Person], folder: str = "pseudonymized", *, original: bool = False) -> Measured:
    """Return the exact numbers."""
    types: dict[str, TypeCount] = {"Patient": TypeCount(len(people), len(people))}
    for name in TYPES:
        have = [one.types[name] for one in people if name in one.types]
        if have:
            types[name] = TypeCount(sum(have), len(have))
    of: Counter[str] = Counter(path for one in people for path in sorted(one.paths))
    files: Counter[str] = Counter(one.file for one in people)
    resources = {name: sum(1 + sum(one.types.values()) for one in people if one.file == name) for name in files}
    codes = Counter(f"http://icd.example|{code}" for one in people for code in sorted(one.codes))
    coded = sum(bool(one.codes) for one in people)
    return Measured(
        files=tuple(
            MeasuredFile(f"{folder}/{name}.ndjson", 1000 + n, 2000 + n, n, resources[name], n, name * 64)
            for name, n in sorted(files.items())
        ),
        patients=len(people),
        types=types,
        paths={
            path: Path(n, PATHS[path][0], original=n if original or path.startswith("Patient.n") else 0)
            for path, n in of.items()
        },
        elements=dict(of),
        codes={
            "Condition.code": Codes(
                coded, codes, {code: f"about {code}" for code in codes}, dict(codes), {"http://icd.example": coded}
            ),
            "Patient.gender": Codes(len(people), Counter(f"|{one.sex}" for one in people)),
        },
        numbers={
            "Observation.valueQuantity.value": {
                "http://loinc.example|1": Numbers(len(people), Counter(one.unit for one in people), (1.0, 2.5, 3.25))
            }
        },
        dates={
            "Encounter.period.start": dates_of(people),
            "Condition.recordedDate": dates_of([one for one in people if "Condition" in one.types]),
        },
        references=References(5, 2, min(5, len(people)), min(2, len(people)), {"other.example": min(3, len(people))}),
        ids=Ids({"hashed": len(people)}),
        classes=Counter((str(one.year), one.sex, one.region) for one in people),
        statuses=Counter(f"Consent.status|{'active' if one.year < 1960 else 'inactive'}" for one in people),
        multiplicity={"Condition": (1.0, 2.0, 3.0)},
        above_89=sum(one.year < 1935 for one in people),
    )


def dates(months: list[str], compared: int = 0, same: int = 0) -> Dates:
    """Return one date a patient."""
    return Dates(
        len(months),
        Counter(month[:4] for month in months),
        Counter(quarter_of(month) for month in months),
        Counter(months),
        {"day": len(months)} if months else {},
        compared=compared,
        same=same,
    )


def dates_of(people: list[Person]) -> Dates:
    """The same. Dates of those of one region were not compared; those of patients born in some years are the same."""
    compared = [one.year for one in people if one.region != REGIONS[-1]]
    same = sum(year in (1951, 1990) for year in compared)
    return dates([one.encounter for one in people], len(compared), same)


def quarter_of(month: str) -> str:
    return f"{month[:5]}Q{(int(month[5:]) + 2) // 3}"


ODD = ("error", "Condition", "Odd_Code")
"""What the validation found, of one resource of a patient or none."""


def validated(people: list[Person]) -> Validated:
    """Return the findings of the validation by profile."""
    found: dict[str, Cell] = {}
    for number, one in enumerate(people):
        if one.claims != "valid":
            found.setdefault(one.claims, Cell()).add(number, Bounds())
    return Validated(3, {ODD: found})


QUERY = EffectiveQuery(
    title="hypertension",
    sha256="q" * 64,
    criteria=(Criterion(1, False, "Diagnose", "Hypertension", ("http://icd.example|I10",)),),
    groups=(
        QueryGroup("patients", "http://p.example", "Patient", (AskedAttribute("Patient.address.city", True),)),
        QueryGroup(
            "conditions", "http://c.example", "Condition",
            (AskedAttribute("Condition.code.text", True), AskedAttribute("Condition.note.text", False)),
        ),
        QueryGroup("encounters", "http://e.example", "Encounter", (AskedAttribute("Patient.deceasedDateTime", False),)),
    ),
)  # fmt: skip


def facts(people: Population, **more: Any) -> ReportFacts:
    """Return a job: extracted, pseudonymized, about to be sent."""
    arrived = len(people.before)
    details = {
        "cohort_patients": arrived + 3,
        "final_patients": arrived,
        "patient_exclusions": {"CONSENT": 2, "DIRECT_LOAD": 1, "CASCADING_DELETE": 0},
    }
    known: dict[str, Any] = {
        "job": "j",
        "project": "p",
        "made": "2026-01-01T00:00:00Z",
        "step": 3,
        "leaving": measured(people.after),
        "imported": measured(people.before, "import", original=True),
        "query": QUERY,
        "settings": ReportConfig(),
        "destination": Destination("direct_resource_load", "fhir.example", "/fhir", encrypted=True),
        "steps": (
            StepReport(position=1, name="extractor", state="completed", output="import", details=details),
            StepReport(position=2, name="pseudonymizer", state="completed", output="pseudonymized"),
            StepReport(position=3, name="validation", state="completed", findings=7, details={"findings": 7}),
        ),
        "validated": (validated(people.after),),
        "rules": RulesSummary("rules.yaml", "r" * 64, (("Patient.name", "redact"),), removes=True),
    }
    return ReportFacts(**(known | more))
