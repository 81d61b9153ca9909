"""The service over real HTTP (document 3 §4)."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.pseudonymization.app import MAX_BODY, PseudonymizationOptions, pseudonymization_service
from tests.deployments.sandbox.pseudonymization.conftest import PseudonymizationClient, Start, parameters, rule, rules

PATIENT = {"resourceType": "Patient", "id": "p", "name": [{"family": "Canary"}], "birthDate": "1990-01-02"}
RESOURCE = b'{"name":"resource","resource":{"resourceType":"Patient"}}'
KEEP = rules(rule("Patient.name", "keep"))
SHIFT = rules(rule("Patient.birthDate", "dateShift"))


def refused(answer: httpx.Response, status: int) -> str:
    """Return the diagnostics of an OperationOutcome with one issue."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/fhir+json")
    outcome = answer.json()
    assert outcome["resourceType"] == "OperationOutcome"
    (issue,) = outcome["issue"]
    return str(issue["diagnostics"])


def test_a_resource_comes_back_after_the_service_s_own_rules(service: PseudonymizationClient) -> None:
    answer = service.deidentify(PATIENT)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/fhir+json")
    assert answer.json()["resourceType"] == "Patient"
    assert "Canary" not in answer.text


def test_a_bundle_comes_back_as_a_bundle(service: PseudonymizationClient) -> None:
    entries = [{"resource": PATIENT, "request": {"method": "PUT", "url": "Patient/p"}}] * 3
    done = service.deidentify({"resourceType": "Bundle", "id": "b", "type": "transaction", "entry": entries}).json()
    assert (done["resourceType"], done["type"], len(done["entry"])) == ("Bundle", "transaction", 3)
    assert len({entry["resource"]["id"] for entry in done["entry"]}) == 1


def test_a_config_replaces_the_service_s_own_rules_for_that_request(service: PseudonymizationClient) -> None:
    done = service.deidentify(parameters(KEEP, PATIENT)).json()
    assert done == PATIENT
    assert "name" not in service.deidentify(PATIENT).json()


def test_numbers_keep_their_spelling(service: PseudonymizationClient) -> None:
    body = b'{"resourceType":"Observation","status":"final","valueQuantity":{"value":1.50,"extension":[]}}'
    assert b'"value":1.50' in service.deidentify(body).content


@pytest.mark.parametrize(
    "config", [b"", b"{", b"*** this is no rule file ***: [", b"- a", b"fhirPathRules: 1", rules(rule("a", "encrypt"))]
)
def test_a_config_that_cannot_be_used_is_400(service: PseudonymizationClient, config: bytes) -> None:
    assert refused(service.deidentify(parameters(config, PATIENT)), 400).startswith("Failed to parse")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"1",
        b"{}",
        b'{"resourceType":1}',
        b'{"resourceType":"Wombat"}',
        b'{"resourceType":"Patient","name":"Canary"}',
        b'{"resourceType":"Parameters"}',
        b'{"resourceType":"Parameters","parameter":{}}',
        b'{"resourceType":"Parameters","parameter":[1]}',
        b'{"resourceType":"Parameters","parameter":[{"name":"resource"}]}',
        b'{"resourceType":"Parameters","parameter":[%s,%s]}' % (RESOURCE, RESOURCE),
        b'{"resourceType":"Parameters","parameter":[{"name":"settings"},%s]}' % RESOURCE,
    ],
)
def test_a_body_that_is_neither_resource_nor_parameters_is_400(service: PseudonymizationClient, body: bytes) -> None:
    assert "Canary" not in refused(service.deidentify(body), 400)


def test_the_body_limit_is_thirty_million_bytes() -> None:
    assert MAX_BODY == PseudonymizationOptions().max_body == 30_000_000


def test_a_value_that_cannot_be_handled_is_500_with_the_value_in_its_diagnostics(
    service: PseudonymizationClient,
) -> None:
    resource = PATIENT | {"birthDate": "1990-02-30"}
    diagnostics = refused(service.deidentify(parameters(SHIFT, resource)), 500)
    assert "1990-02-30" in diagnostics
    assert "At: " in diagnostics


def test_nothing_of_a_payload_is_logged(service: PseudonymizationClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        service.deidentify(parameters(SHIFT, PATIENT | {"birthDate": "1990-02-30"}))
        service.deidentify(parameters(b"cryptoHashKey: CanaryKey", PATIENT))
    assert "1990-02-30" not in caplog.text
    assert "Canary" not in caplog.text


def test_a_server_before_2_34_0_does_not_even_look_at_the_config(start: Start) -> None:
    old = start(ignore_config=True)
    probe = old.deidentify(parameters(b"{ not a rule file", PATIENT))
    assert probe.status_code == 200
    assert probe.json() == old.deidentify(parameters(KEEP, PATIENT)).json() == old.deidentify(PATIENT).json()
    broken = {"name": "config", "valueString": "x"}
    body = {"resourceType": "Parameters", "parameter": [broken, {"name": "resource", "resource": PATIENT}]}
    assert old.deidentify(body).status_code == 200


def test_the_service_s_own_rules_come_from_a_file(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(KEEP)
    assert start(rules=path).deidentify(PATIENT).json() == PATIENT


@pytest.mark.parametrize("content", [None, b"{"])
def test_without_usable_rules_of_its_own_the_service_does_not_start(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "rules.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SandboxStartError, match=r"rules\.yaml"):
        pseudonymization_service(PseudonymizationOptions(rules=path)).open()


def test_metadata_names_the_operation_and_no_version(service: PseudonymizationClient) -> None:
    statement = service.get("/fhir/metadata").json()
    assert statement["resourceType"] == "CapabilityStatement"
    assert statement["rest"][0]["operation"][0]["name"] == "de-identify"
    assert "version" not in statement["software"]
