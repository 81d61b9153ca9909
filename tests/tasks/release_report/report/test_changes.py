"""Sections 7j and 7k (document 5): dates as in the hospital among shifted ones, birthdays, changes without a rule.

Made-up patients go through an honest service that shifts each one's dates, and then something is put back or changed.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.sandbox.data import ANONYMIZATION_RULES
from deployments.sandbox.pseudonymization.deidentify import DeIdentifier
from deployments.sandbox.pseudonymization.rulefile import read_rule_file
from tasks.release_report.page.page import html
from tasks.release_report.report.document import ReleaseReport
from tasks.release_report.report.rule_file import read_rules
from tasks.shared.report import StepReport
from tests.tasks.release_report.report.reporting import bundle, report_of

Json = dict[str, Any]
People = list[list[Json]]

SIZE = 24
SINCE = "http://x.example/since"
RULES = [
    ("Resource.id", "cryptoHash"), ("nodesByType('Reference').reference", "cryptoHash"), ("Patient.name", "redact"),
    ("Patient.birthDate", "redact"), ("nodesByType('date')", "dateShift"), ("nodesByType('dateTime')", "dateShift"),
    ("nodesByType('instant')", "dateShift"), ("Observation.code", "keep"),
]  # fmt: skip
DATED = [
    "Patient.deceasedDateTime", "Encounter.period.start", "Encounter.period.end", "Observation.effectiveDateTime",
    "Observation.issued", "Observation.component.valueDateTime", "Observation.contained.Specimen.receivedTime",
    "Condition.onsetDateTime", f"Condition.extension({SINCE}).valueDate", "Procedure.performedPeriod.start",
    "MedicationRequest.dosageInstruction.timing.event",
]  # fmt: skip


def people(size: int = SIZE, *, born: str = "") -> People:
    """Return the resources of some patients as they were imported."""
    dice = random.Random(7)
    return [person(number, dice, born or f"19{number + 20}-03-{number % 28 + 1:02}") for number in range(size)]


def person(number: int, dice: random.Random, born: str) -> list[Json]:
    def day() -> str:
        return (date(2015, 1, 15) + timedelta(days=dice.randrange(2_000))).isoformat()

    def one(kind: str, at: int, **elements: Any) -> Json:
        about = {"reference": f"Patient/p{number}"}
        return {"resourceType": kind, "id": f"{kind[:2]}{number}-{at}", "subject": about, **elements}

    def observed(at: int) -> Json:
        specimen = {"resourceType": "Specimen", "id": "s", "receivedTime": f"{day()}T07:00:00Z"}
        code = {"coding": [{"system": "http://loinc.org", "code": "718-7", "display": "Hemoglobin"}], "text": "Hb"}
        quantity = {"value": 7 + at, "unit": "g/dL", "system": "http://unitsofmeasure.org", "code": "g/dL"}
        return one(
            "Observation", at, status="final", code=code, effectiveDateTime=f"{day()}T10:30:00+01:00",
            issued=f"{day()}T10:31:00.5Z", valueQuantity=quantity, contained=[specimen],
            component=[{"valueDateTime": day()}, {"valueBoolean": True}, {"valueString": "seen"}],
            referenceRange=[{"low": {"value": "NUMBER", "unit": "g/dL"}}],
        )  # fmt: skip

    return [
        {"resourceType": "Patient", "id": f"p{number}", "birthDate": born, "deceasedDateTime": day(),
         "name": [{"family": "Meyer"}], "meta": {"lastUpdated": "2026-01-01T00:00:00Z"}},
        *(one("Encounter", at, status="finished", period={"start": day(), "end": day()}) for at in range(2)),
        *map(observed, range(3)),
        one("Condition", 0, onsetDateTime=day(), extension=[{"url": SINCE, "valueDate": day()}]),
        one("Procedure", 0, status="completed", performedPeriod={"start": day()}),
        one("MedicationRequest", 0, dosageInstruction=[{"timing": {"event": [day(), day()]}}]),
        {"resourceType": "Provenance", "id": f"r{number}", "recorded": "2026-02-03T04:05:06Z"},
    ]  # fmt: skip


def walked(value: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield every leaf: its path, what holds it, and its key there."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        below = f"{path}.{key}" if isinstance(value, dict) else path
        below += f"({one['url']})" if isinstance(one, dict) and "url" in one else ""
        below += f".{one['resourceType']}" if isinstance(one, dict) and "resourceType" in one else ""
        if isinstance(one, (dict, list)):
            yield from walked(one, below)
        else:
            yield below, value, key


def holders_by_path(resource: Json) -> dict[str, list[tuple[Any, Any]]]:
    found: dict[str, list[tuple[Any, Any]]] = {}
    for path, holder, key in walked(resource, resource["resourceType"]):
        name = path if not isinstance(key, int) else path.rstrip(".")
        found.setdefault(name.replace(".extension(", ".extension("), []).append((holder, key))
    return found


def moved(text: str, days: int) -> str:
    return (date.fromisoformat(text[:10]) + timedelta(days=days)).isoformat() + text[10:]


def honest(imported: People, shift: Callable[[int, int], int]) -> People:
    """Return the answer of an honest service; ``shift`` has the days by patient and resource."""
    out = copy.deepcopy(imported)
    for number, resources in enumerate(out):
        for at, resource in enumerate(resources):
            for path, places in holders_by_path(resource).items():
                for holder, key in places:
                    if path in DATED:
                        holder[key] = moved(holder[key], shift(number, at))
                    elif path.endswith((".id", ".reference")):
                        head, slash, own = holder[key].rpartition("/")
                        holder[key] = f"{head}{slash}h{own}"
            resource.pop("name", None)
            if "birthDate" in resource:
                resource["birthDate"] = resource["birthDate"][:4]
    return out


def own(number: int, _: int = 0) -> int:
    """Return a shift of each patient's own; one has none by chance."""
    return (number * 37) % 101 - 37


