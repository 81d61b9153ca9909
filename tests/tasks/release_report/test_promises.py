"""The guarantees of docs/review.md, each over whole reports."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.release_report import files
from tasks.release_report.document import ReleaseReport
from tasks.release_report.numbers import Count
from tests.conftest import ROOT
from tests.tasks.release_report.reporting import (
    Json,
    bundle,
    config,
    everything,
    observation,
    of_level,
    patient,
    report,
    rows,
    summary,
    write,
)

K = 5
ALL = 12
SECRET = "Zwetschgenbaum"
URL = "http://hl7.org/fhir/StructureDefinition"

PERSONS = ("Patient", "RelatedPerson", "Practitioner", "Person")

LEFT: list[tuple[str, str, Json]] = [
    *((f"{kind}.name.family", "name", {"resourceType": kind, "name": [{"family": SECRET}]}) for kind in PERSONS),
    *((f"{kind}.name.given", "name", {"resourceType": kind, "name": [{"given": ["A", SECRET]}]}) for kind in PERSONS),
    *((f"{kind}.name.text", "name", {"resourceType": kind, "name": [{"text": SECRET}]}) for kind in PERSONS),
    *((f"{kind}.telecom.value", "telecom", {"resourceType": kind, "telecom": [{"value": SECRET}]}) for kind in PERSONS),
    *((f"{kind}.address.line", "address", {"resourceType": kind, "address": [{"line": [SECRET]}]}) for kind in PERSONS),
    *((f"{kind}.address.text", "address", {"resourceType": kind, "address": [{"text": SECRET}]}) for kind in PERSONS),
    *((f"{kind}.text.div", "narrative", {"resourceType": kind, "text": {"div": f"<div>{SECRET}</div>"}})
      for kind in PERSONS),
    *((f"{kind}.photo.data", "photo", {"resourceType": kind, "photo": [{"data": SECRET}]})
      for kind in ("Patient", "Practitioner", "RelatedPerson")),
    ("Patient.name.prefix", "name", patient("", name=[{"prefix": [SECRET]}])),
    ("Patient.name.suffix", "name", patient("", name=[{"suffix": [SECRET]}])),
    ("Patient.name._family.extension.valueString", "name",
     patient("", name=[{"_family": {"extension": [{"url": f"{URL}/humanname-own-name", "valueString": SECRET}]}}])),
    ("Patient.extension.valueString", "name",
     patient("", extension=[{"url": f"{URL}/patient-mothersMaidenName", "valueString": SECRET}])),
    ("Patient.extension.valueHumanName.family", "name",
     patient("", extension=[{"url": "http://x/spouse", "valueHumanName": {"family": SECRET}}])),
    ("Patient.extension.valueContactPoint.value", "telecom",
     patient("", extension=[{"url": "http://x/phone", "valueContactPoint": {"value": SECRET}}])),
    ("Patient.extension.valueAddress.line", "address",
     patient("", extension=[{"url": f"{URL}/patient-birthPlace", "valueAddress": {"line": [SECRET]}}])),
    ("Patient.address._line.extension.valueString", "address",
     patient("", address=[{"_line": [{"extension": [{"url": f"{URL}/iso21090-ADXP-streetName",
                                                     "valueString": SECRET}]}]}])),
    ("Patient.address.extension.extension.valueDecimal", "address",
     patient("", address=[{"extension": [{"url": f"{URL}/geolocation",
                                          "extension": [{"url": "latitude", "valueDecimal": 51.34112}]}]}])),
    ("Patient.contact.name.family", "name", patient("", contact=[{"name": {"family": SECRET}}])),
    ("Patient.contact.telecom.value", "telecom", patient("", contact=[{"telecom": [{"value": SECRET}]}])),
    ("Patient.contact.address.line", "address", patient("", contact=[{"address": {"line": [SECRET]}}])),
    ("Observation.contained.Patient.name.family", "name",
     observation(None, contained=[patient("", name=[{"family": SECRET}])])),
    ("Observation.contained.Practitioner.telecom.value", "telecom",
     observation(None, contained=[{"resourceType": "Practitioner", "telecom": [{"value": SECRET}]}])),
    ("DocumentReference.content.attachment.data", "attachment data",
     {"resourceType": "DocumentReference", "content": [{"attachment": {"data": SECRET}}]}),
    ("DiagnosticReport.presentedForm.data", "attachment data",
     {"resourceType": "DiagnosticReport", "presentedForm": [{"data": SECRET}]}),
    ("Media.content.data", "attachment data", {"resourceType": "Media", "content": {"data": SECRET}}),
    ("Binary.data", "attachment data", {"resourceType": "Binary", "data": SECRET}),
    ("FamilyMemberHistory.name", "name", {"resourceType": "FamilyMemberHistory", "name": SECRET}),
    ("PractitionerRole.telecom.value", "telecom", {"resourceType": "PractitionerRole", "telecom": [{"value": SECRET}]}),
]  # fmt: skip


def of_patient(number: int, resource: Json) -> Json:
    """Return a resource as one of the patient with this number."""
    own = copy.deepcopy(resource) | {"id": f"r{number}"}
    return own if own["resourceType"] in PERSONS else own | {"subject": {"reference": f"Patient/{number}"}}


def deliver(job: Path, resource: Json, patients: int) -> None:
    """Write a delivery of Bundles in which this many patients have the resource."""
    lines = []
    for number in range(ALL):
        with_it = [of_patient(number, resource)] if number < patients else []
        own = [] if any(one["resourceType"] == "Patient" for one in with_it) else [patient(str(number))]
        lines.append(bundle(*own, *with_it, observation(str(number), code={"coding": [{"code": "1"}]})))
    write(job, "batch.ndjson", *lines)


def test_the_table_has_at_least_forty_paths() -> None:
    assert len({path for path, _, _ in LEFT}) >= 40


@pytest.mark.parametrize(("patients", "word"), [(1, "fewer"), (K, "about"), (ALL, "all")])
@pytest.mark.parametrize(("path", "kind", "resource"), LEFT, ids=[path for path, _, _ in LEFT])
def test_what_is_left_is_a_stop_with_path_and_kind(
    tmp_path: Path, path: str, kind: str, resource: Json, patients: int, word: str
) -> None:
    deliver(tmp_path, resource, patients)
    made = summary(tmp_path)
    found = files.read(tmp_path)
    assert found is not None
    [stop] = of_level(found, "stop")
    assert (stop.code, stop.about, stop.kind) == ("left", path, kind)
    assert stop.affects is not None
    assert stop.affects.word == word
    assert SECRET not in everything(tmp_path, made)
    assert made.stops == 1


CLEAN: list[Json] = [
    {"resourceType": "Organization", "name": "A clinic", "telecom": [{"value": "030 1"}], "address": [{"line": ["x"]}],
     "contact": [{"name": {"family": "Meier"}}], "text": {"div": "<div>A clinic</div>"}},
    {"resourceType": "Location", "name": "Ward 3", "address": {"line": ["Street 1"], "city": "Ulm"}},
    {"resourceType": "Medication", "code": {"coding": [{"code": "A01", "display": "Some medication"}]}},
    {"resourceType": "Device", "deviceName": [{"name": "A pump"}], "identifier": [{"value": "1"}]},
    {"resourceType": "Provenance", "target": [{"reference": "Patient/1"}], "agent": [{"who": {"display": "A server"}}]},
    {"resourceType": "Observation", "status": "final", "valueSampledData": {"data": "1 2 3"}},
    {"resourceType": "Observation", "code": {"coding": [{"display": "Body weight", "code": "1", "system": "s"}]}},
    {"resourceType": "Encounter", "class": {"code": "IMP", "display": "inpatient encounter"}},
    patient("", name=[{"_family": {"extension": [{"url": f"{URL}/data-absent-reason", "valueCode": "masked"}]}}]),
    patient("", gender="female", birthDate="1980", address=[{"postalCode": "10", "country": "DE", "state": "BE"}]),
    patient("", address=[{"postalCode": "12***"}], maritalStatus={"coding": [{"code": "M"}]}),
]  # fmt: skip


@pytest.mark.parametrize("resource", CLEAN, ids=[f"{at}-{one['resourceType']}" for at, one in enumerate(CLEAN)])
def test_what_identifies_nobody_is_no_finding(tmp_path: Path, resource: Json) -> None:
    deliver(tmp_path, resource, ALL)
    found = report(tmp_path, config=config(report={"quasi_identifiers": "[]"}))
    assert found.findings == ()


IDENTIFIES = ("name", "telecom", "address", "photo", "identifier", "text", "extension")


def pseudonymized(resource: Json) -> Json:
    """Return a resource as a complete rule set leaves it."""
    kept = {key: value for key, value in resource.items() if key not in IDENTIFIES}
    if "birthDate" in kept:
        kept["birthDate"] = kept["birthDate"][:4]
    if "contained" in kept:
        kept["contained"] = [pseudonymized(one) for one in kept["contained"]]
    return kept


def demo_lines(*, clean: bool) -> list[Json]:
    """Return the data of the demo, or what a complete rule set makes of them."""
    data = ROOT / "deployments" / "sandbox" / "data"
    found = []
    for path in sorted(data.glob("patients-*.ndjson")):
        for line in map(json.loads, path.read_text().splitlines()):
            resources = [entry["resource"] for entry in line["entry"]] if line["resourceType"] == "Bundle" else [line]
            found += [pseudonymized(one) if clean else one for one in resources]
    return found


@pytest.mark.parametrize("found", [None, {"dates": {"moved": 5}}], ids=["pseudonymized elsewhere", "here"])
def test_clean_data_have_no_stop(tmp_path: Path, found: dict[str, dict[str, int]] | None) -> None:
    write(tmp_path, "data.ndjson", *demo_lines(clean=True))
    made = report(tmp_path, found=found)
    assert of_level(made, "stop") == []
    assert made.tiles.patients > 1


def test_the_same_data_as_they_were_have_stops(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *demo_lines(clean=False))
    found = report(tmp_path)
    assert {one.about for one in of_level(found, "stop")} >= {"Patient.name.family", "Patient.name.given"}


# 2: canaries


def canaried(value: Any, mark: Iterator[str]) -> Any:
    """Return JSON with a canary in every string but types and references, which make it that patient's resource."""
    if isinstance(value, dict):
        return {
            key: inner if key in ("resourceType", "reference", "id") else canaried(inner, mark)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [canaried(item, mark) for item in value]
    return next(mark) if isinstance(value, str) else value


def test_no_string_of_a_patient_appears_in_the_report(tmp_path: Path) -> None:
    planted: list[str] = []

    def marks() -> Iterator[str]:
        while True:
            planted.append(f"canary {len(planted)} nine")
            yield planted[-1]

    resource = [one for _, _, one in LEFT] + CLEAN
    own = [canaried(of_patient(1, one), marks()) for one in resource]
    write(tmp_path, "data.ndjson", *own, *(patient(f"p{number}") for number in range(20)))
    made = summary(tmp_path)
    assert len(planted) > 80
    assert "canary" not in everything(tmp_path, made)


def test_urls_and_systems_appear_from_k_patients_on(tmp_path: Path) -> None:
    def one(number: int, mark: str) -> Json:
        return patient(
            str(number), identifier=[{"system": f"http://{mark}.example/id", "value": "1"}],
            extension=[{"url": f"http://{mark}.example/ext", "valueString": "Some text"}],
        )  # fmt: skip

    write(tmp_path, "data.ndjson", *(one(n, "rare") for n in range(K - 1)), *(one(n, "often") for n in range(10, 15)))
    text = everything(tmp_path, summary(tmp_path))
    assert "often.example/id" in text
    assert "often.example/ext" in text
    assert "rare.example" not in text


# 4: patients and types, counted again


def _falls_into(count: Count, patients: int, of: int) -> bool:
    match count.word:
        case "none":
            return patients == 0
        case "fewer":
            return 0 < patients < K
        case "all":
            return patients == of
        case "least":
            return patients >= K
        case "about":
            return patients >= K and count.number is not None and abs(count.number - patients) <= 2
    return patients == 0


@pytest.mark.parametrize("seed", range(6))
def test_patients_and_types_fall_into_every_band(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    known: dict[str, set[str]] = {}
    numbers: dict[str, int] = {}
    lines: list[Json] = []
    for number in range(draw.randint(1, 40)):
        own = f"p{number}"
        resources = [patient(own, birthDate="1980-01-01")]
        resources += [observation(own, f"o{at}", note=[{"text": "x"}]) for at in range(draw.randint(0, 3))]
        resources += [{"resourceType": "Flag", "id": f"f{number}", "subject": {"reference": f"Patient/{own}"}}] * (
            draw.random() < 0.3
        )
        for one in resources:
            known.setdefault(one["resourceType"], set()).add(own)
            numbers[one["resourceType"]] = numbers.get(one["resourceType"], 0) + 1
        lines += [bundle(*resources)] if draw.random() < 0.7 or seed % 2 else resources
    write(tmp_path, "data.ndjson", *lines)
    found, total = report(tmp_path), len(known["Patient"])
    assert found.tiles.patients == total
    assert found.tiles.resources == sum(numbers.values())
    types = rows(found, "types")
    assert {name: row[0] for name, row in types.items()} == numbers
    for name, row in types.items():
        assert isinstance(row[1], Count)
        assert _falls_into(row[1], len(known[str(name)]), total)
    notes = rows(found, "left").get("Observation.note.text")
    if notes is not None:
        assert isinstance(notes[1], Count)
        assert _falls_into(notes[1], len(known["Observation"]), total)


# 5: one file, 0600, no script


def test_the_page_is_one_private_file_that_runs_and_loads_nothing(tmp_path: Path) -> None:
    hostile = "</title><script>alert(1)</script><img src=x onerror=1>"
    write(tmp_path, "data.ndjson", patient("1", name=[{"family": "x"}]))
    summary(tmp_path, project=hostile, config=config(report={"purpose": hostile, "language": "de"}))
    page = files.page_of(tmp_path)
    text = page.read_text()
    assert {path.stat().st_mode & 0o777 for path in (page, files.document_of(tmp_path))} == {0o600}
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o700
    assert "<script" not in text
    assert "<img" not in text
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in text
    assert not re.search(r"(?:src|href)=\"(?!#)", text)
    assert {path.name for path in (tmp_path / "report").iterdir()} == {page.name, files.document_of(tmp_path).name}


# 7: the same job twice


def test_the_same_job_gives_the_same_report(tmp_path: Path) -> None:
    made: list[tuple[str, ReleaseReport]] = []
    for name in ("a", "b"):
        job = tmp_path / name
        deliver(job, LEFT[0][2], 3)
        made.append((everything(job, summary(job)).replace(str(job), ""), report(job)))
    assert made[0] == made[1]


def test_nothing_is_taken_from_an_earlier_report(tmp_path: Path) -> None:
    deliver(tmp_path, LEFT[0][2], 3)
    summary(tmp_path)
    deliver(tmp_path, CLEAN[0], 3)
    again = everything(tmp_path, summary(tmp_path)).replace(str(tmp_path), "")
    fresh = tmp_path / "fresh"
    deliver(fresh, CLEAN[0], 3)
    assert everything(fresh, summary(fresh)).replace(str(fresh), "") == again
