"""substitute."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from tests.deployments.sandbox.pseudonymization.conftest import apply, labelled, labels, raw, rule, rules

ADDRESS = {"city": "Ort", "country": "DE", "line": ["Weg 1"], "period": {"start": "2020"}}
PATIENT = {"resourceType": "Patient", "gender": "female", "active": True, "address": [ADDRESS]}


def test_a_value_is_replaced() -> None:
    assert apply(rules(rule("Patient.gender", "substitute", replaceWith="unknown")), PATIENT)["gender"] == "unknown"


def test_its_id_and_extensions_go() -> None:
    resource = PATIENT | {"_gender": {"id": "x", "extension": [{"url": "u"}]}}
    assert "_gender" not in apply(rules(rule("Patient.gender", "substitute", replaceWith="unknown")), resource)


def test_nothing_takes_the_value_away() -> None:
    assert "gender" not in apply(rules(rule("Patient.gender", "substitute", replaceWith="")), PATIENT)


def test_a_value_that_is_no_string_keeps_its_type_and_spelling() -> None:
    assert apply(rules(rule("Patient.active", "substitute", replaceWith="false")), PATIENT)["active"] is False
    resource = b'{"resourceType":"Observation","valueQuantity":{"value":7.25}}'
    assert b'"value":1.50' in raw(rules(rule("Observation.value.value", "substitute", replaceWith="1.50")), resource)


@pytest.mark.parametrize(("path", "given"), [("Patient.active", "perhaps"), ("Patient.gender", {"a": "b"})])
def test_a_value_of_another_type_is_a_failure(path: str, given: Any) -> None:
    with pytest.raises(ProcessingFailureError):
        apply(rules(rule(path, "substitute", replaceWith=given)), PATIENT)


@pytest.mark.parametrize("given", ['{"city": "Anderswo"}', {"city": "Anderswo"}])
def test_an_object_is_replaced_as_a_whole(given: Any) -> None:
    done = apply(rules(rule("Patient.address", "substitute", replaceWith=given)), PATIENT)
    assert done["address"] == [{"city": "Anderswo"}]


def test_what_earlier_rules_handled_in_it_stays() -> None:
    file = rules(
        rule("Patient.address.country", "keep"),
        rule("Patient.address.period", "keep"),
        rule(
            "Patient.address", "substitute", replaceWith={"city": "Anderswo", "country": "XX", "period": {"end": "1"}}
        ),
    )
    assert apply(file, PATIENT)["address"] == [
        {"country": "DE", "period": {"start": "2020", "end": "1"}, "city": "Anderswo"}
    ]


def test_an_object_that_is_none_is_a_failure() -> None:
    with pytest.raises(ProcessingFailureError):
        apply(rules(rule("Patient.address", "substitute", replaceWith="Anderswo")), PATIENT)


def test_a_resource_in_it_goes() -> None:
    entry = {"fullUrl": "http://x/Patient/p", "resource": PATIENT}
    file = rules(rule("Bundle.entry", "substitute", replaceWith={"fullUrl": "http://y"}))
    done = apply(file, {"resourceType": "Bundle", "type": "batch", "entry": [entry]})
    assert done["entry"] == [{"fullUrl": "http://y"}]


@pytest.mark.parametrize("path", ["Patient", "nodesByType('Patient')"])
def test_a_whole_resource_cannot_be_replaced(path: str) -> None:
    with pytest.raises(ProcessingFailureError):
        apply(rules(rule(path, "substitute", replaceWith="x")), PATIENT)


def test_every_element_gets_a_content_of_its_own() -> None:
    resource = {"resourceType": "Patient", "address": [ADDRESS, ADDRESS]}
    file = rules(rule("Patient.address", "substitute", replaceWith={"line": ["x"]}))
    assert apply(file, resource)["address"] == [{"line": ["x"]}, {"line": ["x"]}]


def test_the_label() -> None:
    file = rules(rule("Patient.address", "substitute", replaceWith={"city": "x"}))
    assert labels(labelled(file, PATIENT)) == ["SUBSTITUTED"]
