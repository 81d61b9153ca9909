"""Resources to validate, and findings in short form."""

from __future__ import annotations

from typing import Any

import msgspec

from deployments.sandbox.common.definitions.schema import load_schema
from deployments.sandbox.validation.engine import ResourceValidator
from deployments.sandbox.validation.issue import operation_outcome

Json = dict[str, Any]
VALIDATOR = ResourceValidator(load_schema())

PATIENT: Json = {"resourceType": "Patient", "id": "p1", "gender": "female", "birthDate": "1970-01-31"}
OBSERVATION: Json = {
    "resourceType": "Observation",
    "id": "o1",
    "status": "final",
    "code": {"coding": [{"system": "http://loinc.org", "code": "718-7"}]},
    "subject": {"reference": "Patient/p1"},
}


def issues(resource: Any) -> list[Json]:
    """Return the issues of an answer."""
    answer = operation_outcome(VALIDATOR.validate(resource).issues)
    listed: list[Json] = msgspec.json.decode(answer)["issue"]
    return listed


def message(issue: Json) -> str:
    """Return the message id."""
    identity: str = issue["details"]["coding"][0]["code"]
    return identity


def findings(resource: Any) -> list[tuple[str, str, str, str]]:
    """Return severity, code, message id and expression of every issue that is not a note."""
    return [
        (each["severity"], each["code"], message(each), each["expression"][0])
        for each in issues(resource)
        if each["severity"] != "information"
    ]


def bundle(*resources: Json) -> Json:
    """Return a collection as the pipeline sends it."""
    entries = [
        {"fullUrl": f"http://example.org/{each['resourceType']}/{number}", "resource": each}
        for number, each in enumerate(resources)
    ]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries}