def written(folder: Path, given: People, form: str) -> list[Path]:
    """Return the files: a Bundle a patient, or a resource a line."""
    folder.mkdir()
    if form == "bundles":
        lines = {"a": [bundle(*some) for some in given]}
    else:
        lines = {}
        for one in (one for some in given for one in some):
            lines.setdefault(one["resourceType"], []).append(one)
    for name, some in lines.items():
        text = "".join(json.dumps(line) + "\n" for line in some).replace('"NUMBER"', "1.50")
        (folder / f"{name}.ndjson").write_text(text.replace('"OTHER NUMBER"', "1.5"))
    return sorted(folder.iterdir())


def made(place: Path, imported: People, leaving: People, form: str = "bundles", **more: Any) -> ReleaseReport:
    rules = [{"path": path, "method": method} for path, method in more.pop("rules", RULES) or ()]
    (place / "rules.yaml").write_text(yaml.safe_dump({"fhirPathRules": rules}))
    step = StepReport(position=2, name="pseudonymizer", state="completed", output="out")
    path = place / "rules.yaml"
    known: dict[str, Any] = {"steps": (step,), "rules": read_rules(path) if rules else None}
    files = [written(place / name, people, form) for name, people in (("out", leaving), ("import", imported))]
    return report_of(place, *files, **(known | more))


def found(report: ReleaseReport, level: str = "stop") -> list[tuple[str, str]]:
    return sorted((one.code, one.about) for one in report.findings if one.level == level)


def rows_by_name(report: ReleaseReport, name: str) -> dict[Any, Any]:
    """Return the rows of a table of section 7 by their first column."""
    return {row[0]: row[1:] for row in report.rows(name)}


FORMS = pytest.mark.parametrize("form", ["bundles", pytest.param("lines", marks=pytest.mark.slow)])
WHOM = pytest.mark.parametrize("whom", [[3], range(0, SIZE, 2), range(SIZE)], ids=["one", "half", "all"])


@FORMS
@pytest.mark.parametrize("shift", [own, lambda *_: 11, lambda *_: 0], ids=["own", "one for all", "none"])
def test_an_honest_service_changes_no_dates_and_contents_that_are_stops(
    tmp_path: Path, form: str, shift: Callable[[int, int], int]
) -> None:
    imported = people()
    result = made(tmp_path, imported, honest(imported, shift), form)
    still = shift(0, 0) == 0
    left = [("original-left", "Patient.deceasedDateTime")] if still else []  # a date of a person (7b)
    assert found(result) == left
    names = {one.code for one in result.findings}
    assert not names & {"birthday-event", "shift-told"}
    states = rows_by_name(result, "date_moves")
    word = "@days-same" if still else "@days-moved"
    assert {states[path][-1] for path in DATED} == {word}


@FORMS
@WHOM
@pytest.mark.parametrize("path", DATED)
def test_one_path_as_in_the_hospital_among_shifted_ones_is_a_stop(
    tmp_path: Path, path: str, whom: range, form: str
) -> None:
    imported = people()
    leaving = honest(imported, own)
    for number in whom:
        for before, after in zip(imported[number], leaving[number], strict=True):
            for (there, at), (here, key) in zip(
                holders_by_path(before).get(path, []), holders_by_path(after).get(path, []), strict=True
            ):
                here[key] = there[at]
    report = made(tmp_path, imported, leaving, form)
    original = [("original-left", path)] if path.startswith("Patient.") else []
    assert found(report) == [("dates-raw", path), *original]
    assert rows_by_name(report, "date_moves")[path][-1] == "@days-raw"
    [stop] = [one for one in report.findings if one.code == "dates-raw"]
    assert stop.patients is not None
    assert stop.patients.word == ("fewer" if len(whom) == 1 else "about")
    assert path in html(report).replace("<wbr>", "")


