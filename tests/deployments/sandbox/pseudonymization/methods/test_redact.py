"""redact, and the switches for partial values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deployments.sandbox.pseudonymization.conftest import apply, labelled, labels, rule, rules

REDACT = rule("Patient.birthDate", "redact")


def born(date: str, **parameters: Any) -> Any:
    return apply(rules(REDACT, **parameters), {"resourceType": "Patient", "birthDate": date}).get("birthDate")


def test_a_date_goes() -> None:
    assert born("1990-05-17") is None
    assert born("1990-05-17", enablePartialDatesForRedact=False) is None


@pytest.mark.parametrize("date", ["1990-05-17", "1990-05", "1990"])
def test_with_partial_dates_the_year_stays(date: str) -> None:
    assert born(date, enablePartialDatesForRedact=True) == "1990"


@pytest.mark.parametrize(
    ("date", "left"), [("1936-03-03", "1936"), ("1936-03-02", None), ("1936", None), ("1935", None)]
)
def test_a_date_that_tells_an_age_above_89_goes_in_any_case(date: str, left: str | None) -> None:
    assert born(date, enablePartialDatesForRedact=True) == left


def test_what_is_no_date_goes() -> None:
    assert born("Mai 1990", enablePartialDatesForRedact=True) is None


@pytest.mark.parametrize(("age", "left"), [("89", 89), ("45.5", 45.5), ("90", None), ("89.1", None)])
def test_with_partial_ages_only_those_above_89_go(age: str, left: float | None) -> None:
    resource = b'{"resourceType":"Condition","onsetAge":{"value":%s}}' % age.encode()
    file = rules(rule("nodesByType('Age')", "redact"), enablePartialAgesForRedact=True)
    assert apply(file, resource).get("onsetAge", {}).get("value") == left
    assert "onsetAge" not in apply(rules(rule("nodesByType('Age')", "redact")), resource)


@pytest.mark.parametrize(
    ("code", "left"), [("12345", "12300"), ("03601", "00000"), ("12", "12"), ("D-12345", "D-10000")]
)
def test_with_partial_postal_codes_the_area_stays(code: str, left: str) -> None:
    file = rules(
        rule("Patient.address", "redact"), enablePartialZipCodesForRedact=True, restrictedZipCodeTabulationAreas=["036"]
    )
    done = labelled(file, {"resourceType": "Patient", "address": [{"postalCode": code}]})
    assert done["address"] == [{"postalCode": left}]
    assert labels(done) == ["ABSTRED"]
