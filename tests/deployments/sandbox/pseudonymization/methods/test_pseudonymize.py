"""pseudonymize."""

from __future__ import annotations

import re
from typing import Any

import pytest

from deployments.sandbox.pseudonymization.methods.pseudonymize import pseudonym
from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from tests.deployments.sandbox.pseudonymization.conftest import apply, labelled, labels, rule, rules


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


def test_the_label() -> None:
    assert labels(labelled(rules(rule("Resource.id", "pseudonymize")), {"resourceType": "Patient", "id": "p"})) == [
        "PSEUDED"
    ]