def put(resources: list[Json], path: str, value: Any) -> bool:
    """Put a value in the first place of a path; whether there is one."""
    for resource in resources:
        for holder, key in holders_by_path(resource).get(path, [])[:1]:
            holder[key] = value
            return True
    return False


def test_what_is_kept_on_purpose_is_looked_at(tmp_path: Path) -> None:
    imported = people()
    leaving = honest(imported, own)
    for before, after in zip(imported, leaving, strict=True):
        put(after, "Encounter.period.start", before[1]["period"]["start"])
    kept = made(tmp_path, imported, leaving, kept=("Encounter.period",))
    assert found(kept) == []
    assert ("kept-on-purpose", "Encounter.period.start") in found(kept, "look")


BORN = {
    "Observation.valueString": ["{0}", "{2}.{1}.{3}", "{3}{1}{2}"], "Encounter.period.end": ["{0}", "{0}T00:00:00Z"],
    "Observation.issued": ["{0}T23:59:59.000Z"], f"Condition.extension({SINCE}).valueDate": ["{0}"],
    "Observation.component.valueString": ["{1}/{2}/{3}"], "MedicationRequest.dosageInstruction.timing.event": ["{0}"],
}  # fmt: skip


@FORMS
@pytest.mark.parametrize("born", ["", "1961-04-17"], ids=["of her own", "shared"])
@pytest.mark.parametrize("shift", [own, pytest.param(lambda *_: 0, marks=pytest.mark.slow)], ids=["own", "none"])
@pytest.mark.parametrize(("path", "spelled"), [(path, one) for path, some in BORN.items() for one in some])
def test_a_birthday_in_any_date_of_the_patient_is_a_stop(
    tmp_path: Path, path: str, spelled: str, shift: Callable[[int, int], int], born: str, form: str
) -> None:
    imported = people(born=born)
    for resources in imported:
        resources[5]["valueString"] = "nothing"
    leaving = honest(imported, shift)
    day = imported[3][0]["birthDate"]
    year, month, at = day.split("-")
    assert put(leaving[3], path, spelled.format(day, month, at, year))
    report = made(tmp_path, imported, leaving, form)
    stops = found(report)
    codes = {code for code, about in stops if about == path}
    # A rare one in a text is an original value.
    text = path.endswith("String")
    assert codes & {"birthday-left", "original-left"}
    assert codes <= {"birthday-left", "original-left"}
    assert {about for _, about in stops} - {"Patient.deceasedDateTime"} == {path}
    assert text or "birthday-left" in codes
    assert day not in report.model_dump_json() + html(report)


def test_a_birthday_made_by_chance_or_shared_with_another_patient_is_no_stop(tmp_path: Path) -> None:
    imported = people()
    for number, resources in enumerate(imported):
        born = resources[0]["birthDate"]
        resources[1]["period"]["start"] = moved(born, -own(number)) if own(number) else born
        put(
            resources,
            "Procedure.performedPeriod.start",
            moved(imported[(number + 1) % SIZE][0]["birthDate"], -own(number)),
        )
    report = made(tmp_path, imported, honest(imported, own))
    assert found(report) == []


def test_a_birth_during_a_stay_is_looked_at_where_dates_are_not_shifted(tmp_path: Path) -> None:
    imported = people()
    imported[3][1]["period"]["start"] = imported[3][0]["birthDate"]
    report = made(tmp_path, imported, honest(imported, lambda *_: 0))
    assert ("birthday-event", "Encounter.period.start") in found(report, "look")
    assert {code for code, _ in found(report)} == {"original-left"}


@pytest.mark.parametrize("rule", ["year", "month", "first of the year", "first of the month"])
def test_dates_of_which_a_rule_leaves_the_year_or_the_month_are_not_compared(tmp_path: Path, rule: str) -> None:
    imported = people()
    imported[5][1]["period"]["start"] = "2016-03-01"
    leaving = honest(imported, own)
    ends = {"year": (4, ""), "month": (7, ""), "first of the year": (4, "-01-01"), "first of the month": (7, "-01")}
    size, end = ends[rule]
    for before, after in zip(imported, leaving, strict=True):
        for at in (1, 2):
            after[at]["period"]["start"] = before[at]["period"]["start"][:size] + end
    report = made(tmp_path, imported, leaving)
    assert found(report) == []
    assert rows_by_name(report, "date_moves")["Encounter.period.start"][-1] == "@days-uncompared"


