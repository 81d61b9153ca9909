"""Section 1 (document 5): stops, looks and notes, and that none quotes the data (promises 3 and 4)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest

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
from tasks.release_report.page.page import html
from tasks.release_report.page.words import Words
from tasks.release_report.publication import ALL, SOME, Count
from tasks.release_report.report.build import build
from tasks.release_report.report.document import ReleaseReport, ReportFinding
from tasks.release_report.report.facts import (
    Corrected,
    Destination,
    ReportFacts,
    RulesSummary,
    Validated,
    is_private,
)
from tasks.release_report.report.query import CONSENT, AskedAttribute, Criterion, EffectiveQuery, QueryGroup
from tasks.shared.report import StepReport
from tests.tasks.release_report.report.population import QUERY, facts, population
from tests.tasks.release_report.report.reporting import facts_in, section_of, table_of

FEWER = Count(word="fewer", number=5)
SIZE = 40


def clean(**more: Any) -> ReportFacts:
    """Return a delivery without findings."""
    files = (MeasuredFile("pseudonymized/core.ndjson", 10, 10, SIZE, SIZE, SIZE, "0" * 64),)
    measured = Measured(
        files=files,
        patients=SIZE,
        types={"Patient": TypeCount(SIZE, SIZE), "Condition": TypeCount(90, SIZE), "Provenance": TypeCount(3, 0, 3)},
        paths={"Condition.recordedDate": Path(SIZE)},
        ids=Ids({"hashed": SIZE}),
        classes={("1950", "female", "04"): 20, ("1960", "male", "04"): 20},
    )
    given: dict[str, Any] = {
        "leaving": measured,
        "imported": replace(measured, ids=Ids({"sequential": SIZE, "original": SIZE})),
        "query": replace(QUERY, groups=QUERY.groups[:2]),
        "steps": (StepReport(position=2, name="pseudonymizer", state="completed", output="pseudonymized"),),
    }
    return facts(population(random.Random(1), SIZE), **(given | more))


def found(given: ReportFacts, level: str | None = None) -> list[ReportFinding]:
    return [one for one in build(given, k=5).findings if level in (None, one.level)]


def codes(given: ReportFacts, level: str | None = None) -> list[str]:
    return [one.code for one in found(given, level)]


def with_sent(given: ReportFacts, **more: Any) -> ReportFacts:
    return replace(given, leaving=replace(given.leaving, **more))


def with_path(path: str, at: Path) -> ReportFacts:
    given = clean()
    return with_sent(given, paths={**given.leaving.paths, path: at})


def test_a_clean_delivery_has_no_stop() -> None:
    assert codes(clean(), "stop") == []
    assert build(clean(), k=5).tiles.stops == 0


@pytest.mark.parametrize(("patients", "said"), [(1, FEWER), (5, Count(word="about", number=5)), (SIZE, ALL)])
@pytest.mark.parametrize("path", [
    "Patient.name.family", "Patient.contact.address.line", "Observation.contained.Patient.telecom.value",
    "Patient.extension(http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName).valueString",
])  # fmt: skip
@pytest.mark.parametrize(("kind", "original"), [("name", 0), ("name", 1), ("", 1), ("identifier", 1), ("narrative", 0)])
def test_what_is_left_is_a_stop_with_path_and_kind(
    path: str, patients: int, said: Count, kind: str, original: int
) -> None:
    given = with_path(path, Path(patients, kind, original=original * patients))
    given = with_sent(given, extensions={"http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName": SIZE})
    (stop,) = found(given, "stop")
    assert stop.code == ("original-left" if original else "identifying-left")
    assert stop.about == path
    assert stop.patients == said
    assert stop.values["kind"] == (f"@kind-{kind}" if kind else "@kind-value")


def test_all_fields_without_a_rule_are_in_the_document_those_of_persons_first() -> None:
    """The rule that was forgotten is found, however many paths begin with another letter."""
    given = clean()
    many = {f"Account.extension(http://x.example/{n}).valueBoolean": Path(SIZE) for n in range(80)}
    handled = ("Condition.id", "Condition.subject.reference", "Patient.name.family", "Patient.birthDate")
    paths = {**many, **{path: Path(SIZE) for path in (*handled, "Patient.maritalStatus.coding.code")}}
    rules = ("Resource.id", "nodesByType('Reference').reference", "nodesByName('family')", "nodesByType('date')")
    given = replace(
        with_sent(given, paths=paths),
        rules=RulesSummary("r", "0" * 64, tuple((path, "redact") for path in rules)),
    )
    for k in (5, 11):
        table = table_of(build(given, k=k), "unspoken")
        assert [row[0] for row in table.rows] == ["Patient.maritalStatus.coding.code", *sorted(many)]
        assert not table.withheld
    page = html(build(given, k=5)).replace("<wbr>", "")
    assert "Patient.maritalStatus.coding.code" in page
    assert "21 more rows are in release-report.json." in page


@pytest.mark.parametrize("asks", [False, True])
def test_where_the_query_asks_for_no_consent_nobody_is_said_to_have_it(asks: bool) -> None:
    details = {
        "patient_exclusions": {"CONSENT": 0, "DIRECT_LOAD": 20},
        "resource_exclusions": {"Condition": {"MustHave": 10}},
    }
    step = StepReport(position=1, name="extractor", state="completed", output="import", details=details)
    consent = (Criterion(1, False, CONSENT, "MDAT", ()),) if asks else ()
    query = replace(QUERY, criteria=(*QUERY.criteria, *consent))
    said = "@not-checked" if not asks else Count(word="none")
    for k in (5, 11):
        report = build(replace(clean(), steps=(step,), query=query), k=k)
        assert ("@stage-consent", said) in report.rows("excluded")
        shown = facts_in(report, 5)
        assert (shown["patients_without_permit"], shown["resources_outside_permit"]) == (said, said)
    some = {"patient_exclusions": {"CONSENT": 10, "DIRECT_LOAD": 20}}  # a server that looks for it all the same
    step = step.model_copy(update={"details": some})
    shown = facts_in(build(replace(clean(), steps=(step,), query=query, outside_patients=0), k=5), 5)
    assert shown["patients_without_permit"] == Count(word="about", number=10)
    assert "patients_outside_permit" not in shown  # no resources stand above it


@pytest.mark.parametrize("language", ["en", "de"])
def test_what_a_stop_does_is_said_where_nobody_is_asked_and_only_there(language: str) -> None:
    words = Words(language, 5)

    def last(**more: Any) -> tuple[tuple[str, ...], dict[str, str]]:
        report = build(replace(clean(), **more), k=5)
        return section_of(report, 17).said, {name: words.value(one) for name, one in facts_in(report, 17).items()}

    assert last(decides=True) == ((), {"reviewers": "1"})
    assert last(destination=None) == ((), {"reviewers": "1"})
    for on_stop in ("tell", "fail"):
        said, shown = last(settings=ReportConfig(on_stop=on_stop))
        assert said == ("nobody-asked",)
        assert list(shown) == ["on_stop"]
        holds = "sent all the same" if language == "en" else "hält die Daten nicht zurück"
        assert (holds in shown["on_stop"]) is (on_stop == "tell")


LANGUAGES: tuple[Literal["en", "de"], ...] = ("en", "de")


@pytest.mark.parametrize("recipient", [False, True])
def test_r1_a_total_is_the_sum_of_the_printed_parts_and_both_are_marked_as_rounded(recipient: bool) -> None:
    """35 of 15 and 15 would be 17 and 16, or 18."""
    types = {"Patient": TypeCount(SIZE, SIZE), "Condition": TypeCount(62, 33), "Encounter": TypeCount(61, 31)}
    file = MeasuredFile("pseudonymized/core.ndjson", 10, 10, SIZE, 163, SIZE, "0" * 64)
    files = (replace(file, resources=80), replace(file, name="pseudonymized/batch-1.ndjson", resources=83, patients=20))
    for given in (with_sent(clean(), types=types, files=(file,)), with_sent(clean(), types=types, files=files)):
        report = build(given, k=5, recipient=recipient)
        tables = {one.name: one for part in report.sections for one in part.tables}
        resources = sum(row[3] for row in tables["types"].rows if isinstance(row[3], int))
        assert resources == (150 if recipient else 160)
        assert sum(row[4] for row in tables["files"].rows if isinstance(row[4], int)) == resources
        assert report.tiles.resources == resources
        assert [name for name, one in tables.items() if one.rounded] == ["files", "types"]
        for language, said in zip(LANGUAGES, ("sum of the rounded numbers", "die der gerundeten Zahlen"), strict=True):
            assert html(report.model_copy(update={"language": language})).count(said) == 2


def test_a_future_date_is_said_in_the_section_that_the_finding_leads_to() -> None:
    given = with_sent(clean(), dates={"Condition.recordedDate": Dates(SIZE, future=SIZE)})
    page = html(build(given, k=5))
    section = page.partition('<div class="body" id="s11">')[2].partition("</details>")[0]
    assert "<code>Condition.recordedDate</code> has dates in the future." in section
    assert 'href="#s11"' in page.partition('id="s2"')[0]
    assert 'href="#s11"' not in section
    assert page.count("<code>Condition.recordedDate</code> has dates in the future.") == 2


@pytest.mark.parametrize("counted", [("Patient.birthDate", "Patient.gender"), ReportConfig().quasi_identifiers])
@pytest.mark.parametrize("region", ["", "04"])
def test_rows_about_the_region_stand_where_there_is_one(region: str, counted: tuple[str, ...]) -> None:
    given = with_sent(clean(), classes={("1950", "female", region): 20, ("1960", "male", ""): 20})
    report = build(replace(given, settings=ReportConfig(quasi_identifiers=counted)), k=5)
    rows = {row[0] for row in report.rows("apart")}
    there = bool(region) and len(counted) == 3
    assert ("@without-region" in rows) is ("@years-10-without-region" in rows) is there
    assert ("region_prefix" in facts_in(report, 8)) is there
    assert {"@as-it-is", "@years-5", "@years-10"} <= rows


def test_who_receives_the_data_stands_in_the_tile_of_the_destination() -> None:
    given = replace(clean(), settings=ReportConfig(recipient="Institut für <Herz>"))
    page = html(build(given, k=5))
    tiles = page.partition('<ul class="tiles"')[2].partition("</ul>")[0]
    assert "for Institut für &lt;Herz&gt;" in tiles
    assert ">for " not in html(build(clean(), k=5)).partition('<ul class="tiles"')[2].partition("</ul>")[0]


@pytest.mark.parametrize(("language", "some"), [*zip(LANGUAGES, ("“some” means", "„einige“ heißt"), strict=True)])
def test_what_some_and_a_dash_mean_is_said_in_section_18(language: Literal["en", "de"], some: str) -> None:
    page = html(build(replace(clean(), settings=ReportConfig(language=language)), k=5))
    last = page.partition('id="s18"')[2]
    assert some in last
    assert "“–”" in last or "„–“" in last


def test_what_is_left_of_nobody_is_a_stop_too() -> None:
    given = with_path("Practitioner.name.family", Path(0, "name", nobody=3, original_nobody=3))
    (stop,) = found(given, "stop")
    assert (stop.code, stop.patients) == ("original-left", None)


def test_a_value_that_differs_from_the_inputs_is_no_stop_if_it_is_an_identifier() -> None:
    given = with_path("Patient.identifier.value", Path(SIZE, "identifier"))
    assert codes(given, "stop") == []
    assert codes(given, "note") == [*codes(clean(), "note"), "identifier-replaced"]
    assert codes(replace(given, imported=None), "stop") == ["identifier-unchecked"]


def test_what_is_kept_on_purpose_is_looked_at() -> None:
    given = with_path("Practitioner.name.family", Path(0, "name", nobody=3))
    kept = replace(given, kept=("Practitioner.name",))
    assert codes(kept, "stop") == []
    assert "kept-on-purpose" in codes(kept, "look")


@pytest.mark.parametrize(("change", "code"), [
    ({"types": {"Claim": TypeCount(1, 1)}}, "type-not-asked"),
    ({"references": References(hosts={"hospital.example": 1})}, "foreign-reference"),
    ({"unread": {"pseudonymized/core.ndjson": "cut off"}}, "file-unread"),
    ({"ids": Ids({"original": 1})}, "original-ids"),
    ({"ids": Ids({"hashed": SIZE}, referred=1)}, "original-ids-referred"),
    ({"patients": SIZE + 1}, "patients-gained"),
])  # fmt: skip
def test_each_is_a_stop(change: Mapping[str, Any], code: str) -> None:
    assert codes(with_sent(clean(), **change), "stop") == [code]


@pytest.mark.parametrize(("change", "code"), [
    ({"references": References(dangling=1, dangling_patients=1)}, "dangling-reference"),
    ({"ids": Ids({"hashed": SIZE}, 1, 1)}, "duplicates"),
    ({"date_shifts": {0: SIZE}}, "dates-not-shifted"),
    ({"date_shifts": {17: SIZE}}, "one-shift"),
    ({"above_89": 1}, "above-89"),
    ({"classes": {("1950", "female", "04"): 1, ("1960", "male", "04"): SIZE - 1}}, "told-apart"),
    ({"dates": {"Condition.recordedDate": Dates(SIZE, future=1)}}, "future-date"),
    ({"dates": {"Condition.recordedDate": Dates(SIZE, before_birth=1)}}, "before-birth"),
    ({"numbers": {"Observation.valueQuantity": {"l|1": Numbers(SIZE, {"mg": 20, "g": 20})}}}, "several-units"),
    *(({"paths": {"Condition.note.text": Path(9, kind)}}, "free-text") for kind in ("text", "device")),
    ({"paths": {"Condition.note.text": Path(9, "concept-text")}}, "texts-beside-codes"),
    ({"paths": {"Condition.note.text": Path(9, "display")}}, "texts-beside-codes"),
    ({"paths": {"Condition.note.text": Path(9, "address-part")}}, "address-part"),
])  # fmt: skip
def test_each_is_looked_at(change: Mapping[str, Any], code: str) -> None:
    given = with_sent(clean(), **change)
    assert codes(given, "stop") == []
    assert code in codes(given, "look")


@pytest.mark.parametrize(("compared", "said"), [
    (("Patient.birthDate", "Patient.gender", "Patient.address.postalCode"), "birth year, sex and region"),
    (("Patient.gender", "Patient.birthDate"), "birth year and sex"),
    (("Patient.address.postalCode",), "region"),
])  # fmt: skip
def test_who_can_be_told_apart_is_said_with_what_is_compared(compared: tuple[str, ...], said: str) -> None:
    given = with_sent(clean(), classes={("1950", "female", "04"): 1, ("1960", "male", "05"): SIZE - 1})
    given = replace(given, settings=ReportConfig(quasi_identifiers=compared))
    (one,) = (one for one in found(given) if one.code == "told-apart")
    sentence = "".join(piece.text for piece in Words("en", 5).finding(one))
    assert f"with the same {said} have fewer" in sentence


@pytest.mark.parametrize(("before", "after", "told"), [
    ({"2026-03": SIZE}, {"2025-11": 9, "2026-01": SIZE - 9}, True),  # the moment of an extraction, moved
    ({"2026-03": SIZE}, {"2026-03": SIZE}, False),  # kept
    ({"2026-03": SIZE}, {}, False),  # removed
    ({"2026-03": 1}, {"2026-01": 1}, False),
    ({"2025-03": 9, "2026-03": 9}, {"2025-02": 9, "2026-01": 9}, False),
])  # fmt: skip
def test_dates_that_were_the_same_for_everybody_tell_the_shift(
    before: dict[str, int], after: dict[str, int], told: bool
) -> None:
    path = "Provenance.recorded"
    given = with_sent(clean(), date_shifts={17: 9, -3: SIZE - 9}, dates={path: Dates(SIZE, months=after)})
    assert given.imported is not None
    given = replace(given, imported=replace(given.imported, dates={path: Dates(SIZE, months=before)}))
    looks = [one.about for one in found(given) if one.code == "shift-told"]
    assert looks == ([path] if told else [])
    for shifts in ({17: SIZE}, {0: SIZE}):  # said otherwise: one for all, or none
        assert "shift-told" not in codes(with_sent(given, date_shifts=shifts), "look")


def dated(*paths: str, **found: int) -> dict[str, Any]:
    return {"dates": {path: Dates(SIZE, **found) for path in paths}}


@pytest.mark.parametrize(("change", "names"), [
    *(({"date_shifts": shifts}, {"dates-not-shifted", "one-shift"}) for shifts in ({}, {0: 1}, {17: 1}, {0: 9, 17: 1})),
    (dated("Goal.target.dueDate", "Condition.period.end", "Slot.start", future=1), {"future-date"}),
    (dated("FamilyMemberHistory.bornDate", "Device.manufactureDate", before_birth=1), {"before-birth"}),
])  # fmt: skip
def test_what_few_tell_of_the_shift_what_is_planned_and_what_is_older_is_no_look(
    change: Mapping[str, Any], names: set[str]
) -> None:
    assert not names & set(codes(with_sent(clean(), **change)))


def test_patients_that_are_fewer_need_a_reason() -> None:
    fewer = with_sent(clean(rules=None), patients=SIZE - 1)
    assert codes(fewer, "stop") == ["patients-lost"]
    assert "patients-fewer" in codes(replace(fewer, corrected=(Corrected("a.ndjson"),)), "look")


@pytest.mark.parametrize(("to", "level", "code"), [
    (Destination("m", "fhir.example", encrypted=False), "stop", "unencrypted"),
    (Destination("m", "10.1.2.3:8080", encrypted=False, private=True), "look", "unencrypted-private"),
    (Destination("m", "fhir.example", encrypted=True, first_time=True), "look", "first-time"),
])  # fmt: skip
def test_the_way_is_looked_at(to: Destination, level: str, code: str) -> None:
    assert code in codes(clean(destination=to), level)


def test_private_addresses_are_those_that_only_a_local_network_knows() -> None:
    assert all(map(is_private, ("10.1.2.3", "192.168.0.1", "localhost", "fhir", "[::1]", "store.local")))
    assert not any(map(is_private, ("8.8.8.8", "fhir.example.org")))


def test_without_a_stop_the_first_section_says_what_was_not_checked() -> None:
    first = build(clean(), k=5).sections[0]
    assert first.number == 1
    assert "unread-text" in first.said


def test_fewer_than_k_patients_leave_alarms_and_where_to_alone() -> None:
    given = with_sent(clean(), patients=3, paths={"Patient.name.family": Path(1, "name")})
    report = build(given, k=5)
    assert report.tiles.patients == FEWER
    stops = [one for one in report.findings if one.code == "identifying-left"]
    assert [one.patients for one in stops] == [FEWER]
    for section in report.sections:
        if section.number in (4, 6, 8, 9, 10, 11, 12):
            assert section.said == ("too-few",)
            assert not section.tables
    assert build(given, k=5, recipient=True).tiles.patients == Count(word="fewer", number=11)


def test_a_thousand_resources_of_one_patient_are_one_patient() -> None:
    given = with_sent(
        clean(),
        types={"Patient": TypeCount(SIZE, SIZE), "Condition": TypeCount(1000, 1)},
        codes={"Condition.code": Codes(1, {"s|c": 1}, {"s|c": "text"}, {"s|c": 1}, {"s": 1})},
        paths={"Condition.note.text": Path(1, "text")},
    )
    report = build(given, k=5)
    text = report.model_dump_json()
    assert '"s"' not in text
    assert [row[0] for row in report.rows("types")] == ["Provenance", "@other-types"]
    looks = [one.patients for one in report.findings if one.code == "free-text"]
    assert looks == [FEWER]


CANARY = "Kanarienvogel"


def sung(patients: int) -> Measured:
    """Return a canary in every string of so many patients."""
    url = f"http://{CANARY}.example/url"
    code = f"http://{CANARY}.example/system|{CANARY}-code"
    given = clean().leaving
    file = MeasuredFile(f"import/{CANARY}-file.ndjson", 5, 5, patients, patients, patients, "1" * 64)
    return replace(
        given,
        files=(*given.files, file),
        types={**given.types, f"{CANARY}Type": TypeCount(patients, patients)},
        paths={
            **given.paths,
            f"Patient.{CANARY}Element": Path(patients, "text", original=patients),
            f"Patient.name.{CANARY}Part.family": Path(patients, "name", one_each=True),
            f"Patient.extension({url}).valueString": Path(patients, "", original=patients),
            f"Patient.extension({url}).extension({CANARY}).valueString": Path(patients, "name"),
            f"{CANARY}Type.name": Path(patients, "name", original=patients),
        },
        elements={f"Patient.{CANARY}Element": patients, f"{CANARY}Type": patients},
        undefined={
            path: Path(patients, "undefined")
            for path in (f"Patient.{CANARY}Element", f"{CANARY}Type", f"Bundle.{CANARY}")
        },
        codes={"Condition.code": Codes(patients, {code: patients}, {code: f"{CANARY} text"}, {code: patients},
                                       {f"http://{CANARY}.example/system": patients}, patients)},
        numbers={"Observation.valueQuantity": {code: Numbers(patients, units={f"{CANARY}/l": patients, "g": 20})}},
        dates={f"{CANARY}Type.date": Dates(patients, years={"2020": patients}, future=patients, before_birth=patients)},
        references=References(1, 1, patients, patients, {f"{CANARY}.example": patients}),
        identifier_systems={f"http://{CANARY}.example/sid": patients},
        extensions={url: patients},
        profiles={f"http://{CANARY}.example/profile": patients},
        statuses={f"Condition.status|{CANARY}": patients},
        attachments={f"Patient.{CANARY}Photo": {f"image/{CANARY}": patients}},
        multiplicity={f"{CANARY}Type": (1.0, 1.0, 1.0)},
        unread={f"import/{CANARY}-file.ndjson": "cut off"},
    )  # fmt: skip


def report_of(measured: Measured, imported: Measured, *, recipient: bool = False) -> ReleaseReport:
    warning = f"{CANARY}-file.ndjson:3 of 17 lines is odd"
    steps = (*clean().steps, StepReport(position=3, name="validation", state="completed", warnings=(warning,)))
    changed = (f"import/{CANARY}-file.ndjson",)
    claimed, bounds = Cell(), Bounds()
    sung_of = imported.types[f"{CANARY}Type"].patients
    for patient in range(sung_of):
        claimed.add(patient, bounds)
    odd = Validated(3, {("error", "Condition", "Odd"): {f"http://{CANARY}.example/claimed": claimed}})
    given = clean(leaving=measured, imported=imported, steps=steps, changed=changed, validated=(odd,))
    corrected = (Corrected(f"import/{CANARY}-file.ndjson", "2026-01-01", "somebody"),)
    return build(replace(given, corrected=corrected), k=5, recipient=recipient)


@pytest.mark.parametrize("patients", [1, 4])
@pytest.mark.parametrize("recipient", [False, True])
def test_a_text_of_few_patients_is_nowhere(patients: int, recipient: bool) -> None:
    text = report_of(sung(patients), sung(patients), recipient=recipient).model_dump_json()
    assert CANARY.casefold() not in text.casefold()
    assert "17 lines" not in text
    assert CANARY not in report_of(clean().leaving, sung(patients), recipient=recipient).model_dump_json()


def test_codes_displays_units_systems_urls_and_elements_of_k_patients_are_shown() -> None:
    text = report_of(sung(10), sung(10)).model_dump_json()
    assert f"{CANARY}-code" in text
    assert f"{CANARY} text" in text
    assert f"http://{CANARY}.example/claimed" in text
    assert CANARY not in report_of(sung(10), sung(10), recipient=True).model_dump_json()


def test_changed_and_missing_files_are_named_as_far_as_allowed() -> None:
    (file,) = clean().leaving.files
    gone = ("pseudonymized/batch-3.ndjson", f"pseudonymized/{CANARY}1.ndjson", f"pseudonymized/{CANARY}2.ndjson")
    stops = [one for one in found(clean(changed=(file.name, *gone)), "stop") if one.code == "file-changed"]
    assert [one.about for one in stops] == ["@unnamed-file", gone[0], file.name]
    assert found(clean(changed=("pseudonymized/",)), "stop")[0].about == "pseudonymized/"


def test_who_corrected_a_file_is_told_in_house_only() -> None:
    given = replace(clean(), corrected=(Corrected("import/a.ndjson", "2026-01-01", "somebody"),))
    assert "somebody" in build(given, k=5).model_dump_json()
    assert "somebody" not in build(given, k=5, recipient=True).model_dump_json()


def test_the_same_facts_give_the_same_report_in_any_order() -> None:
    given = clean(leaving=sung(3))
    again = with_sent(given, paths=dict(reversed(list(given.leaving.paths.items()))))
    assert build(given, k=5) == build(again, k=5)
    assert EffectiveQuery("", "").types == frozenset()


def test_r11_no_share_and_no_number_reveals_that_all_of_a_few_patients_have_a_code() -> None:
    few = 12
    given = with_sent(
        clean(),
        patients=few,
        codes={"Observation.code": Codes(few, {"http://loinc.org|1-1": few, "http://loinc.org|2-2": few - 1})},
        numbers={"Observation.valueQuantity": {"http://loinc.org|1-1": Numbers(few - 1)}},
    )
    report = build(given, k=5)
    assert {row[-1] for row in report.rows("codes")} == {None}
    assert [row[-1] for row in report.rows("numbers")] == [Count(word="some")]


def test_an_original_of_nobodys_is_not_said_of_patients() -> None:
    given = with_path("Observation.subject.reference", Path(SIZE, original_nobody=1))
    (stop,) = found(given, "stop")
    assert (stop.code, stop.patients) == ("original-left", None)


@pytest.mark.parametrize(("recipient", "number", "size"), [(False, 1_235, 123_456), (True, 1_200, 120_000)])
def test_r6_resources_lines_and_bytes_of_the_recipients_copy_hide_the_patient_count(
    recipient: bool, number: int, size: int
) -> None:
    patients = 1_234
    file = MeasuredFile("pseudonymized/core.ndjson", 123_456, 123_456, patients, patients, patients, "0" * 64)
    types = {"Patient": TypeCount(patients, patients)}
    given = with_sent(clean(), files=(file,), patients=patients, types=types, multiplicity={"Patient": (1.0, 1.0, 2.0)})
    report = build(given, k=5, recipient=recipient)
    sections = {one.number: one for one in report.sections}
    figures = facts_in(report, 2)
    assert [figures[name] for name in ("lines", "resources")] == [number, number]
    assert [figures[name] for name in ("stored_bytes", "content_bytes")] == [size, size]
    assert report.rows("files")[0][1:5] == (size, size, number, number)
    assert (report.tiles.resources, report.tiles.bytes) == (number, size)
    # No figure per patient, and nothing that is compared.
    assert ("multiplicity" in {one.name for one in sections[10].tables}) is not recipient
    assert (16 in sections) is not recipient
    assert ("first-of-query" in sections[14].said) is not recipient


@pytest.mark.parametrize("files", [1, 9, 12, 43])
def test_r6_the_number_of_files_is_rounded_where_that_of_patients_is(files: int) -> None:
    one = clean().leaving.files[0]
    of_one_each = with_sent(clean(), files=tuple(replace(one, name=f"a/{n}.ndjson", patients=1) for n in range(files)))
    assert build(of_one_each, k=5).tiles.files == files
    rounded = {1: 1, 9: 9, 12: 10, 43: 45}
    assert build(of_one_each, k=5, recipient=True).tiles.files == rounded[files]
    assert build(with_sent(of_one_each, patients=4), k=5).tiles.files == (1 if files == 1 else round(files / 5) * 5)


def test_r6_references_are_counted_in_patients() -> None:
    """Nearly each resource refers to its patient once: their number would be that of the resources."""
    given = with_sent(clean(), references=References(90, 3, SIZE, 0), ids=Ids({"hashed": SIZE}, 2, 2))
    assert facts_in(build(given, k=5), 12) == {
        "patients_inside": Count(word="all"), "patients_dangling": "@of-nobody", "patients_duplicates": FEWER,
    }  # fmt: skip


def test_r6_how_many_patients_were_lost_is_said_like_each_figure_around_them() -> None:
    for lost, said in ((3, FEWER), (13, Count(word="about", number=15)), (SIZE + 2, SOME)):
        given = clean()
        assert given.imported is not None
        given = replace(given, imported=replace(given.imported, patients=SIZE + lost))
        assert [one.patients for one in found(given) if one.code == "patients-fewer"] == [said]


def test_original_ids_are_a_stop_in_tables_too() -> None:
    assert codes(with_sent(clean(), tables=True, ids=Ids({"original": 1})), "stop") == ["original-ids"]


def test_an_attribute_of_what_belongs_to_nobody_is_there_or_not_too() -> None:
    asked = (AskedAttribute("Medication.code", True), AskedAttribute("Medication.status", False))
    query = EffectiveQuery("", "", groups=(QueryGroup("medication", "http://m.example", "Medication", asked),))
    given = with_sent(
        clean(query=query), types={"Medication": TypeCount(7, 0, 7)}, paths={"Medication.status": Path(0, nobody=7)}
    )
    there = {"Medication.status": Path(0, nobody=7), "Medication.code.coding.code": Path(0, nobody=7)}
    assert given.imported is not None
    given = replace(given, imported=replace(given.imported, types=given.leaving.types, paths=there))
    report = build(given, k=5)
    assert [row[1:] for row in (*report.rows("incomplete"), *report.rows("complete"))] == [
        ("Medication.code", "@required", "@of-nobody", Count(word="none"), "@removed"),
        ("Medication.status", "@optional", "@of-nobody", "@of-nobody", "@filled"),
    ]  # fmt: skip
    assert [one.about for one in found(given) if one.code == "required-thinned"] == ["Medication.code"]
    gone = with_sent(given, types={}, paths={})
    assert [one.values for one in found(gone) if one.code == "removed-by-rules"] == [{"attributes": 2}]


@pytest.mark.parametrize(("few", "said"), [((3,), Count(word="fewer", number=5)), ((3, 4), Count(word="some"))])
def test_hosts_of_few_patients_are_one_stop_with_their_own_number(few: tuple[int, ...], said: Count) -> None:
    """Not with that of another host, which is shown."""
    hosts = {"many.example": 20} | {f"{CANARY}{number}.example": n for number, n in enumerate(few)}
    given = with_sent(clean(), references=References(hosts=hosts))
    stops = [(one.about, one.patients) for one in found(given, "stop")]
    assert stops == [("many.example", Count(word="about", number=20)), ("@unnamed-host", said)]


def test_section_7_does_not_claim_that_nothing_was_found_where_ids_are_original() -> None:
    for ids, said in ((Ids({"hashed": SIZE, "original": 1}), ()), (Ids(referred=1), ()), (Ids(), ("nothing-left",))):
        assert section_of(build(with_sent(clean(), ids=ids), k=5), 7).said == said


@pytest.mark.parametrize(("patients", "names"), [((3,), ["@all-files"]), ((20, 5, 3), ["a0", "@other-files"])])
def test_files_of_few_patients_are_added_up_and_their_number_is_no_hash(
    patients: tuple[int, ...], names: list[str]
) -> None:
    files = tuple(MeasuredFile(f"a{n}", 9 - n, 9, of, of, of, f"{n:064}") for n, of in enumerate(patients))
    rows = build(with_sent(clean(), files=files), k=5).rows("files")
    assert [row[0] for row in rows] == names
    assert rows[-1][-1] is None


def test_of_tables_it_is_said_what_was_not_looked_at_and_not_that_nothing_is_there() -> None:
    report = build(with_sent(clean(), tables=True, classes={}), k=5)
    said = {section.number: section.said for section in report.sections}
    assert [said[number] for number in (8, 9, 10)] == [("not-of-tables",)] * 3
    assert "tables-by-column" in said[1]
    assert "tables-by-column" in said[14]


def test_codes_about_resources_stand_behind_those_of_what_was_found() -> None:
    labels = {path: Codes(SIZE, {"s|c": SIZE}) for path in ("Bundle.meta.security", "Condition.meta.tag")}
    given = with_sent(clean(), codes={**labels, "Condition.code": Codes(8, {"s|c": 8})})
    assert [row[0] for row in build(given, k=5).rows("codes")] == ["Condition.code", *labels]


@pytest.mark.parametrize(("change", "name"), [
    ({"codes": {"Condition.code": Codes(SIZE, {f"s|{number}": 1 for number in range(SIZE)})}}, "codes"),
    ({"extensions": {"http://x.example": 1}}, "extensions"),
    ({"attachments": {"DocumentReference.content.attachment": {"image/x": 2}}}, "attachments"),
    ({"dates": {"Condition.recordedDate": Dates(1, precision={"day": 1})}}, "date_precision"),
    ({"numbers": {"Observation.valueQuantity": {"s|c": Numbers(4)}}}, "numbers"),
    ({"codes": {"Condition.code": Codes(SIZE, {}, systems={"s": 1})}}, "systems"),
    ({"statuses": {"Condition.status|rare": 3}}, "statuses"),
])  # fmt: skip
def test_where_all_of_a_table_is_withheld_the_page_says_so(change: Mapping[str, Any], name: str) -> None:
    report = build(with_sent(clean(), **change), k=5)
    table = table_of(report, name)
    assert (table.rows, table.withheld, report.fact("withheld")) == ((), True, True)


def test_r6_shares_of_the_recipients_copy_are_made_from_the_number_that_it_says() -> None:
    given = with_sent(clean(), patients=57, codes={"Condition.code": Codes(57, {"s|c": 25})})
    rows = [row for recipient in (False, True) for row in build(given, k=5, recipient=recipient).rows("codes")]
    assert [row[-1] for row in rows] == ["40 %", "50 %"]  # 25 of 57, and 25 of 55
