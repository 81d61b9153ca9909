"""Section 1 (document 5): stops, looks and notes, and that none quotes the data (promises 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from config import ReportConfig
from tasks.release_report.measure.measured import (
    Dates,
    Ids,
    Measured,
    MeasuredFile,
    Path,
    TypeCount,
)
from tasks.release_report.page.page import html
from tasks.release_report.page.words import Words
from tasks.release_report.report.build import build
from tasks.release_report.report.document import ReportFinding
from tasks.release_report.report.facts import (
    Corrected,
    Destination,
    ReportFacts,
    RulesSummary,
    is_private,
)
from tasks.release_report.report.numbers import Count, banded
from tasks.release_report.report.query import Criterion, EffectiveQuery, QueryGroup
from tasks.shared.report import StepReport
from tests.tasks.release_report.report.reporting import facts_in, section_of

FEWER = Count(word="fewer", number=5)
SIZE = 40
QUERY = EffectiveQuery(
    title="hypertension",
    sha256="q" * 64,
    criteria=(Criterion(1, False, "Diagnose", "Hypertension", ("http://icd.example|I10",)),),
    groups=(
        QueryGroup("patients", "http://p.example", "Patient", 1, 0),
        QueryGroup("conditions", "http://c.example", "Condition", 1, 1),
    ),
)


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
        "job": "j", "project": "p", "made": "2026-01-01T00:00:00Z", "step": 3,
        "destination": Destination("direct_resource_load", "fhir.example", "/fhir", encrypted=True),
        "leaving": measured,
        "imported": replace(measured, ids=Ids({"sequential": SIZE, "original": SIZE})),
        "query": QUERY,
        "rules": RulesSummary("rules.yaml", "r" * 64, removes=True),
        "steps": (StepReport(position=2, name="pseudonymizer", state="completed", output="pseudonymized"),),
    }  # fmt: skip
    return ReportFacts(**(given | more))


def found(given: ReportFacts, level: str | None = None) -> list[ReportFinding]:
    return [one for one in build(given).findings if level in (None, one.level)]


def codes(given: ReportFacts, level: str | None = None) -> list[str]:
    return [one.code for one in found(given, level)]


def with_sent(given: ReportFacts, **more: Any) -> ReportFacts:
    return replace(given, leaving=replace(given.leaving, **more))


def with_path(path: str, at: Path) -> ReportFacts:
    given = clean()
    return with_sent(given, paths={**given.leaving.paths, path: at})


def test_a_clean_delivery_has_no_stop() -> None:
    assert codes(clean(), "stop") == []
    assert build(clean()).tiles.stops == 0


@pytest.mark.parametrize(
    ("patients", "said"), [(1, FEWER), (5, Count(word="about", number=5)), (SIZE, Count(word="all"))]
)
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


@pytest.mark.parametrize("language", ["en", "de"])
def test_what_a_stop_does_is_said_where_nobody_is_asked_and_only_there(language: str) -> None:
    words = Words(language, 5)

    def last(**more: Any) -> tuple[tuple[str, ...], dict[str, str]]:
        report = build(replace(clean(), **more))
        return section_of(report, 10).said, {name: words.value(one) for name, one in facts_in(report, 10).items()}

    assert last(decides=True) == last(destination=None) == ((), {})
    for on_stop in ("tell", "fail"):
        said, shown = last(settings=ReportConfig(on_stop=on_stop))
        assert said == ("nobody-asked",)
        assert list(shown) == ["on_stop"]
        holds = "sent all the same" if language == "en" else "hält die Daten nicht zurück"
        assert (holds in shown["on_stop"]) is (on_stop == "tell")


def test_who_receives_the_data_stands_in_the_tile_of_the_destination() -> None:
    given = replace(clean(), settings=ReportConfig(recipient="Institut für <Herz>"))
    page = html(build(given))
    tiles = page.partition('<ul class="tiles"')[2].partition("</ul>")[0]
    assert "for Institut für &lt;Herz&gt;" in tiles
    assert ">for " not in html(build(clean())).partition('<ul class="tiles"')[2].partition("</ul>")[0]


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
    ({"unread": {"pseudonymized/core.ndjson": "cut off"}}, "file-unread"),
    ({"ids": Ids({"original": 1})}, "original-ids"),
    ({"ids": Ids({"hashed": SIZE}, referred=1)}, "original-ids-referred"),
    ({"patients": SIZE + 1}, "patients-gained"),
])  # fmt: skip
def test_each_is_a_stop(change: Mapping[str, Any], code: str) -> None:
    assert codes(with_sent(clean(), **change), "stop") == [code]


@pytest.mark.parametrize(("change", "code"), [
    ({"date_shifts": {0: SIZE}}, "dates-not-shifted"),
    ({"date_shifts": {17: SIZE}}, "one-shift"),
    ({"above_89": 1}, "above-89"),
    ({"classes": {("1950", "female", "04"): 1, ("1960", "male", "04"): SIZE - 1}}, "told-apart"),
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


def test_patients_that_are_fewer_need_a_reason() -> None:
    fewer = with_sent(clean(rules=None), patients=SIZE - 1)
    assert codes(fewer, "stop") == ["patients-lost"]
    assert "patients-fewer" in codes(replace(fewer, corrected=(Corrected("a.ndjson"),)), "look")


@pytest.mark.parametrize(("to", "level", "code"), [
    (Destination("m", "fhir.example", encrypted=False), "stop", "unencrypted"),
    (Destination("m", "10.1.2.3:8080", encrypted=False, private=True), "look", "unencrypted-private"),
])  # fmt: skip
def test_the_way_is_looked_at(to: Destination, level: str, code: str) -> None:
    assert code in codes(clean(destination=to), level)


def test_private_addresses_are_those_that_only_a_local_network_knows() -> None:
    assert all(map(is_private, ("10.1.2.3", "192.168.0.1", "localhost", "fhir", "[::1]", "store.local")))
    assert not any(map(is_private, ("8.8.8.8", "fhir.example.org")))


def test_without_a_stop_the_first_section_says_what_was_not_checked() -> None:
    first = build(clean()).sections[0]
    assert first.number == 1
    assert "unread-text" in first.said


CANARY = "Kanarienvogel"


def sung(patients: int) -> Measured:
    """Return a canary in every string of so many patients."""
    url = f"http://{CANARY}.example/url"
    given = clean().leaving
    return replace(
        given,
        types={**given.types, f"{CANARY}Type": TypeCount(patients, patients)},
        paths={
            **given.paths,
            f"Patient.{CANARY}Element": Path(patients, "text", original=patients),
            f"Patient.name.{CANARY}Part.family": Path(patients, "name"),
            f"Patient.extension({url}).valueString": Path(patients, "", original=patients),
            f"Patient.extension({url}).extension({CANARY}).valueString": Path(patients, "name"),
            f"{CANARY}Type.name": Path(patients, "name", original=patients),
        },
        elements={f"Patient.{CANARY}Element": patients, f"{CANARY}Type": patients},
        undefined={
            path: Path(patients, "undefined")
            for path in (f"Patient.{CANARY}Element", f"{CANARY}Type", f"Bundle.{CANARY}")
        },
        dates={f"{CANARY}Type.date": Dates(patients)},
        identifier_systems={f"http://{CANARY}.example/sid": patients},
        extensions={url: patients},
    )


@pytest.mark.parametrize("patients", [1, 4])
def test_a_text_of_few_patients_is_nowhere(patients: int) -> None:
    few, many = sung(patients), clean().leaving
    for leaving, imported in ((few, few), (many, few)):
        text = build(clean(leaving=leaving, imported=imported)).model_dump_json()
        assert CANARY.casefold() not in text.casefold()
    assert CANARY in build(clean(leaving=sung(5), imported=sung(5))).model_dump_json()


def test_changed_and_missing_files_are_named() -> None:
    gone = ("pseudonymized/batch-3.ndjson", "pseudonymized/core.ndjson")
    stops = [one.about for one in found(clean(changed=gone), "stop") if one.code == "file-changed"]
    assert stops == [*gone]


@pytest.mark.parametrize(("patients", "said"), [
    (0, Count(word="none")), (1, FEWER), (4, FEWER), (5, Count(word="about", number=5)),
    (6, Count(word="about", number=5)),
    (8, Count(word="about", number=10)), (SIZE - 1, Count(word="about", number=40)), (SIZE, Count(word="all")),
])  # fmt: skip
def test_a_number_of_patients_is_said_in_bands(patients: int, said: Count) -> None:
    assert banded(patients, 5, SIZE) == said
    assert banded(7, 7) == Count(word="about", number=7)  # never below k
    assert banded(2, 5, 2) == FEWER


def test_the_same_facts_give_the_same_report_in_any_order() -> None:
    given = clean(leaving=sung(3))
    again = with_sent(given, paths=dict(reversed(list(given.leaving.paths.items()))))
    assert build(given) == build(again)
    assert EffectiveQuery("", "").types == frozenset()


def test_an_original_of_nobodys_is_not_said_of_patients() -> None:
    given = with_path("Observation.subject.reference", Path(SIZE, original_nobody=1))
    (stop,) = found(given, "stop")
    assert (stop.code, stop.patients) == ("original-left", None)


def test_original_ids_are_a_stop_in_tables_too() -> None:
    assert codes(with_sent(clean(), tables=True, ids=Ids({"original": 1})), "stop") == ["original-ids"]


def test_section_7_does_not_claim_that_nothing_was_found_where_ids_are_original() -> None:
    for ids, said in ((Ids({"hashed": SIZE, "original": 1}), ()), (Ids(referred=1), ()), (Ids(), ("nothing-left",))):
        assert section_of(build(with_sent(clean(), ids=ids)), 7).said == said


def test_of_tables_it_is_said_what_was_not_looked_at_and_not_that_nothing_is_there() -> None:
    report = build(with_sent(clean(), tables=True, classes={}))
    said = {section.number: section.said for section in report.sections}
    assert said[8] == ("not-of-tables",)
    assert "tables-by-column" in said[1]
    assert "tables-by-column" in said[9]
