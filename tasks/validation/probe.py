"""Check the validation service with a synthetic resource before anything else (document 3 §6). The resource is invalid,
so a service without findings does not validate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from config import PipelineConfig
from tasks.shared.http.answer import Answer
from tasks.shared.service import ProbeRequest, Service, SyntheticProbe
from tasks.validation.client import HEADERS, endpoint
from tasks.validation.findings import read_outcome, wrong_with

WRONG: Final = {
    "resourceType": "Patient",
    "id": "sluice-probe-patient",
    "sluiceProbe": True,
    "gender": "sluice-probe",
    "birthDate": "yesterday",
}
"""An element that FHIR does not know, a code that is none, a date that is none."""

_BODY: Final = json.dumps(
    {
        "resourceType": "Bundle",
        "type": "collection",
        "entry": [{"fullUrl": "https://example.org/sluice/probe/Patient/sluice-probe-patient", "resource": WRONG}],
    }
).encode()


def _exchanges(service: Service, _config: PipelineConfig) -> Iterator[ProbeRequest]:
    yield ProbeRequest("POST", endpoint(service.url or ""), _wrong, _BODY, HEADERS)


PROBE: Final = SyntheticProbe("a validation service", _exchanges)


def _wrong(answer: Answer) -> str | None:
    if what := wrong_with(answer, 1):
        return f"answered {answer.status} with {what}"
    if not any(issue.is_finding for issue in read_outcome(answer.body)):
        return "found nothing wrong with a Patient that is wrong in three ways: it does not validate"
    return None


def service(config: PipelineConfig) -> Service:
    """``services.validation``: it has no credentials, and its URL is the one that is asked."""
    return Service("validation", config.services.validation.url, probe=PROBE)
