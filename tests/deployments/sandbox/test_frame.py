"""What every service has: credentials, faults on demand, a log of requests, refusals in FHIR's form."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from deployments.sandbox.credentials import Credentials
from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.flattening import flattening_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.validation import validation_service
from tests.deployments.sandbox.conftest import JSON, SandboxClient, diagnostics

Serve = Callable[..., SandboxClient]
SERVICES: dict[str, Callable[[], Any]] = {
    "extraction": lambda: extraction_service(),
    "fhir-server": lambda: fhir_service(),
    "flattening": lambda: flattening_service(),
    "pseudonymizer": lambda: pseudonymization_service(),
    "validation": lambda: validation_service(),
}


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_says_what_it_is_and_refuses_in_fhir(name: str, serve: Serve) -> None:
    client = serve(SERVICES[name]())
    about = client.get("/").json()
    assert (about["service"], about["sandbox"], "not for production" in about["notice"]) == (name, True, True)
    statement = client.get("/metadata" if name == "validation" else "/fhir/metadata").json()
    assert (statement["resourceType"], statement["fhirVersion"]) == ("CapabilityStatement", "4.0.1")
    assert "not for production" in statement["implementation"]["description"]
    for method, path, status in (("GET", "/no/such/path", 404), ("PATCH", "/", 405)):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, JSON)
        assert diagnostics(answer)


@pytest.mark.parametrize(
    ("credentials", "good", "challenge"),
    [
        (Credentials("user", "secret"), {"Authorization": "Basic dXNlcjpzZWNyZXQ="}, "Basic"),
        (Credentials(token="secret"), {"Authorization": "Bearer secret"}, "Bearer"),
        (Credentials(api_key="secret"), {"X-Api-Key": "secret"}, "ApiKey"),
    ],
)
def test_a_service_with_credentials_admits_only_these(
    serve: Serve, credentials: Credentials, good: dict[str, str], challenge: str
) -> None:
    client = serve(fhir_service(credentials))
    bad = {name: value + "x" for name, value in good.items()}
    for headers in ({}, bad, {"Authorization": "Bearer"}, {"Authorization": "Basic"}):
        answer = client.get("/fhir/metadata", headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"].partition(" ")[0]) == (401, challenge)
    assert client.get("/fhir/metadata", headers=good).status_code == 200
    assert client.get("/").status_code == 200
    assert "secret" not in repr(credentials)


def test_a_status_fault_answers_instead_before_or_after_the_work(serve: Serve) -> None:
    client = serve(fhir_service())
    body = '{"resourceType":"Patient","id":"p"}'
    client.faults(
        {"action": "status", "status": 429, "headers": {"Retry-After": "2"}, "method": "PUT", "skip": 1},
        {"action": "status", "at": "applied", "body": "lost", "method": "PUT", "contains": '"q"'},
    )
    answers = [client.put("/fhir/Patient/p", content=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 429, 200]
    assert (answers[1].headers["retry-after"], diagnostics(answers[1])) == ("2", "Sandbox fault.")
    lost = client.put("/fhir/Patient/q", content=body.replace('"p"', '"q"'))
    assert (lost.status_code, lost.text) == (503, "lost")
    assert client.get("/fhir/Patient/q").status_code == 200
    assert [(rule["met"], rule["struck"]) for rule in client.get("/_sandbox/faults").json()] == [(4, 1), (1, 1)]
    client.delete("/_sandbox/faults")
    assert client.get("/_sandbox/faults").json() == []


def test_a_delay_is_waited_for_and_a_cut_breaks_off_in_the_body(serve: Serve) -> None:
    client = serve(fhir_service())
    client.faults(
        {"action": "delay", "seconds": 0.3, "path": "/fhir/meta*"}, {"action": "cut", "path": "*"},
        {"action": "cut", "bytes": 0},
    )  # fmt: skip
    started = time.monotonic()
    assert client.get("/fhir/metadata").status_code == 200
    assert time.monotonic() - started >= 0.3
    for received in (True, False):
        with client.stream("GET", "/fhir/metadata") as answer:
            parts = answer.iter_raw()
            assert (bool(received and next(parts)), int(answer.headers["content-length"]) > 0) == (received, True)
            with pytest.raises(httpx.RemoteProtocolError):
                list(parts)
    assert client.get("/fhir/metadata").status_code == 200
    assert [entry["fault"] for entry in client.requests()] == ["delay", "cut", "cut", None]


@pytest.mark.parametrize(
    "rules", ["{", "{}", '[{"action":"explode"}]', '[{"action":"cut","bytes":-1}]', '[{"action":"cut","at":"noon"}]']
)
def test_rules_that_are_wrong_change_nothing(serve: Serve, rules: str) -> None:
    client = serve(fhir_service())
    client.faults({"action": "delay"})
    assert client.put("/_sandbox/faults", content=rules).status_code == 400
    assert len(client.get("/_sandbox/faults").json()) == 1


def test_requests_are_listed_without_payload_query_and_headers(serve: Serve) -> None:
    client = serve(fhir_service(Credentials(token="secret")))
    bundle = '{"resourceType":"Bundle","type":"transaction","entry":[{"resource":{"resourceType":"Patient","id":"p"},'
    bundle += '"request":{"method":"PUT","url":"Patient/p"}}]}'
    headers = {"Authorization": "Bearer secret"}
    client.post("/fhir?x=secret", content=bundle, headers=headers)
    client.get("/fhir/Patient/none", headers=headers)
    found = client.requests()
    assert [(one["method"], one["path"], one["status"], one["entries"]) for one in found] == [
        ("POST", "/fhir", 200, 1), ("GET", "/fhir/Patient/none", 404, None),
    ]  # fmt: skip
    assert found[0]["request_bytes"] == len(bundle)
    assert found[0]["ended"] >= found[0]["started"]
    assert "secret" not in str(found)
    client.delete("/_sandbox/requests")
    assert client.requests() == []
