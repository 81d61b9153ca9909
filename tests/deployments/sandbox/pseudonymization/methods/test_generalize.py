"""generalize."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from tests.deployments.sandbox.pseudonymization.conftest import apply, labelled, labels, raw, rule, rules

OLD = {"$this < @1931-01-01": "@1930-01-01"}


def born(date: str, **settings: Any) -> Any:
    file = rules(rule("Patient.birthDate", "generalize", **({"cases": OLD} | settings)))
    return apply(file, {"resourceType": "Patient", "birthDate": date}).get("birthDate")


def test_a_case_that_holds_gives_the_value() -> None:
    assert born("1920-05-17") == "1930-01-01"


def test_other_values_go_unless_they_are_kept() -> None:
    assert born("1950-05-17") is None
    assert born("1950-05-17", otherValues="redact") is None
    assert born("1950-05-17", otherValues="Keep") == "1950-05-17"


def test_the_first_case_that_holds_counts() -> None:
    assert born("1920-05-17", cases={"$this < @1925-01-01": "@1900-01-01"} | OLD) == "1900-01-01"


def test_a_case_without_an_answer_does_not_hold() -> None:
    assert born("1931", otherValues="keep") == "1931"


def test_cases_may_be_json_in_a_string() -> None:
    assert born("1920-05-17", cases='{"$this < @1931-01-01": "@1930-01-01"}') == "1930-01-01"


def test_values_are_computed() -> None:
    file = rules(rule("Patient.address.postalCode", "generalize", cases={"true": "$this.substring(0, 2)"}))
    assert apply(file, {"resourceType": "Patient", "address": [{"postalCode": "12345"}]})["address"] == [
        {"postalCode": "12"}
    ]


def test_numbers_are_numbers() -> None:
    cases = {"$this > 6.5": "$this / 4", "true": "1"}
    file = rules(rule("Observation.value.value", "generalize", cases=cases))
    assert b'"value":1.875}' in raw(file, b'{"resourceType":"Observation","valueQuantity":{"value":7.50}}')
    assert b'"value":1}' in raw(file, b'{"resourceType":"Observation","valueQuantity":{"value":6.50}}')


def test_a_case_that_cannot_be_computed_is_a_failure() -> None:
    with pytest.raises(ProcessingFailureError):
        born("1950-05-17", cases={"$this.substring($this) = 'x'": "'y'"})


def test_the_label() -> None:
    file = rules(rule("Patient.birthDate", "generalize", cases=OLD))
    assert labels(labelled(file, {"resourceType": "Patient", "birthDate": "1920-01-01"})) == ["GENERALIZED"]