def test_the_moment_of_the_extraction_tells_no_shift_where_it_stays(tmp_path: Path) -> None:
    imported = people()
    for resources in imported:
        put(resources, "Observation.issued", "2026-02-03T04:05:06Z")
        for resource in resources:
            if resource["resourceType"] == "Observation":
                resource["issued"] = "2026-02-03T04:05:06Z"
    leaving = honest(imported, own)
    for before, after in zip(imported, leaving, strict=True):
        for then, now in zip(before, after, strict=True):
            if "issued" in then:
                now["issued"] = then["issued"]
    assert found(made(tmp_path, imported, leaving)) == []


@pytest.mark.parametrize("raw", [False, True])
def test_where_each_resource_has_a_shift_a_path_is_told_by_its_share(tmp_path: Path, raw: bool) -> None:
    dice = random.Random(3)
    shifts = {(number, at): dice.randint(-50, 50) for number in range(60) for at in range(20)}
    imported = people(60)
    leaving = honest(imported, lambda number, at: shifts[number, at])
    if raw:
        for before, after in zip(imported, leaving, strict=True):
            put(after, "Procedure.performedPeriod.start", before[7]["performedPeriod"]["start"])
    report = made(tmp_path, imported, leaving, "lines")
    assert found(report) == ([("dates-raw", "Procedure.performedPeriod.start")] if raw else [])


def test_patients_without_a_shift_are_too_many_to_have_drawn_none(tmp_path: Path) -> None:
    imported = people()
    report = made(tmp_path, imported, honest(imported, lambda number, _: own(number) if number % 2 else 0))
    assert {("dates-raw", path) for path in DATED} <= set(found(report))


@pytest.mark.parametrize("raw", [False, True])
def test_dates_of_resources_that_a_rule_removed_are_compared_as_a_set(tmp_path: Path, raw: bool) -> None:
    imported = people()
    dice = random.Random(5)
    for number, resources in enumerate(imported):
        days = [(date(2016, 1, 1) + timedelta(days=day)).isoformat() for day in range(80)]
        resources += [
            {"resourceType": "Immunization", "id": f"I{number}-{at}", "patient": {"reference": f"Patient/p{number}"},
             "occurrenceDateTime": day} for at, day in enumerate(days)
        ]  # fmt: skip
    leaving = honest(imported, own)
    for number, (before, after) in enumerate(zip(imported, leaving, strict=True)):
        for then, now in zip(before, after, strict=True):
            if "occurrenceDateTime" in then:
                now["occurrenceDateTime"] = moved(then["occurrenceDateTime"], 0 if raw else own(number))
        some = dice.sample(range(40, 70), 9)
        after[:] = [one for one in after if "occurrenceDateTime" not in one or int(one["id"].partition("-")[2]) in some]
    report = made(tmp_path, imported, leaving, rules=[*RULES, ("Immunization", "remove")])
    assert found(report) == ([("dates-raw", "Immunization.occurrenceDateTime")] if raw else [])


FULL = [
    ("nodesByType('Extension')", "redact"), ("nodesByType('CodeableConcept').text", "redact"),
    ("nodesByType('string')", "redact"), ("Encounter.period", "remove"), ("Observation.component", "redact"),
    ("Patient.deceased", "redact"),
]  # fmt: skip


@pytest.mark.parametrize("more", [[], FULL], ids=["demo", "full"])
def test_the_sandboxs_service_with_the_demos_rules_and_with_more_is_honest(
    tmp_path: Path, more: list[tuple[str, str]]
) -> None:
    """No stop of these sections. Two of these Bundles, 154 and 181, draw a shift of no days."""
    document = yaml.safe_load(ANONYMIZATION_RULES.read_text())
    document["fhirPathRules"][:0] = [{"path": path, "method": method} for path, method in more]
    engine = DeIdentifier(read_rule_file(yaml.safe_dump(document, sort_keys=False).encode()))
    imported = people(60)
    leaving = []
    for number, resources in enumerate(imported):
        entries = [{"resource": copy.deepcopy(one)} for one in resources]
        sent: Any = {"resourceType": "Bundle", "id": f"b{number + 140}", "type": "collection", "entry": entries}
        answer: Any = engine.process(sent)
        leaving.append([entry["resource"] for entry in answer["entry"]])
    rules = [(rule["path"], rule["method"]) for rule in document["fhirPathRules"]]
    result = made(tmp_path, imported, leaving, rules=rules)
    ours = {"dates-raw", "birthday-left", "birthday-event"}
    assert not ours & {one.code for one in result.findings}
