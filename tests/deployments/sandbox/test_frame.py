"""What every service has: faults on demand, a log of requests, refusals in FHIR's form."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

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


def test_a_status_fault_answers_instead_of_the_service(serve: Serve) -> None:
    client = serve(fhir_service())
    body = '{"resourceType":"Patient","id":"p"}'
    busy = {"action": "status", "status": 429, "headers": {"retry-after": "2"}, "method": "PUT", "skip": 1}
    client.faults(busy, {"action": "status", "body": "lost", "method": "PUT", "contains": '"q"'})
    answers = [client.put("/fhir/Patient/p", content=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 429, 200]
    assert (answers[1].headers["retry-after"], diagnostics(answers[1])) == ("2", "Sandbox fault.")
    lost = client.put("/fhir/Patient/q", content=body.replace('"p"', '"q"'))
    assert (lost.status_code, lost.text) == (503, "lost")
    client.faults({"action": "status", "times": None})
    for rules in ("{", "{}", '[{"action":"explode"}]'):  # what is wrong changes nothing
        assert client.put("/_sandbox/faults", content=rules).status_code == 400
    assert [client.get("/fhir/metadata").status_code for _ in range(3)] == [503] * 3
    client.faults()
    assert client.get("/fhir/metadata").status_code == 200


def test_a_delay_is_waited_for_and_a_cut_breaks_off_in_the_body(serve: Serve) -> None:
    client = serve(fhir_service())
    client.faults({"action": "delay", "seconds": 0.3, "path": "/fhir/meta*"}, {"action": "cut"})
    started = time.monotonic()
    assert client.get("/fhir/metadata").status_code == 200
    assert time.monotonic() - started >= 0.3
    with client.stream("GET", "/fhir/metadata") as answer:
        parts = answer.iter_raw()
        assert next(parts)
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts)
    assert client.get("/fhir/metadata").status_code == 200


def test_requests_are_listed_without_payload_query_and_headers(serve: Serve) -> None:
    client = serve(fhir_service())
    entry = {"resource": {"resourceType": "Patient", "id": "p"}, "request": {"method": "PUT", "url": "Patient/p"}}
    bundle = {"resourceType": "Bundle", "type": "transaction", "entry": [entry]}
    client.post("/fhir?x=secret", json=bundle, headers={"Authorization": "Bearer secret"})
    client.get("/fhir/Patient/none")
    assert client.requests() == [
        {"method": "POST", "path": "/fhir", "status": 200, "entries": 1},
        {"method": "GET", "path": "/fhir/Patient/none", "status": 404, "entries": None},
    ]
    client.delete("/_sandbox/requests")
    assert client.requests() == []
