"""Results of the methods of rules for a value, and for the id in a reference (document 3 §4)."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any

import pytest

from deployments.sandbox.pseudonymization.methods import holds_reference, pseudonym, referenced_type, with_id
from deployments.sandbox.pseudonymization.model import child
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from tests.deployments.sandbox.pseudonymization.conftest import KEYS, apply, labelled, labels, raw, rule, rules


@pytest.mark.parametrize(
    ("reference", "changed"),
    [
        ("Patient/a-1", "Patient/<a-1>"),
        ("Patient/a-1/_history/2", "Patient/<a-1>/_history/2"),
        ("https://my-host.example:8443/fhir/Patient/a.1", "https://my-host.example:8443/fhir/Patient/<a.1>"),
        ("#contained", "#<contained>"),
        ("#", "#"),
        ("urn:uuid:0b3f1c0e-8a57-4f50-9c3c-7ad2f5a1d9a0", "urn:uuid:<0b3f1c0e-8a57-4f50-9c3c-7ad2f5a1d9a0>"),
        ("urn:oid:1.2.840.1", "urn:oid:<1.2.840.1>"),
        ("Patient?identifier=http://x-y.example/sid|4711", "Patient?identifier=http://x-y.example/sid|<4711>"),
        ("identifier=4711", "identifier=<4711>"),
        ("Wombat/1", "<Wombat/1>"),
        ("Patient/a?b=c", "<Patient/a?b=c>"),
        ("Patient/", "<Patient/>"),
    ],
)
def test_only_the_id_changes(reference: str, changed: str) -> None:
    assert with_id(reference, lambda part: f"<{part}>") == changed


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("Patient/1", "Patient"),
        ("http://x/fhir/Observation/1", "Observation"),
        ("Patient?identifier=1", "Patient"),
        ("identifier=1", None),
        ("#x", None),
        ("urn:oid:1.2.3", None),
    ],
)
def test_the_type_a_reference_names(reference: str, kind: str | None) -> None:
    assert referenced_type(reference) == kind


@pytest.mark.parametrize(
    ("path", "key", "value", "expected"),
    [
        ("Reference", "reference", "anything", True),
        ("Bundle.entry", "fullUrl", "http://x/Patient/1", True),
        ("Bundle.entry", "fullUrl", "urn:uuid:0b3f1c0e-8a57-4f50-9c3c-7ad2f5a1d9a0", False),
        ("Bundle.entry.request", "url", "Patient/1", True),
        ("Bundle.entry.request", "url", "Patient", False),
        ("Identifier", "system", "http://x/sid", False),
        ("Identifier", "value", "Patient/1", False),
    ],
)
def test_where_a_value_is_a_reference(path: str, key: str, value: str, expected: bool) -> None:
    element = child(path, key)
    assert element is not None
    assert holds_reference(element, value) is expected


FILE = rules(
    rule("Resource.id", "cryptoHash"),
    rule("nodesByType('Reference').reference", "cryptoHash"),
    rule("Bundle.entry.fullUrl", "cryptoHash"),
    rule("Bundle.entry.request.url", "cryptoHash"),
)


def digest(text: str, key: str = KEYS["cryptoHashKey"]) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def test_it_is_hmac_sha256_in_hexadecimal() -> None:
    assert apply(FILE, {"resourceType": "Patient", "id": "ä"})["id"] == digest("ä")


def test_ids_and_references_stay_consistent() -> None:
    entries = [
        {
            "fullUrl": "http://x/fhir/Patient/p",
            "resource": {"resourceType": "Patient", "id": "p"},
            "request": {"method": "PUT", "url": "Patient/p"},
        },
        {"resource": {"resourceType": "Observation", "subject": {"reference": "Patient/p"}}},
    ]
    first, second = apply(FILE, {"resourceType": "Bundle", "type": "transaction", "entry": entries})["entry"]
    hashed = digest("p")
    assert first["resource"]["id"] == hashed
    assert first["fullUrl"] == f"http://x/fhir/Patient/{hashed}"
    assert first["request"] == {"method": "PUT", "url": f"Patient/{hashed}"}
    assert second["resource"]["subject"]["reference"] == f"Patient/{hashed}"


def test_contained_resources_are_still_referred_to() -> None:
    resource = {
        "resourceType": "Observation",
        "contained": [{"resourceType": "Patient", "id": "c"}],
        "subject": {"reference": "#c"},
    }
    done = apply(FILE, resource)
    assert done["subject"]["reference"] == f"#{done['contained'][0]['id']}"


def test_a_url_that_names_no_resource_is_hashed_as_a_whole() -> None:
    entry = {"request": {"method": "POST", "url": "Patient"}}
    done = apply(FILE, {"resourceType": "Bundle", "type": "transaction", "entry": [entry]})
    assert done["entry"][0]["request"]["url"] == digest("Patient")


def test_truncation() -> None:
    file = rules(rule("Resource.id", "cryptoHash", truncateToMaxLength=16))
    assert apply(file, {"resourceType": "Patient", "id": "p"})["id"] == digest("p")[:16]


def test_other_keys_give_other_hashes() -> None:
    file = rules(rule("Resource.id", "cryptoHash"), cryptoHashKey="another")
    assert apply(file, {"resourceType": "Patient", "id": "p"})["id"] == digest("p", "another")


def test_a_derived_key_lasts_and_depends_on_its_context() -> None:
    def hashed(context: str) -> Any:
        file = rules(rule("Resource.id", "cryptoHash"), cryptoHashKey="", keyDerivationContext=context)
        return apply(file, {"resourceType": "Patient", "id": "p"})["id"]

    assert hashed("a") == hashed("a") != hashed("b")


def test_without_a_key_every_request_has_another_one() -> None:
    file = rules(rule("Resource.id", "cryptoHash"), cryptoHashKey="")
    resource = {"resourceType": "Patient", "id": "p"}
    assert apply(file, resource) != apply(file, resource)


def test_numbers_and_booleans_cannot_be_hashed() -> None:
    with pytest.raises(ProcessingFailureError) as failed:
        apply(rules(rule("Patient.active", "cryptoHash")), {"resourceType": "Patient", "active": True})
    assert "'true'" in failed.value.diagnostics
    assert "true" not in str(failed.value)


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


def identifier(**settings: Any) -> str:
    file = rules(rule("Patient.identifier.value", "pseudonymize", **settings))
    done = apply(file, {"resourceType": "Patient", "identifier": [{"value": "4711"}]})
    return str(done["identifier"][0]["value"])


def test_a_pseudonym_shows_its_domain_and_not_its_value() -> None:
    assert re.fullmatch("patient-[a-z2-7]{24}", identifier(domain="patient"))


def test_the_same_value_has_the_same_pseudonym_in_its_domain_only() -> None:
    assert identifier(domain="a") == identifier(domain="a")
    assert identifier(domain="a").removeprefix("a-") != identifier(domain="b").removeprefix("b-")


def test_it_depends_on_no_key_of_the_file() -> None:
    first = rules(rule("Resource.id", "pseudonymize"), cryptoHashKey="a")
    second = rules(rule("Resource.id", "pseudonymize"), cryptoHashKey="b")
    assert apply(first, {"resourceType": "Patient", "id": "p"}) == apply(second, {"resourceType": "Patient", "id": "p"})


def test_namespace_and_context_are_other_words_for_domain() -> None:
    assert identifier(namespace="a") == identifier(context="a") == identifier(domain="a")


def test_a_prefix_of_the_domain() -> None:
    assert identifier(domain="b", **{"domain-prefix": "a-"}) == identifier(domain="a-b")


def test_ids_and_references_use_their_type_where_no_domain_is_given() -> None:
    file = rules(rule("Resource.id", "pseudonymize"), rule("nodesByType('Reference').reference", "pseudonymize"))
    patient = apply(file, {"resourceType": "Patient", "id": "p"})
    observation = apply(file, {"resourceType": "Observation", "subject": {"reference": "http://x/Patient/p"}})
    assert observation["subject"]["reference"] == f"http://x/Patient/{patient['id']}"


def test_any_other_value_needs_a_domain() -> None:
    with pytest.raises(ProcessingFailureError):
        identifier()


@pytest.mark.parametrize("domain", ["https://fhir.example.com/identifiers/patient-id", "ä", "x" * 200, "-", "a b"])
def test_a_pseudonym_is_a_good_id(domain: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9\-.]{1,64}", pseudonym("4711", domain))


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


@pytest.mark.parametrize(
    ("applied", "label"),
    [
        (rule("Patient.birthDate", "generalize", cases=OLD), "GENERALIZED"),
        (rule("Resource.id", "pseudonymize"), "PSEUDED"),
        (rule("Patient.address", "substitute", replaceWith={"city": "x"}), "SUBSTITUTED"),
    ],
)
def test_the_label_says_what_was_done(applied: dict[str, Any], label: str) -> None:
    assert labels(labelled(rules(applied), PATIENT | {"id": "p", "birthDate": "1920-01-01"})) == [label]
