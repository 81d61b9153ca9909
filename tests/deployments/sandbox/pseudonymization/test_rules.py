"""Rules of the pseudonymization service: which rule an element gets, and what each method does (document 3 §4)."""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import date, timedelta
from typing import Any

import pytest

from deployments.sandbox.pseudonymization.dates import Calendar, DateShift
from deployments.sandbox.pseudonymization.deidentify import DeIdentifier
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError, RuleFileError
from deployments.sandbox.pseudonymization.rulefile import RuleParameters, read_rule_file
from tests.deployments.sandbox.pseudonymization.conftest import KEYS, apply, labelled, labels, raw, rule, rules

PATIENT = {
    "resourceType": "Patient",
    "id": "p1",
    "identifier": [
        {"type": {"coding": [{"system": "urn:v2", "code": "MR"}]}, "system": "urn:mr", "value": "4711"},
        {"type": {"coding": [{"system": "urn:v2", "code": "SS"}]}, "system": "urn:ss", "value": "0815"},
    ],
    "name": [{"use": "official", "family": "Muster", "given": ["Erika", "Maria"]}],
    "contact": [{"name": {"family": "Anders"}, "address": {"city": "Ort", "country": "DE"}}],
    "gender": "female",
}
OBSERVATION = {"resourceType": "Observation", "id": "o", "status": "final", "subject": {"reference": "Patient/p1"}}


def bundle(*resources: dict[str, Any], **fields: Any) -> dict[str, Any]:
    entries = [{"fullUrl": f"http://x/{r['resourceType']}/{r.get('id')}", "resource": r} for r in resources]
    return {"resourceType": "Bundle", "id": "b", "type": "collection", "entry": entries} | fields


# Assignment


def test_the_first_rule_that_matches_an_element_or_one_above_it_handles_it() -> None:
    keep, redact = rule("Patient.name", "keep"), rule("nodesByType('HumanName')", "redact")
    assert apply(rules(keep, redact), PATIENT)["name"] == PATIENT["name"]
    assert "name" not in apply(rules(redact, keep), PATIENT)
    country, contact = rule("nodesByType('Address').country", "keep"), rule("Patient.contact", "redact")
    assert "contact" not in apply(rules(contact, country), PATIENT)
    assert apply(rules(country, contact), PATIENT)["contact"] == [{"address": {"country": "DE"}}]


