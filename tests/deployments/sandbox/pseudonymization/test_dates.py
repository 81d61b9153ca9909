"""Redaction of dates, ages and postal codes, and shifting of dates (document 3 §4)."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.sandbox.pseudonymization.dates import Calendar, DateShift
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from deployments.sandbox.pseudonymization.rulefile import RuleParameters
from tests.deployments.sandbox.pseudonymization.conftest import KEYS, apply, labelled, labels, rule, rules

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


SHIFT = [rule(f"nodesByType('{kind}')", "dateShift") for kind in ("date", "dateTime", "instant")]
ONE_DAY = rules(*SHIFT, dateShiftFixedOffsetInDays=1)


def recorded(text: str, file: bytes = ONE_DAY) -> Any:
    return apply(file, {"resourceType": "Condition", "recordedDate": text}).get("recordedDate")


def offset(seed: str, key: str = KEYS["dateShiftKey"]) -> int:
    return DateShift(RuleParameters(), key, Calendar()).offset(seed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2024-02-28", "2024-02-29"),
        ("2023-12-31", "2024-01-01"),
        ("2024-02-28T23:59:58+01:00", "2024-02-29T00:00:00+01:00"),
        ("2024-02-28T23:59:58.123Z", "2024-02-29T00:00:00.000Z"),
    ],
)
def test_a_date_moves_and_its_time_becomes_zero(before: str, after: str) -> None:
    assert recorded(before) == after


@pytest.mark.parametrize("text", ["2024-02", "2024"])
def test_a_date_without_a_day_is_redacted(text: str) -> None:
    assert recorded(text) is None
    assert recorded(text, rules(*SHIFT, enablePartialDatesForRedact=True)) == "2024"


def test_a_date_that_tells_an_age_above_89_is_redacted() -> None:
    assert recorded("1936-03-02") is None
    assert recorded("1936-03-03") == "1936-03-04"


def test_values_that_are_no_dates_stay() -> None:
    resource = {"resourceType": "Condition", "note": [{"text": "2024-01-01", "time": "2024-01-01"}]}
    file = rules(rule("Condition.note", "dateShift"), dateShiftFixedOffsetInDays=1)
    assert apply(file, resource)["note"] == [{"text": "2024-01-01", "time": "2024-01-02"}]


@pytest.mark.slow
@given(seed=st.text(), key=st.text())
def test_the_offset_is_at_most_fifty_days_and_always_the_same(seed: str, key: str) -> None:
    assert -50 <= offset(seed, key) <= 50
    assert offset(seed, key) == offset(seed, key)


def test_the_offset_is_the_deployed_service_s() -> None:
    # ((('1' · 131 + 'a') mod 101) …) − 50, from its arithmetic with seed "1" and key "a".
    assert offset("1", "a") == ((49 % 101) * 131 + 97) % 101 - 50


def test_the_whole_range_is_used() -> None:
    assert {offset(str(number)) for number in range(3000)} == set(range(-50, 51))


def test_the_id_of_the_resource_that_was_sent_seeds_the_offset() -> None:
    def moved(bundle: str, condition: str) -> Any:
        resource = {"resourceType": "Condition", "id": condition, "recordedDate": "2024-06-15"}
        done = apply(rules(*SHIFT), {"resourceType": "Bundle", "id": bundle, "entry": [{"resource": resource}]})
        return done["entry"][0]["resource"]["recordedDate"]

    expected = date(2024, 6, 15) + timedelta(days=offset("b1"))
    assert moved("b1", "x") == moved("b1", "y") == expected.isoformat()
    assert moved("b2", "x") == (date(2024, 6, 15) + timedelta(days=offset("b2"))).isoformat()
    assert offset("b1") != offset("b2")


def test_distances_within_a_bundle_stay() -> None:
    entries = [{"resource": {"resourceType": "Condition", "recordedDate": day}} for day in ("2024-01-30", "2024-03-01")]
    done = apply(rules(*SHIFT), {"resourceType": "Bundle", "id": "b", "entry": entries})
    first, second = (date.fromisoformat(entry["resource"]["recordedDate"]) for entry in done["entry"])
    assert second - first == timedelta(days=31)


def test_a_rule_before_that_changes_the_id_changes_the_seed_too() -> None:
    hashed = rule("Resource.id", "cryptoHash")
    resource = {"resourceType": "Condition", "id": "c", "recordedDate": "2024-06-15"}
    after, before = apply(rules(hashed, *SHIFT), resource), apply(rules(*SHIFT, hashed), resource)
    assert before["recordedDate"] == (date(2024, 6, 15) + timedelta(days=offset("c"))).isoformat()
    assert after["recordedDate"] == (date(2024, 6, 15) + timedelta(days=offset(after["id"]))).isoformat()


def test_the_order_of_keys_changes_nothing() -> None:
    file = rules(rule("Resource.id", "cryptoHash"), *SHIFT)
    resource = {"resourceType": "Condition", "id": "c", "recordedDate": "2024-06-15"}
    assert apply(file, resource) == apply(file, dict(reversed(resource.items())))


@pytest.mark.parametrize("text", ["2023-02-30", "yesterday", "9999-12-31", "24-01-01"])
def test_an_unshiftable_value_is_a_failure_quoted_only_in_its_diagnostics(text: str) -> None:
    with pytest.raises(ProcessingFailureError) as failed:
        recorded(text)
    assert text in failed.value.diagnostics
    assert text not in str(failed.value)


def test_without_a_key_every_request_has_another_one() -> None:
    file = rules(*SHIFT, dateShiftKey="")
    assert len({recorded("2024-06-15", file) for _ in range(20)}) > 1


def test_the_label() -> None:
    assert labels(labelled(ONE_DAY, {"resourceType": "Condition", "recordedDate": "2024-01-01"})) == ["PERTURBED"]
