"""cryptoHash."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from deployments.sandbox.pseudonymization.problem import ProcessingFailureError
from tests.deployments.sandbox.pseudonymization.conftest import KEYS, apply, rule, rules

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
