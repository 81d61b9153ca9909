"""The pseudonymization service: methods and paths of rule files, as the deployed service has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from deployments.sandbox.data import DATA
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from tests.deployments.sandbox.conftest import SandboxClient, diagnostics

Json = dict[str, Any]
KEYS: Json = {"cryptoHashKey": "k", "dateShiftKey": "d", "dateShiftFixedOffsetInDays": 3}
PERSON: Json = {
    "resourceType": "Patient", "id": "p1", "identifier": [{"system": "s", "value": "v1"}, {"value": "v2"}],
    "name": [{"family": "F", "given": ["G"]}], "birthDate": "1970-05-03",
    "address": [{"city": "Bonn", "country": "DE"}],
    "extension": [{"url": "u", "valueString": "x"}, {"url": "w", "valueString": "y"}],
    "managingOrganization": {"reference": "Organization/o1", "display": "d"},
}  # fmt: skip
RULES: dict[str, tuple[list[tuple[str, ...]], Json]] = {
    "keep": ([("Resource", "keep")], {}),
    "redact": ([("Patient.name", "redact")], {"name": None}),
    "the first rule wins": (
        [("Patient.address.country", "keep"), ("Patient.address", "redact")], {"address": [{"country": "DE"}]}),
    "remove": ([("Patient.address", "remove")], {"address": None}),
    "substitute": ([("Patient.name.family", "substitute")], {"name": [{"family": "X", "given": ["G"]}]}),
    "dateShift": ([("nodesByType('date')", "dateShift")], {"birthDate": "1970-05-06"}),
    "generalize": ([("Patient.birthDate", "generalize")], {"birthDate": "old"}),
    "where": (
        [("Patient.identifier.where(system='s').value", "redact")], {"identifier": [{"system": "s"}, {"value": "v2"}]}),
    "by type": ([("nodesByType('HumanName')", "redact")], {"name": None}),
    "by name": ([("nodesByName('city')", "redact")], {"address": [{"country": "DE"}]}),
    "extension": ([("Patient.extension('u')", "redact")], {"extension": [{"url": "w", "valueString": "y"}]}),
    "another type": ([("Observation.status", "redact")], {}),
}  # fmt: skip
REFUSED = {
    "no YAML": ("{[", "not YAML"),
    "no rules": ("a: 1", "no list fhirPathRules"),
    "no path": ("fhirPathRules: [{method: redact}]", "fhirPathRules[0]: a rule has a path and a method"),
    "an unknown method": ("fhirPathRules: [{path: Patient, method: perturb}]", "'perturb' is not supported"),
    "an unknown function": ("fhirPathRules: [{path: Patient.name.first(), method: redact}]", "is not supported"),
    "no condition": ('fhirPathRules: [{path: "Patient.name.where(()", method: redact}]', "cannot be read"),
    "no cases": ("fhirPathRules: [{path: Patient.id, method: generalize}]", "fhirPathRules[0].cases"),
}  # fmt: skip


def rule_file(*rules: tuple[str, ...], **parameters: Any) -> str:
    settings = {"replaceWith": "X", "cases": {"$this >= '1900'": "'old'"}, "domain": "d"}
    listed = [{"path": path, "method": method} | settings for path, method in rules]
    return json.dumps({"fhirVersion": "R4", "fhirPathRules": listed, "parameters": KEYS | parameters})


def send(client: SandboxClient, resource: Json, rules: str | None = None) -> Any:
    document = resource
    if rules is not None:
        data = base64.b64encode(rules.encode()).decode()
        config = {"name": "config", "valueAttachment": {"data": data}}
        document = {"resourceType": "Parameters", "parameter": [config, {"name": "resource", "resource": resource}]}
    return client.post("/fhir/$de-identify", json=document)


@pytest.fixture
def service(serve: Callable[..., SandboxClient]) -> SandboxClient:
    return serve(pseudonymization_service())


@pytest.mark.parametrize("name", RULES)
def test_methods_and_paths(service: SandboxClient, name: str) -> None:
    rules, changed = RULES[name]
    answer = send(service, PERSON, rule_file(*rules)).json()
    answer.pop("meta", None)
    assert answer == {key: value for key, value in (PERSON | changed).items() if value is not None}


def test_hashes_and_pseudonyms_are_keyed_and_change_only_the_id_of_a_reference(service: SandboxClient) -> None:
    hashes = [("Resource.id", "cryptoHash"), ("nodesByType('Reference').reference", "cryptoHash")]
    first, second = (send(service, PERSON, rule_file(*hashes, cryptoHashKey=key)).json() for key in "ab")
    assert len(first["id"]) == 64
    kind, _, identity = first["managingOrganization"]["reference"].partition("/")
    assert (kind, len(identity), first["id"] != second["id"]) == ("Organization", 64, True)
    assert first["meta"]["security"][0]["code"] == "CRYTOHASH"
    pseudonyms = send(service, PERSON, rule_file(("Patient.identifier.value", "pseudonymize"))).json()["identifier"]
    assert [len(one["value"]) for one in pseudonyms] == [24, 24]
    assert (
        send(service, PERSON, rule_file(("Patient.identifier.value", "pseudonymize"))).json()["identifier"]
        == pseudonyms
    )
    encrypted = [send(service, PERSON, rule_file(("Patient.id", "encrypt"))).json()["id"] for _ in range(2)]
    assert len(set(encrypted)) == 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_file_that_the_service_cannot_apply_is_400_and_names_the_rule(service: SandboxClient, name: str) -> None:
    rules, text = REFUSED[name]
    answer = send(service, PERSON, rules)
    assert (answer.status_code, text in diagnostics(answer)) == (400, True), answer.text


def test_without_rules_it_has_those_of_the_demo_and_an_old_service_has_no_others(
    serve: Callable[..., SandboxClient], service: SandboxClient
) -> None:
    own = send(service, PERSON).json()
    assert ("name" in own, own["birthDate"], own["address"]) == (False, "1970", [{"country": "DE"}])
    old = serve(pseudonymization_service(ignores_config=True))
    assert send(old, PERSON, rule_file(("Resource", "keep"))).json() == own


def test_the_demo_data_lose_their_names_and_keep_their_decimals(service: SandboxClient) -> None:
    texts = [line for path in DATA.glob("patients-*.ndjson") for line in path.read_bytes().splitlines()]
    answers = [service.post("/fhir/$de-identify", content=text).content for text in texts]
    names = {name["family"] for text in texts for name in json.loads(text)["entry"][-3]["resource"].get("name", [])}
    assert all(name.encode() not in b"".join(answers) for name in names)
    assert b"1.50" in b"".join(answers)
