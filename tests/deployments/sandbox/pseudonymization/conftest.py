"""Rules written as in a rule file, applied directly or by the service over real HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import httpx
import pytest
import yaml

from deployments.sandbox.common.json_text import encode
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.pseudonymization.app import PseudonymizationOptions, pseudonymization_service
from deployments.sandbox.pseudonymization.dates import Calendar
from deployments.sandbox.pseudonymization.deidentify import DeIdentifier
from deployments.sandbox.pseudonymization.request import read_request
from deployments.sandbox.pseudonymization.rulefile import read_rule_file
from tests.deployments.sandbox import conftest as sandbox
from tests.deployments.sandbox.conftest import starting

JSON = "application/fhir+json"
TODAY = date(2026, 3, 2)
KEYS = {"cryptoHashKey": "a key for hashes", "dateShiftKey": "a key for dates"}


def rule(path: str, method: str, **settings: Any) -> dict[str, Any]:
    return {"path": path, "method": method} | settings


def rules(*listed: dict[str, Any], **parameters: Any) -> bytes:
    """Return a rule file."""
    document = {"fhirVersion": "R4", "fhirPathRules": list(listed), "parameters": KEYS | parameters}
    return yaml.safe_dump(document, allow_unicode=True, sort_keys=False).encode()


def apply(file: bytes, resource: Any) -> Any:
    """Return the resource after the rules, without the labels in ``meta.security``."""
    done = labelled(file, resource)
    for entry in [done, *(entry.get("resource", {}) for entry in done.get("entry", []))]:
        meta = entry.get("meta", {})
        meta.pop("security", None)
        if not meta:
            entry.pop("meta", None)
    return done


def labelled(file: bytes, resource: Any) -> Any:
    """Return the resource after the rules."""
    text = resource if isinstance(resource, bytes) else json.dumps(resource).encode()
    return json.loads(raw(file, text))


def raw(file: bytes, text: bytes) -> bytes:
    """Return the text of a resource after the rules."""
    return encode(DeIdentifier(read_rule_file(file), Calendar(lambda: TODAY)).process(read_request(text).resource))


def labels(resource: Any) -> list[str]:
    return [coding["code"] for coding in resource.get("meta", {}).get("security", [])]


def parameters(file: bytes, resource: Any) -> dict[str, Any]:
    """Return the body of a request with a rule file."""
    attachment = {"contentType": "application/yaml", "data": base64.b64encode(file).decode()}
    entries = [{"name": "config", "valueAttachment": attachment}, {"name": "resource", "resource": resource}]
    return {"resourceType": "Parameters", "parameter": entries}


class PseudonymizationClient(sandbox.SandboxClient):
    """A client of the service."""

    def deidentify(self, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.post("/fhir/$de-identify", content=content, headers={"content-type": JSON})


Start = Callable[..., PseudonymizationClient]


@pytest.fixture
def start() -> Iterator[Start]:
    with starting(pseudonymization_service, PseudonymizationOptions, PseudonymizationClient) as begin:
        yield begin


@pytest.fixture(scope="module")
def service() -> Iterator[PseudonymizationClient]:
    """A service with the demo's rules as its own, shared by all tests of a module."""
    with serve_in_thread(pseudonymization_service()) as served, PseudonymizationClient(served.url) as client:
        yield client
