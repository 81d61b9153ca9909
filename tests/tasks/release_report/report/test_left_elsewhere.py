"""Promise 4 (document 5) for identifiers in any leaf, names in references, and elements that R4 does not define.

Each is a stop with its path and its kind and without its value; what only looks like one is none.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.release_report.measure.kinds import TABLE, named
from tasks.release_report.measure.measured import Measured
from tasks.release_report.measure.originals import parts
from tasks.release_report.report.build import build
from tasks.release_report.report.document import ReportFinding
from tasks.release_report.report.numbers import banded
from tests.tasks.release_report.measure.test_kinds import nested, split
from tests.tasks.release_report.report.reporting import bundle, measures_of, write_lines
from tests.tasks.release_report.report.test_findings import SIZE, clean

ELSEWHERE = {
    "Patient.id": "{}",
    "Observation.id": "obs.{}",
    "Observation._status.id": "{}",
    "Observation.contained.Device.lotNumber": "{}",
    "Observation.meta.source": "http://his.example/patient?id={}&x=1",
    "Observation.meta.versionId": "{}",
    "Observation.meta.profile[]": "http://his.example/profiles/{}",
    "Observation.meta.tag[].code": "{}",
    "Observation.meta.tag[].display": "of patient {}",
    "Observation.meta.tag[].system": "http://his.example/{}/tags",
    "Observation.meta.security[].code": "{}",
    "Observation.meta.extension(http://x.example/y).valueString": "no. {}.",
    "Observation.implicitRules": "http://his.example/{}",
    "Observation.language": "{}",
    "Observation.status": "{}",
    "Observation.code.coding[].code": "{}",
    "Observation.code.coding[].display": "glucose of {}",
    "Observation.code.coding[].system": "urn:his:{}",
    "Observation.code.coding[].version": "{}",
    "Observation.code.text": "glucose ({})",
    "Observation.valueQuantity.unit": "{}",
    "Observation.valueQuantity.code": "{}",
    "Observation.valueQuantity.system": "http://his.example/units#{}",
    "Observation.component.valueCodeableConcept.coding[].code": "{}",
    "Observation.valueString": "see {}, please",
    "Observation.note.text": "MRN {}",
    "Observation.component.valueString": "Patient/{}",
    "Observation.component.extension(http://x.example/y).valueString": "his-{}-1",
    "Observation.subject.reference": "Patient/{}",
    "Observation.subject.type": "{}",
    "Observation.subject.display": "Patient {}",
    "Observation.performer.reference": "http://his.example/fhir/Practitioner/{}/_history/2",
    "Observation.encounter.reference": "urn:oid:1.2.3|{}",
    "Observation.focus.reference": "Patient?identifier=urn:oid:1.2.3%7C{}",
    "Observation.identifier.system": "http://his.example/{}/ids",
    "Observation.identifier.value": "urn:oid:1.2.3|{}",
    "Observation.extension(http://x.example/y).valueUri": "http://his.example/{}",
    "Observation.extension(http://x.example/y).valueCode": "{}",
    "Observation.extension(http://x.example/y).valueCoding.code": "{}",
    "Observation.extension(http://x.example/y).valueCanonical": "http://his.example/q|{}",
    "Observation.extension(http://his.example/{}).valueBoolean": "true",
    "CarePlan.instantiatesUri": "http://his.example/{}",
    "QuestionnaireResponse.questionnaire": "http://his.example/{}|1",
    "QuestionnaireResponse.item.linkId": "{}",
    "DocumentReference.content.attachment.contentType": "image/{}",
    "Organization.name": "clinic of {}",
    "Encounter.class.code": "{}",
    "Bundle.id": "{}",
    "Bundle.entry.fullUrl": "http://his.example/fhir/Observation/{}",
    "Bundle.entry.request.url": "Observation/{}",
    "Bundle.entry.request.ifNoneExist": "identifier={}",
    "Bundle.entry.response.location": "Observation/{}/_history/1",
    "Bundle.link.url": "http://his.example?patient={}",
}  # fmt: skip
FORMS = {"long": "MRN-4711{:03}", "short": "47{:03}"}
"""Identifiers of patients: such that can be nothing else, and such that could be something else by chance."""


def spread(place: Path, imported: list[dict[str, Any]], leaving: list[dict[str, Any]]) -> Measured:
    """Measure sent data and compare them with the imported data."""
    came, leaves = write_lines(place / "import/a.ndjson", imported), write_lines(place / "out/a.ndjson", leaving)
    return measures_of(place, [leaves], [came])[1]


def numbered(form: str, own: str = "p") -> list[dict[str, Any]]:
    people = (
        {"resourceType": "Patient", "id": f"{own}{n}", "identifier": [{"value": form.format(n)}]} for n in range(12)
    )
    return [*map(bundle, people)]


def stops(measured: Measured) -> list[ReportFinding]:
    """Return the stops of a report on it without other reasons for a stop."""
    given = clean()
    paths = {**given.leaving.paths, **measured.paths}
    leaving = replace(given.leaving, paths=paths, undefined=measured.undefined, extensions=measured.extensions)
    report = build(replace(given, leaving=leaving))
    found = [one for one in report.findings if one.level == "stop"]
    assert {one.about for one in found} == {row[0] for row in report.rows("left") if row[5] == "@stop"}
    return found


def as_shown(path: str, patients: int) -> str:
    """The URL of an extension that few patients have is not shown."""
    return path if patients >= 5 else re.sub(r"\(http[^)]*\)", "(…)", path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("values", [1, 5, 12])
@pytest.mark.parametrize("path", ELSEWHERE)
def test_an_identifier_is_found_in_any_leaf(path: str, values: int, form: str, tmp_path: Path) -> None:
    came = numbered(FORMS[form])
    leave = numbered("zz{}", "h")
    kind, *steps = split(path)
    for number, line in enumerate(leave[:values]):
        own = FORMS[form].format(number)
        value = nested([step.format(own) for step in steps], ELSEWHERE[path].format(own))
        entries = line["entry"]
        if kind == "Bundle":
            entries.append({"resource": {"resourceType": "Observation", "id": f"o{number}"}, **value.pop("entry", {})})
            line |= value
        elif kind == "Patient":
            entries[0]["resource"] |= value
        else:
            entries.append({"resource": {"resourceType": kind, "id": f"r{number}", **value}})
    measured = spread(tmp_path, came, leave)
    plain = path.replace("[]", "").replace("._", ".")
    if "(http://his" in plain:
        plain = "Observation.extension(…).url"
    at = measured.paths[plain]
    assert at.original == values
    found = stops(measured)
    assert [(one.code, one.about) for one in found] == [("original-left", as_shown(plain, values))]
    assert found[0].patients == banded(values, 5, SIZE)
    text = build(replace(clean(), leaving=measured)).model_dump_json()
    assert not re.findall(rf"(?<![0-9a-f]){FORMS[form].format(0)[:-3]}\d\d\d(?![0-9a-f])", text)


UNIT = {"unit": "mg", "system": "http://unitsofmeasure.org", "code": "mg"}


@pytest.mark.parametrize("value", ["MRN-4711003", {"text": "MRN-4711003"}, ["MRN-4711003"]], ids=str)
@pytest.mark.parametrize("path", ["Observation.valueQuantity", "Observation.component.valueQuantity"])
def test_an_identifier_is_found_in_place_of_the_number_of_a_quantity(path: str, value: object, tmp_path: Path) -> None:
    """Its unit was met before, beside a number."""
    came, leave = numbered(FORMS["long"]), numbered("zz{}", "h")
    for n, line in enumerate(leave[:4]):
        quantity = {"value": value if n == 3 else n, **UNIT}
        line["entry"].append({"resource": {"resourceType": "Observation", **nested(split(path)[1:], quantity)}})
    assert sum(at.original for at in spread(tmp_path, came, leave).paths.values()) == 1


@pytest.mark.parametrize("where", ["fullUrl", "request.url"])
def test_an_identifier_is_found_in_a_url_that_ends_like_the_new_id(where: str, tmp_path: Path) -> None:
    came, leave = numbered("AB12-47{:03}"), numbered("zz{}", "47{:03}")
    for n, line in enumerate(leave):
        entry = line["entry"][0]
        entry["resource"]["id"] = f"47{n:03}"
        entry |= nested(where.split("."), f"http://his.example/Patient/AB12-47{n:03}")
    assert spread(tmp_path, came, leave).paths[f"Bundle.entry.{where}"].original == 12


def test_an_old_id_is_found_in_a_url_that_ends_like_the_new_one(tmp_path: Path) -> None:
    came, leave = numbered("1", "p-"), numbered("1", "")
    for n, line in enumerate(leave):
        line["entry"][0]["fullUrl"] = f"urn:x:p-{n}"
    assert spread(tmp_path, came, leave).ids.referred == 12


@pytest.mark.parametrize("form", FORMS)
def test_where_an_identifier_is_another_ones_by_chance_it_is_none(form: str, tmp_path: Path) -> None:
    """New ids count on where those of the import ended, and a code is one that everybody knows."""
    came, leave = numbered(FORMS[form]), numbered("zz{}", "h")
    for n, (before, line) in enumerate(zip(came, leave, strict=True)):
        seen = {"resourceType": "Observation", "id": f"o{n}", "code": {"coding": [{"code": FORMS[form].format(3)}]}}
        before["entry"].append({"resource": dict(seen)})
        line["entry"].append({"resource": seen})
        if form == "short":
            line["entry"][0]["resource"]["id"] = FORMS[form].format((n + 5) % 12)
            seen["subject"] = {"reference": f"Patient/{FORMS[form].format((n + 5) % 12)}"}
            seen["note"] = [{"text": f"{FORMS[form].format((n + 7) % 12)} cells"}]
    measured = spread(tmp_path, came, leave)
    assert {path: at.original for path, at in measured.paths.items() if at.original} == {
        "Observation.code.coding.code": 1  # of the patient who has that number
    }


def test_one_resource_a_line_is_compared_alike(tmp_path: Path) -> None:
    """The data of a patient do not come together then."""

    def lines(own: str, form: str, values: int) -> list[dict[str, Any]]:
        people = [entry["resource"] for line in numbered(form, own) for entry in line["entry"]]
        seen = [{"resourceType": "Observation", "id": f"{own}o{n}", "subject": {"reference": f"Patient/{own}{n}"}}
                for n in range(12) for _ in "12"]  # fmt: skip
        for number, one in enumerate(seen[: 2 * values]):
            one["code"] = {"coding": [{"code": FORMS["short"].format(number // 2)}]}
            one |= {"performer": [{"display": "Dr. Frieda Sommer"}], "his": {"room": 1}, "comment": "as always"}
        return [*people, *seen]

    measured = spread(tmp_path, lines("p", FORMS["short"], 12), lines("h", "zz{}", 7))
    assert {path: at.original for path, at in measured.paths.items() if at.original} == {
        "Observation.code.coding.code": 7, "Observation.performer.display": 7,
    }  # fmt: skip
    assert {path: at.patients for path, at in measured.undefined.items()} == {
        "Observation.his": 7, "Observation.comment": 7
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_where_a_patient_is_missing_identifiers_are_found_where_they_are_no_codes(form: str, tmp_path: Path) -> None:
    leave = numbered("zz{}", "h")[1:]
    for number, line in enumerate(leave, start=1):
        seen = {
            "resourceType": "Observation",
            "id": "o",
            "subject": {"reference": f"Patient/{FORMS[form].format(number)}"},
        }
        line["entry"].append({"resource": seen})
    measured = spread(tmp_path, numbered(FORMS[form]), leave)
    assert measured.paths["Observation.subject.reference"].original == 11


def test_a_value_that_many_have_or_that_is_trivial_is_no_identifier(tmp_path: Path) -> None:
    came, leave = numbered("1"), numbered("zz{}", "h")
    for n, (before, line) in enumerate(zip(came, leave, strict=True)):
        many = [{"value": "CASE-2024"}, {"value": "2024"}, {"value": "M"}, {"value": str(n)}]
        before["entry"][0]["resource"]["identifier"] += many
        line["entry"].append({"resource": {
            "resourceType": "Observation", "id": f"CASE-2024.{n}", "code": {"coding": [{"code": "1"}, {"code": "M"}]},
            "subject": {"reference": "Patient/CASE-2024"}, "note": [{"text": f"{n} of 2024, M"}],
            "valueQuantity": {"value": 2024, "unit": "1"}}})  # fmt: skip
    assert not [path for path, at in spread(tmp_path, came, leave).paths.items() if at.original]


def test_what_numbers_something_published_is_no_identifier(tmp_path: Path) -> None:
    library = {"resourceType": "Library", "id": "l", "url": "http://x.example/Library/indicators-7",
               "identifier": [{"value": "indicators-7"}]}  # fmt: skip
    measure = {"resourceType": "Measure", "id": "m", "library": [library["url"]]}
    came = [*numbered("1"), library, measure]
    leaves = [*numbered("1", "h"), {**library, "id": "h", "identifier": [{"value": "new"}]}, {**measure, "id": "h2"}]
    assert stops(spread(tmp_path, came, leaves)) == []


NAMES = {
    "Observation.performer": {"display": "Dr. Frieda Sommer"},
    "Observation.performer[]": {"reference": "Practitioner/{}", "display": "Dr. Frieda Sommer"},
    "Condition.asserter": {"display": "Dr. Frieda Sommer"},
    "Condition.recorder": {"reference": "urn:uuid:{}", "display": "Dr. Frieda Sommer"},
    "Composition.author[]": {"display": "Dr. Frieda Sommer"},
    "Composition.custodian": {"display": "Klinik am See"},
    "Encounter.participant.individual": {"display": "Dr. Frieda Sommer"},
    "Encounter.serviceProvider": {"reference": "Organization/{}", "display": "Klinik am See"},
    "Patient.generalPractitioner[]": {"display": "Praxis Dr. Sommer"},
    "Patient.managingOrganization": {"display": "Klinik am See"},
    "Procedure.performer.actor": {"display": "Dr. Frieda Sommer"},
    "Provenance.agent.who": {"display": "Dr. Frieda Sommer"},
    "Observation.focus": {"reference": "Practitioner/{}", "display": "Dr. Frieda Sommer"},
    "Observation.extension(http://x.example/y).valueReference": {"type": "Organization", "display": "Klinik am See"},
    "Coverage.payor": {"display": "Krankenkasse am See"},
    "Claim.careTeam.provider": {"display": "Dr. Frieda Sommer"},
    "Observation.contained.Observation.performer": {"display": "Dr. Frieda Sommer"},
}
THINGS = {
    "MedicationRequest.medicationReference": {"display": "Aspirin 100"},
    "Observation.device": {"display": "Thermometer 3"},
    "Encounter.location.location": {"display": "Station 3"},
    "Observation.performer": {"display": "Practitioner"},
    "Observation.performer[]": {"display": "***"},
    "Observation.subject": {"reference": "Device/1", "display": "Thermometer 3"},
    "Observation.focus": {"display": "a finding"},
    "Observation.basedOn": {"display": "order"},
}


def referring(path: str, values: int, display: dict[str, str]) -> list[dict[str, Any]]:
    leave = numbered("1", "h")
    kind, *steps = split(path)
    for number, line in enumerate(leave[:values]):
        value: Any = {key: text.format(f"of-{number}") for key, text in display.items()}
        below = nested(steps, value)
        if kind == "Patient":
            line["entry"][0]["resource"] |= below
        else:
            line["entry"].append({"resource": {"resourceType": kind, "id": f"r{number}", **below}})
    return leave


@pytest.mark.parametrize("values", [1, 5, 12])
@pytest.mark.parametrize("path", NAMES)
def test_the_name_of_a_person_or_an_organization_in_a_reference_is_a_stop(
    path: str, values: int, tmp_path: Path
) -> None:
    came = referring(path, 12, NAMES[path])
    measured = spread(tmp_path, came, referring(path, values, NAMES[path]))
    shown = as_shown(f"{path.replace('[]', '')}.display", values)
    assert [(one.code, one.about, one.patients, one.values["kind"]) for one in stops(measured)] == [
        ("original-left", shown, banded(values, 5, SIZE), "@kind-display")
    ]
    text = build(replace(clean(), leaving=measured)).model_dump_json()
    assert NAMES[path]["display"] not in text


@pytest.mark.parametrize("path", NAMES)
def test_a_name_that_was_replaced_is_no_stop(path: str, tmp_path: Path) -> None:
    came = referring(path, 12, NAMES[path])
    measured = spread(tmp_path, came, referring(path, 12, NAMES[path] | {"display": "replaced"}))
    assert stops(measured) == []
    assert measured.paths[f"{path.replace('[]', '')}.display"].compared


@pytest.mark.parametrize("path", THINGS)
def test_what_a_reference_shows_of_a_thing_is_no_name(path: str, tmp_path: Path) -> None:
    same = referring(path, 12, THINGS[path])
    measured = spread(tmp_path, same, same)
    assert stops(measured) == []


def test_of_what_was_not_compared_the_column_does_not_say_none(tmp_path: Path) -> None:
    path = "MedicationRequest.medicationReference"
    same = referring(path, 12, THINGS[path])
    measured = spread(tmp_path, same, same)
    given = clean()
    report = build(replace(given, leaving=replace(given.leaving, paths=measured.paths)))
    assert [row[4] for row in report.rows("beside_codes") if row[0] == f"{path}.display"] == [None]


@pytest.mark.parametrize("value", ["LANR-123456789", "12345"])
def test_the_identifier_of_a_practitioner_is_found_in_references_to_him(value: str, tmp_path: Path) -> None:
    came, leave = numbered("1"), numbered("zz{}", "h")
    came.append({"resourceType": "Practitioner", "id": "d", "identifier": [{"value": value}]})
    for line in leave:
        by = {"individual": {"reference": f"Practitioner/{value}"}}
        line["entry"].append({"resource": {"resourceType": "Encounter", "id": "e", "participant": [by]}})
    leave.append({"resourceType": "Practitioner", "id": value})
    found = stops(spread(tmp_path, came, leave))
    assert [one.about for one in found] == ["Encounter.participant.individual.reference", "Practitioner.id"]


def test_an_unchanged_identifier_of_a_practitioner_is_a_stop_for_any_patient_count(tmp_path: Path) -> None:
    came, leave = numbered("1"), numbered("zz{}", "h")
    doctor = {"resourceType": "Practitioner", "id": "d", "identifier": [{"value": "LANR 123456789"}]}
    by = {"individual": {"identifier": {"value": "LANR 123456789"}}}
    for one in (*came, *leave):
        one["entry"].append({"resource": doctor})
        one["entry"].append({"resource": {"resourceType": "Encounter", "id": "e", "participant": [by]}})
    assert [one.about for one in stops(spread(tmp_path, came, leave))] == [
        "Encounter.participant.individual.identifier.value", "Practitioner.identifier.value"
    ]  # fmt: skip


UNDEFINED: dict[str, Any] = {
    "Patient.nickname": "Friedl",
    "Patient.name.display": "Frieda Sommer",
    "Patient.his": {"room": 12},
    "Patient.name": "Frieda Sommer",
    "Patient.birthDate.note": "born at home",
    "Observation.payload": '{"name": "Frieda Sommer"}',
    "Observation.code.coding[].comment": "as Frieda said",
    "Observation.code.remark": [{"text": {"div": "x"}}],
    "Observation.valueQuantity.remark": "of Frieda",
    "Observation.subject": "Patient/1",
    "Observation.subject.name": "Frieda Sommer",
    "Observation.extension(http://x.example/y).note": "Frieda",
    "Observation.extension": "Frieda",
    "Observation.contained.Device.nickname": "Frieda's",
    "Observation._given": ["Frieda"],
    "Observation.meta.author": "Frieda",
    "Bundle.author": "Frieda",
    "Bundle.entry.remark": "Frieda",
    "HospitalThing": {"x": 1},
}


@pytest.mark.parametrize("values", [1, 5, 12])
@pytest.mark.parametrize("path", UNDEFINED)
def test_an_element_that_r4_does_not_define_is_a_stop(path: str, values: int, tmp_path: Path) -> None:
    leave = numbered("zz{}", "h")
    kind, *steps = split(path)
    for number, line in enumerate(leave[:values]):
        value = nested(steps, UNDEFINED[path])
        entries = line["entry"]
        if kind == "Bundle":
            entries[0] |= value.pop("entry", {})
            line |= value
        elif kind == "Patient":
            entries[0]["resource"] |= value
        else:
            entries.append({"resource": {"resourceType": kind, "id": f"r{number}", **value}})
    measured = spread(tmp_path, numbered("1"), leave)
    plain = path.replace("[]", "")
    at = measured.undefined[plain]
    assert (at.patients, at.kind) == (values, "undefined")
    (found,) = (one for one in stops(measured) if one.code == "undefined-element")
    assert found.patients == banded(values, 5, SIZE)
    shown = [name for name in ("nickname", "remark", "his", "HospitalThing") if name in found.about]
    assert not shown or values >= 5


def test_what_r4_defines_is_no_undefined_element(tmp_path: Path) -> None:
    """Each element of each type that the table has, in a resource, an extension and a contained one."""
    types = json.loads(TABLE.read_bytes())
    lines = []
    for name, elements in types.items():
        if "meta" in elements and "_" not in name:
            simple = {key: "x" for key, kind in elements.items() if kind.partition("|")[0] not in types}
            more = {f"_{key}": {"id": "i", "extension": [{"url": "u", "valueCode": "c"}]} for key in simple}
            inner = {key: {"id": "i"} for key, kind in elements.items() if kind.partition("|")[0] in types}
            inner.pop("resource", None)
            whole = {"resourceType": name, "id": f"x{name}", "implicitRules": "r", "language": "de", **simple, **inner}
            lines += [whole | more, {**whole, "contained": [whole], "modifierExtension": [{"url": "u"}]}]
    assert spread(tmp_path, lines, lines).undefined == {}


@pytest.mark.parametrize("reference", ["Practitioner/1", "http://h/fhir/Practitioner/1/_history/2",
                                       "Practitioner?identifier=http://x/y|1"])  # fmt: skip
def test_the_type_of_a_reference_wins_over_what_the_element_allows(reference: str) -> None:
    assert named("", reference, None) == "name"
    assert named("patient", reference, "Patient") == "name"
    assert named("name", reference.replace("Practitioner", "Location"), None) == ""
    assert named("person", "urn:uuid:1", None) == named("person", "#1", None) == "person"


def test_a_part_of_a_text_is_one_where_an_identifier_can_begin_and_end() -> None:
    assert set(parts("http://his/patient?id=12345&x=1")) >= {"12345", "patient"}
    assert "12345" in parts("urn:oid:1.2.3|12345")
    assert "K 12/345" in parts("urn:oid:1.2.3%7CK 12/345")
    assert "12345" in parts("was 12345.")
    assert not {"2345", "1234"} & set(parts("12345"))
