"""Identifiers of persons that come out as they went in (document 3 §4): what is counted, kept, worded and stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.pseudonymizer.answer_check import outline_of, resources_in
from tasks.pseudonymizer.residual_identifiers import Residuals, paths_of
from tasks.shared.errors import DataError
from tasks.shared.publication import people
from tests.peers.pseudonymization import FakeService, Job, bundle, observation, patient, pseudonyms

NAME = [{"family": "Canary", "given": ["Bird", "Yellow"]}]
NUMBER = {"system": "http://hospital.example/mrn", "value": "4711"}


def found(sent: list[dict[str, Any]], received: list[dict[str, Any]], *kept: str) -> dict[str, int]:
    """What is counted when ``received`` comes back for ``sent``; with ``kept``, what is kept on purpose too."""
    before, after = [json.dumps(bundle("b", *resources)).encode() for resources in (sent, received)]
    counts = Residuals(frozenset(kept)).count(before, outline_of(before), after, resources_in(after, outline_of(after)))
    return paths_of(counts) | {f"kept {path}": count for path, count in paths_of(counts, kept=True).items()}


@pytest.mark.parametrize("kind", ["Patient", "RelatedPerson", "Person", "Practitioner"])
def test_persons_are_counted_once_a_path(kind: str) -> None:
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
        outline = outline_of(text)
        paths = paths_of(Residuals().count(text, outline, text, resources_in(text, outline)))
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


def test_names_that_a_service_invents_are_not_said() -> None:
    back = observation("o") | {"Erika Muster": {"identifier": NUMBER}}
    paths = found([patient("p", identifier=[NUMBER])], [patient("x"), back])
    assert paths == {"Observation.….identifier.value": 1}


def test_one_patient_counts_once_however_often_the_number_stands() -> None:
    sent = [patient("p", identifier=[NUMBER]), *(observation(f"o{number}") for number in range(10))]
    back = [patient("x"), *(observation("o", performer=[{"identifier": NUMBER}]) for _ in range(10))]
    assert found(sent, back) == {"Observation.performer.identifier.value": 1}


@pytest.mark.parametrize("odd", [{"value": ["4711"]}, {"system": [], "value": "x"}, {"value": {}}, {"value": 1.5}])
def test_values_of_an_odd_shape_are_read_without_an_end(odd: dict[str, Any]) -> None:
    person = patient("p", identifier=[odd], contained=[{"resourceType": []}], x=1e300)
    assert set(found([person], [person])) <= {"Patient.identifier.value"}


@pytest.mark.parametrize(("count", "words"), [(0, "none"), (1, "fewer than 5"), (4, "fewer than 5"), (5, "5"),
                                              (7, "5"), (8, "10"), (1003, "1,005")])  # fmt: skip
def test_small_counts_of_people_are_never_numbers(count: int, words: str) -> None:
    assert people(count, 5) == words
    assert people(12, 11) == "11"  # rounded, and never below k


def fill(job: Job, patients: int) -> None:
    for name in ("a", "b"):
        people = [patient(f"{name}{number}", name=NAME) for number in range(patients)]
        job.write(
            f"{name}.ndjson", *(bundle(person["id"], person, observation(f"o{person['id']}")) for person in people)
        )


def without_given_names(resource: bytes) -> bytes:
    return pseudonyms(resource).replace(b'"Bird","Yellow"', b'"x"')


def test_the_first_file_that_has_one_stops_the_step_and_is_not_finished(tmp_path: Path) -> None:
    job = Job(tmp_path)
    fill(job, 3)
    with FakeService(pseudonyms) as service, pytest.raises(DataError) as caught:
        job.run(service.url, max_concurrent_requests=1)
    assert (caught.value.reference, caught.value.context) == ("residual-identifiers", "a.ndjson")
    assert "Patient.name.given (fewer than 5 patients)" in caught.value.message
    assert "Bird" not in caught.value.render()
    assert not [path for path in job.output.iterdir() if path.suffix == ".ndjson"]


def test_a_stop_stays_one_until_the_rules_or_the_configuration_change(tmp_path: Path) -> None:
    job = Job(tmp_path)
    fill(job, 3)
    with FakeService(pseudonyms) as service:
        for _ in range(2):
            with pytest.raises(DataError):
                job.run(service.url)
        warned = job.run(service.url, residual_identifiers="warn")
        assert any("Patient.name.given (5 patients)" in warning for warning in warned.warnings)
        with pytest.raises(DataError):  # also for files that are finished
            job.run(service.url)
        kept = job.run(service.url, kept_identifiers=["Patient.name.given"])
        with pytest.raises(DataError):
            job.run(service.url)
    with FakeService(without_given_names) as service:
        clean = job.run(service.url)
    assert any("kept on purpose: Patient.name.given (5 patients)" in warning for warning in kept.warnings)
    assert clean.details["residual_identifiers"] == "none"
    assert not any("identif" in warning for warning in clean.warnings)