REDACTED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "by name": ("nodesByName('family')", {"name": [{"family": "A", "use": "usual"}]}, {"name": [{"use": "usual"}]}),
    "of every type": ("Resource.id", {"id": "x", "active": True}, {"active": True}),
    "a choice": ("Patient.deceased", {"deceasedBoolean": True}, {}),
    "a type of a choice": (
        "Patient.deceased.ofType(boolean)", {"deceasedDateTime": "2020"}, {"deceasedDateTime": "2020"},
    ),
    "alternatives": ("(Patient.gender | Patient.name.given)", {"gender": "male", "name": [{"given": ["A"]}]}, {}),
    "an extension by its URL": (
        "Patient.extension('http://a')",
        {"extension": [{"url": "http://a", "valueString": "1"}, {"url": "http://b", "valueString": "2"}]},
        {"extension": [{"url": "http://b", "valueString": "2"}]},
    ),
    "with what is beside a primitive": (
        "Patient.birthDate", {"birthDate": "1990", "_birthDate": {"extension": [{"url": "u"}]}}, {},
    ),
    "a criterion": (
        "Patient.name.where(use = 'usual').family",
        {"name": [{"use": "usual", "family": "A"}, {"use": "old", "family": "B"}]},
        {"name": [{"use": "usual"}, {"use": "old", "family": "B"}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("path", "given", "left"), REDACTED.values(), ids=REDACTED)
def test_what_a_path_finds(path: str, given: dict[str, Any], left: dict[str, Any]) -> None:
    patient = {"resourceType": "Patient"}
    assert apply(rules(rule(path, "redact")), patient | given) == patient | left


def test_a_criterion_that_fails_leaves_the_element_to_the_next_rule() -> None:
    path = "Patient.identifier.where(type.coding.where(system='urn:v2' and code='MR').exists()).value"
    file = rules(rule(path, "keep"), rule("nodesByType('Identifier').value", "redact"))
    assert [item.get("value") for item in apply(file, PATIENT)["identifier"]] == ["4711", None]


def test_resources_in_bundles_and_contained_ones_get_the_rules_of_their_type() -> None:
    file = rules(rule("Patient.id", "redact"), rule("Observation.status", "redact"))
    contained = OBSERVATION | {"contained": [{"resourceType": "Patient", "id": "c"}]}
    patient, observation = (entry["resource"] for entry in apply(file, bundle(PATIENT, contained))["entry"])
    assert "id" not in patient
    assert "status" not in observation
    assert observation["contained"] == [{"resourceType": "Patient"}]


@pytest.mark.parametrize("text", ["1.50", "1E2", "-0.0", "12345678901234567890123"])
def test_what_no_rule_matches_stays_byte_for_byte(text: str) -> None:
    document = f'{{"resourceType":"Observation","id":"ä","valueQuantity":{{"value":{text}}}}}'.encode()
    assert raw(rules(rule("Patient.photo", "redact")), document) == document


# Methods


def digest(text: str, key: str = KEYS["cryptoHashKey"]) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def test_hashed_ids_and_references_stay_consistent() -> None:
    file = rules(
        rule("Resource.id", "cryptoHash"),
        rule("nodesByType('Reference').reference", "cryptoHash"),
        rule("Bundle.entry.fullUrl", "cryptoHash"),
        rule("Bundle.entry.request.url", "cryptoHash"),
    )
    given = bundle(PATIENT, OBSERVATION)
    given["entry"][0]["request"] = {"method": "PUT", "url": "Patient/p1"}
    first, second = apply(file, given)["entry"]
    assert first["resource"]["id"] == digest("p1")
    assert first["fullUrl"] == f"http://x/Patient/{digest('p1')}"
    assert first["request"]["url"] == second["resource"]["subject"]["reference"] == f"Patient/{digest('p1')}"


def test_a_hash_may_be_shorter_and_depends_on_the_key() -> None:
    short = rules(rule("Resource.id", "cryptoHash", truncateToMaxLength=16), cryptoHashKey="another")
    assert apply(short, PATIENT)["id"] == digest("p1", "another")[:16]
    none = rules(rule("Resource.id", "cryptoHash"), cryptoHashKey="")
    assert apply(none, PATIENT)["id"] != apply(none, PATIENT)["id"]  # every request has a key of its own


def pseudonym(**settings: Any) -> str:
    done = apply(rules(rule("Patient.identifier.value", "pseudonymize", **settings)), PATIENT)
    return str(done["identifier"][0]["value"])


def test_a_pseudonym_shows_its_domain_and_not_its_value() -> None:
    assert re.fullmatch("patient-[a-z2-7]{24}", pseudonym(domain="patient"))
    assert pseudonym(domain="a") == pseudonym(domain="a") == pseudonym(namespace="a")
    assert pseudonym(domain="a").removeprefix("a-") != pseudonym(domain="b").removeprefix("b-")


def test_pseudonyms_of_ids_and_references_use_their_type() -> None:
    file = rules(rule("Resource.id", "pseudonymize"), rule("nodesByType('Reference').reference", "pseudonymize"))
    assert apply(file, OBSERVATION)["subject"]["reference"] == f"Patient/{apply(file, PATIENT)['id']}"
    with pytest.raises(ProcessingFailureError):
        pseudonym()


def test_generalize_gives_the_value_of_the_first_case_that_holds() -> None:
    def born(day: str, **settings: Any) -> Any:
        cases = {"$this < @1931-01-01": "@1930-01-01"}
        file = rules(rule("Patient.birthDate", "generalize", cases=cases, **settings))
        return apply(file, {"resourceType": "Patient", "birthDate": day}).get("birthDate")

    assert born("1920-05-17") == "1930-01-01"
    assert born("1950-05-17") is None
    assert born("1950-05-17", otherValues="keep") == "1950-05-17"


def test_substitute_replaces_a_value_or_an_object() -> None:
    assert apply(rules(rule("Patient.gender", "substitute", replaceWith="unknown")), PATIENT)["gender"] == "unknown"
    done = apply(rules(rule("Patient.contact", "substitute", replaceWith={"gender": "other"})), PATIENT)
    assert done["contact"] == [{"gender": "other"}]
    with pytest.raises(ProcessingFailureError):
        apply(rules(rule("Patient", "substitute", replaceWith="x")), PATIENT)


@pytest.mark.parametrize(
    ("applied", "label"),
    [
        (rule("Patient.name", "redact"), "REDACTED"),
        (rule("Resource.id", "cryptoHash"), "CRYTOHASH"),
        (rule("Resource.id", "pseudonymize"), "PSEUDED"),
        (rule("Patient.contact", "substitute", replaceWith={"gender": "other"}), "SUBSTITUTED"),
    ],
)
def test_a_label_says_what_was_done(applied: dict[str, Any], label: str) -> None:
    assert labels(labelled(rules(applied), PATIENT)) == [label]


# Dates


@pytest.mark.parametrize(
    ("day", "left"), [("1990-05-17", "1990"), ("1990", "1990"), ("1936-03-02", None), ("Mai 1990", None)]
)
def test_with_partial_dates_the_year_stays_unless_it_tells_an_age_above_89(day: str, left: str | None) -> None:
    file = rules(rule("Patient.birthDate", "redact"), enablePartialDatesForRedact=True)
    assert apply(file, {"resourceType": "Patient", "birthDate": day}).get("birthDate") == left


@pytest.mark.parametrize(("code", "left"), [("12345", "12300"), ("03601", "00000")])
def test_with_partial_postal_codes_the_area_stays(code: str, left: str) -> None:
    parameters = {"enablePartialZipCodesForRedact": True, "restrictedZipCodeTabulationAreas": ["036"]}
    file = rules(rule("Patient.address", "redact"), **parameters)
    assert apply(file, {"resourceType": "Patient", "address": [{"postalCode": code}]})["address"] == [
        {"postalCode": left}
    ]


SHIFT = [rule(f"nodesByType('{kind}')", "dateShift") for kind in ("date", "dateTime", "instant")]


def recorded(text: str, file: bytes, **more: Any) -> Any:
    return apply(file, {"resourceType": "Condition", "recordedDate": text} | more).get("recordedDate")


def offset(seed: str, key: str = KEYS["dateShiftKey"]) -> int:
    return DateShift(RuleParameters(), key, Calendar()).offset(seed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2024-02-28", "2024-02-29"),
        ("2024-02-28T23:59:58+01:00", "2024-02-29T00:00:00+01:00"),
        ("2024-02", None),
        ("1936-03-02", None),
    ],
)
def test_a_date_moves_and_its_time_becomes_zero(before: str, after: str | None) -> None:
    assert recorded(before, rules(*SHIFT, dateShiftFixedOffsetInDays=1)) == after


def test_the_offset_is_the_deployed_service_s() -> None:
    # ((('1' · 131 + 'a') mod 101) …) − 50, from its arithmetic with seed "1" and key "a".
    assert offset("1", "a") == ((49 % 101) * 131 + 97) % 101 - 50
    assert {offset(str(number)) for number in range(3000)} == set(range(-50, 51))


def test_the_id_of_the_resource_that_was_sent_seeds_the_offset() -> None:
    conditions = [{"resourceType": "Condition", "id": key, "recordedDate": "2024-06-15"} for key in "xy"]
    done = apply(rules(*SHIFT), bundle(*conditions))
    expected = (date(2024, 6, 15) + timedelta(days=offset("b"))).isoformat()
    assert [entry["resource"]["recordedDate"] for entry in done["entry"]] == [expected, expected]
    # A rule before that changes the id changes the seed, too.
    hashed = (date(2024, 6, 15) + timedelta(days=offset(digest("c")))).isoformat()
    assert recorded("2024-06-15", rules(rule("Resource.id", "cryptoHash"), *SHIFT), id="c") == hashed


@pytest.mark.parametrize("text", ["2023-02-30", "yesterday"])
def test_an_unshiftable_value_is_a_failure_quoted_only_in_its_diagnostics(text: str) -> None:
    with pytest.raises(ProcessingFailureError) as failed:
        recorded(text, rules(*SHIFT))
    assert text in failed.value.diagnostics
    assert text not in str(failed.value)


# Rule files


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "mapping"),
        (b"{", "YAML"),
        (b"fhirVersion: R4", "fhirPathRules"),
        (b"fhirVersion: STU3\nfhirPathRules: []", "R4"),
        (b"fhirPathRules: [{path: Patient}]", "fhirPathRules.0.method"),
        (rules(rule("Patient.name", "shred")), "shred"),
        (rules(rule("Patient.name[0]", "redact")), "Patient.name[0]"),
        (rules(rule("Patient.name.first()", "redact")), "first"),
        (rules(rule("Patient.name.where(resolve().exists())", "redact")), "resolve"),
    ],
)
def test_a_rule_file_that_cannot_be_used_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(RuleFileError, match=re.escape(says)):
        DeIdentifier(read_rule_file(content))
