"""Identifiers of persons that come out as they went in (document 3 §4): what is counted, kept, worded and stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.pseudonymizer import residual_identifiers
from tasks.pseudonymizer.answer_check import outline_of
from tasks.pseudonymizer.residual_identifiers import Residuals, paths_of
from tasks.shared.errors import DataError
from tests.peers.data import identified as bundle
from tests.peers.data import observation, patient
from tests.peers.pseudonymization import FakePseudonymizer, PseudonymizationRequest, PseudonymizerJob
from tests.peers.server import Reply
from tests.peers.services import pseudonyms

NAME = [{"family": "Canary", "given": ["Bird", "Yellow"]}]
NUMBER = {"system": "http://hospital.example/mrn", "value": "4711"}


def found(sent: list[dict[str, Any]], received: list[dict[str, Any]], *kept: str) -> dict[str, int]:
    """Return the counts for ``received`` as the answer to ``sent``; with ``kept``, also those kept on purpose."""
    before, after = [json.dumps(bundle("b", *resources)).encode() for resources in (sent, received)]
    residuals = Residuals(frozenset(kept))
    counts = dict.fromkeys(residuals.paths(outline_of(before, sent=True), outline_of(after)), 1)
    return paths_of(counts) | {f"kept {path}": count for path, count in paths_of(counts, kept=True).items()}


@pytest.mark.parametrize("kind", ["Patient", "RelatedPerson", "Person", "Practitioner"])
def test_persons_are_found_by_path(kind: str) -> None:
    person = {"resourceType": kind, "id": "p", "name": NAME, "identifier": [NUMBER]}
    assert found([person], [person]) == {
        f"{kind}.identifier.value": 1, f"{kind}.name.family": 1, f"{kind}.name.given": 1,
    }  # fmt: skip
    assert found([person], [{"resourceType": kind, "id": "x", "name": [{"family": "y"}]}]) == {}


@pytest.mark.parametrize("kind", ["Provenance", "Organization", "Location", "Medication", "Device"])
def test_what_identifies_no_person_is_never_counted(kind: str) -> None:
    other = {"resourceType": kind, "id": "o", "name": "Canary", "identifier": [NUMBER]}
    assert found([patient("p", identifier=[NUMBER]), other], [patient("x"), other]) == {}


def test_the_identifier_of_an_attribute_group_is_none_of_a_person() -> None:
    group = {"system": "https://groups.example", "value": "g-cond"}
    one = observation("o") | {"subject": {"reference": "Patient/p", "identifier": group}}
    assert found([patient("p", identifier=[NUMBER]), one], [patient("x"), one]) == {}


@pytest.mark.parametrize("number", ["4711", 'Größe "4711"', "a+b&c"])
def test_an_identifier_is_found_in_every_spelling_and_wherever_it_stands(number: str) -> None:
    identifier = {"value": number}
    sent = [patient("p", identifier=[identifier]), observation("o")]
    back = observation("o", performer=[{"identifier": identifier}, {"identifier": identifier}])
    assert found(sent, [patient("x"), back]) == {"Observation.performer.identifier.value": 1}


def test_contained_persons_count_on_both_sides() -> None:
    inside = observation("o", contained=[{"resourceType": "Practitioner", "telecom": [{"value": "030 4711"}]}])
    assert found([inside], [inside]) == {"Observation.contained.Practitioner.telecom.value": 1}


def test_kept_systems_and_paths_are_counted_apart() -> None:
    person = patient("p", name=NAME, identifier=[NUMBER])
    assert found([person], [person], "Patient.name", NUMBER["system"]) == {
        "kept Patient.identifier.value": 1, "kept Patient.name.family": 1, "kept Patient.name.given": 1,
    }  # fmt: skip
    assert "Patient.name.family" in found([person], [person], "Patient.na")  # a path, not the beginning of a word


@pytest.mark.parametrize("value", ["", " ", None, 5, {}, [], [None], {"family": None}])
def test_blank_and_odd_values_identify_nobody(value: Any) -> None:
    person = patient("p", name=value, identifier=value)
    assert found([person], [person]) == {}


@pytest.mark.parametrize("wrapped", [
    lambda person: {"resourceType": "Bundle", "id": "x", "type": "collection", "entry": [{"resource": person}]},
    lambda person: {"resourceType": "Parameters", "id": "x", "parameter": [{"part": [{"resource": person}]}]},
    lambda person: observation("o", contained=[person]),
])  # fmt: skip
def test_a_person_is_found_wherever_the_resource_stands(wrapped: Any) -> None:
    inside = wrapped(patient("p", name=NAME, identifier=[NUMBER]))
    for one in (inside, bundle("b", inside)):
        text = json.dumps(one).encode()
        paths = Residuals().paths(outline_of(text, sent=True), outline_of(text))
        assert {path.rpartition("Patient.")[2] for path in paths} >= {"name.family", "name.given", "identifier.value"}


@pytest.mark.parametrize("name", ["valueIdentifier", "accessionIdentifier", "requisition", "groupIdentifier"])
def test_an_identifier_has_many_names(name: str) -> None:
    back = observation("o", extension=[{name: NUMBER}])
    assert found([patient("p", identifier=[NUMBER])], [patient("x"), back]) == {
        f"Observation.extension.{name}.value": 1
    }


def test_the_parts_of_a_name_and_a_street_that_stand_in_extensions_count() -> None:
    part = {"extension": [{"url": "x", "valueString": "Canaryweg"}]}
    person = patient("p", address=[{"_line": [part]}], name=[{"_family": part, "prefix": ["Graf"]}])
    assert set(found([person], [person])) == {
        "Patient.address._line.extension.valueString", "Patient.name._family.extension.valueString",
        "Patient.name.prefix",
    }  # fmt: skip


def test_a_number_under_the_label_of_a_kept_system_is_not_kept() -> None:
    relabelled = patient("x", identifier=[{"system": "http://kept", "value": "4711"}])
    assert found([patient("p", identifier=[NUMBER])], [relabelled], "http://kept") == {"Patient.identifier.value": 1}


def test_a_number_is_kept_only_when_everybody_has_it_under_a_system_that_is_kept() -> None:
    study = {"system": "http://kept", "value": "17"}
    sent = [patient("p", identifier=[study]), patient("q", identifier=[study | {"system": "http://mrn"}])]
    assert found(sent, sent, "http://kept") == {"Patient.identifier.value": 1}
    assert found(sent[:1], sent[:1], "http://kept") == {"kept Patient.identifier.value": 1}
    nameless = patient("p", identifier=[study, {"value": "17"}])
    assert found([nameless], [nameless], "http://kept") == {"Patient.identifier.value": 1}


def core_patient(number: str, **more: Any) -> dict[str, Any]:
    """In the shape of the German core data set: the number of a health insurance, which another one assigned."""
    insurance = {"system": "http://fhir.de/sid/arge-ik/iknr", "value": "260326822"}
    identifier = {
        "type": {"coding": [{"system": "http://fhir.de/CodeSystem/identifier-type-de-basis", "code": "GKV"}]},
        "system": "http://fhir.de/sid/gkv/kvid-10",
        "value": number,
        "assigner": {"identifier": insurance},
    }
    return patient(
        "p", identifier=[identifier], managingOrganization={"identifier": insurance},
        generalPractitioner=[{"identifier": {"value": "838382202"}}], **more,
    )  # fmt: skip


def test_numbers_of_organizations_in_a_person_are_none_of_hers() -> None:
    coverage = observation("o", performer=[{"identifier": {"value": "260326822"}}])
    assert found([core_patient("A123456789"), coverage], [core_patient("pseudonym"), coverage]) == {}
    doctor = {"resourceType": "Practitioner", "id": "d", "qualification": [
        {"identifier": [{"value": "L-17"}], "issuer": {"identifier": {"value": "chamber"}}}
    ]}  # fmt: skip
    assert found([doctor], [doctor]) == {"Practitioner.qualification.identifier.value": 1}


def test_a_number_of_a_person_below_an_assigner_is_found() -> None:
    back = patient("x", identifier=[{"value": "y", "assigner": {"identifier": {"value": "A123456789"}}}])
    assert found([core_patient("A123456789")], [back]) == {"Patient.identifier.assigner.identifier.value": 1}


@pytest.mark.parametrize("place", [
    {"resourceType": "RelatedPerson", "patient": {"identifier": NUMBER}},
    {"resourceType": "Patient", "link": [{"other": {"identifier": NUMBER}}]},
    {"resourceType": "Person", "link": [{"target": {"identifier": NUMBER}}]},
])  # fmt: skip
def test_a_reference_to_a_person_has_a_number_of_hers(place: dict[str, Any]) -> None:
    assert len(found([place | {"id": "p"}], [place | {"id": "x"}])) == 1


def test_names_that_a_service_invents_are_not_said() -> None:
    back = observation("o") | {"Erika Muster": {"identifier": NUMBER}}
    paths = found([patient("p", identifier=[NUMBER])], [patient("x"), back])
    assert paths == {"Observation.….identifier.value": 1}


@pytest.mark.parametrize("odd", [{"value": ["4711"]}, {"system": [], "value": "x"}, {"value": {}}, {"value": 1.5}])
def test_values_of_an_odd_shape_are_read_without_an_end(odd: dict[str, Any]) -> None:
    person = patient("p", identifier=[odd], contained=[{"resourceType": []}], x=1e300)
    assert set(found([person], [person])) <= {"Patient.identifier.value"}


def fill(job: PseudonymizerJob, patients: int) -> None:
    for name in ("a", "b"):
        people = [patient(f"{name}{number}", name=NAME) for number in range(patients)]
        job.write(
            f"{name}.ndjson",
            *(bundle(person["id"], person, observation(f"o{person['id']}", person["id"])) for person in people),
        )


def without_given_names(resource: bytes) -> bytes:
    return pseudonyms(resource).replace(b'"Bird","Yellow"', b'"x"')


def test_the_first_file_that_has_one_stops_the_step_and_is_not_finished(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    fill(job, 3)
    with FakePseudonymizer(pseudonyms) as service, pytest.raises(DataError) as caught:
        job.run(service.url, max_concurrent_requests=1)
    assert (caught.value.reference, caught.value.context) == ("residual-identifiers", "a.ndjson")
    assert "Patient.name.given (3 lines)" in caught.value.message
    assert "Bird" not in caught.value.render()
    assert not [path for path in job.output.iterdir() if path.suffix == ".ndjson"]


@pytest.mark.slow
@pytest.mark.parametrize("halved", [False, True], ids=["split", "halved"])
@pytest.mark.parametrize(("photo", "crowd"), [(False, 0), (True, 0), (False, 100)], ids=["plain", "photo", "crowd"])
def test_a_number_is_found_beside_a_person_that_went_in_another_request(
    tmp_path: Path, *, halved: bool, photo: bool, crowd: int
) -> None:
    job = PseudonymizerJob(tmp_path)
    number = [{"system": "https://example.org/sid/case", "value": "F-4711-0815"}]
    others = [observation(f"o{at}", note=[{"text": "x" * 40_000}]) for at in range(60)]
    last = observation("last") | {"identifier": number}
    more = [patient(f"q{at}", text={"div": "y" * 20_000}, identifier=[{"value": f"N{at}"}]) for at in range(crowd)]
    one = patient("p", identifier=number, photo=[{"data": "QUFB" * (300_000 if photo else 1)}])
    job.write("a.ndjson", bundle("b", *more, one, *others, last))

    def script(_: int, request: PseudonymizationRequest) -> Reply | None:
        return Reply(413) if halved and len(request.resource) > 1_500_000 else None

    def hides(resource: bytes) -> bytes:
        """Return the number of the Patient alone."""
        patients = re.sub(rb'("resourceType":\s*"Patient".*?"value":\s*")[^"]*', rb"\1gone", resource)
        return pseudonyms(patients.replace(b"QUFB", b""))

    with FakePseudonymizer(hides, script) as service, pytest.raises(DataError) as caught:
        job.run(service.url, bundle_split_threshold_mb=10 if halved else 1)
    assert caught.value.reference == "residual-identifiers"
    assert "Observation.identifier.value" in caught.value.message
    assert len(service.requests) > 1


def test_a_stop_stays_one_until_the_rules_or_the_configuration_change(tmp_path: Path) -> None:
    job = PseudonymizerJob(tmp_path)
    fill(job, 3)
    with FakePseudonymizer(pseudonyms) as service:
        for _ in range(2):
            with pytest.raises(DataError):
                job.run(service.url)
        warned = job.run(service.url, residual_identifiers="warn")
        assert any("Patient.name.given (6 lines)" in warning for warning in warned.warnings)
        with pytest.raises(DataError):  # also for files that are finished
            job.run(service.url)
        kept = job.run(service.url, kept_identifiers=["Patient.name.given"])
        with pytest.raises(DataError):
            job.run(service.url)
    with FakePseudonymizer(without_given_names) as service:
        clean = job.run(service.url)
    assert warned.identifying == {"Patient.name.given": "6 lines"}
    assert (kept.identifying, kept.kept_identifiers) == (None, {"Patient.name.given": "6 lines"})
    assert any("kept on purpose: Patient.name.given (6 lines)" in warning for warning in kept.warnings)
    assert clean.details["residual_identifiers"] == "none"
    assert not any("identif" in warning for warning in clean.warnings)


@pytest.mark.parametrize("spelled", [r"12\/0815", "12/0815", r"12\u002f0815"])
def test_one_of_many_numbers_is_found_however_it_is_spelled(spelled: str) -> None:
    sent = [patient("p", identifier=[{"value": f"{at}/0815"} for at in range(40)]), observation("o")]
    before = json.dumps(bundle("b", *sent)).encode()
    back = [patient("x"), observation("o", performer=[{"identifier": {"value": "@"}}])]
    after = json.dumps(bundle("b", *back)).replace("@", spelled).encode()
    paths = Residuals().paths(outline_of(before, sent=True), outline_of(after))
    assert paths == {"residual Observation.performer.identifier.value"}


def test_an_empty_resource_hides_no_person_behind_it() -> None:
    entries = [{"resource": {}}, {"resource": patient("p", name=NAME)}]
    text = json.dumps({"resourceType": "Bundle", "entry": entries}).encode()
    assert len(Residuals().paths(outline_of(text, sent=True), outline_of(text))) == 2


def test_a_doctor_in_every_resource_takes_room_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_identifiers, "_HELD", 3 * 1024)
    doctor = {"resourceType": "Practitioner", "identifier": [{"value": "D-1"}]}
    many = [observation(f"o{at}", contained=[doctor], note=[{"text": "x" * 100_000}]) for at in range(15)]
    last = observation("last") | {"identifier": [{"value": "N-0004711"}], "note": [{"text": "x" * 1_000_000}]}
    job = PseudonymizerJob(tmp_path)
    job.write("a.ndjson", bundle("b", *many, patient("p", identifier=[{"value": "N-0004711"}]), last))

    def hides(resource: bytes) -> bytes:
        """Return the number of the doctors, and the patient's in her own resource."""
        return pseudonyms(
            re.sub(rb'("Patient".{0,200}?"value":\s*")N-', rb"\1gone-", resource.replace(b"D-1", b"gone"))
        )

    with FakePseudonymizer(hides) as service:
        report = job.run(service.url, bundle_split_threshold_mb=1, residual_identifiers="warn")
    assert report.details["split_bundles"] == 1
    assert report.identifying == {"Observation.identifier.value": "1 lines"}
    assert not any("than are held" in warning for warning in report.warnings)


def test_numbers_beyond_what_is_held_of_a_split_bundle_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_identifiers, "_HELD", 3 * 1024)
    job = PseudonymizerJob(tmp_path)
    people = [patient(f"p{at}", text="x" * 100_000, identifier=[{"value": f"N-{at}"}]) for at in range(15)]
    job.write("a.ndjson", bundle("b", *people))
    with FakePseudonymizer(lambda resource: pseudonyms(resource.replace(b"N-", b"gone-"))) as service:
        report = job.run(service.url, bundle_split_threshold_mb=1)
    assert any("more numbers of persons than are held" in warning for warning in report.warnings)
