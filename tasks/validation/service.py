"""The calls to the validation service (docs/services.md), and its probe.

A result is an OperationOutcome with at least one issue. Its status is 200, or 412 or 422 (``$validate`` of FHIR
servers). Any other answer is an error of the step, which names the file and its lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from config import PipelineConfig
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.http.answer import Answer, issues
from tasks.shared.http.client import Call, ServiceClient
from tasks.shared.service import ProbeRequest, Service, SyntheticProbe
from tasks.validation.chunks import ValidationChunk
from tasks.validation.findings import read_outcome, wrong_with

OPERATION: Final = "validate resources"
HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"}
WITH_ERRORS: Final = frozenset({412, 422})
"""Statuses with which FHIR servers answer when there are errors in the data."""

_LINE_BREAKS: Final = re.compile(rb"[\r\n]+")


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """One line of the report: an OperationOutcome about a chunk."""

    line: bytes = field(repr=False)
    chunk: ValidationChunk


def endpoint(url: str) -> str:
    """Return the URL to post to: ``url`` if it names the operation, else ``{url}/validateResource``."""
    return url if url.endswith(("/validateResource", "/$validate")) else f"{url}/validateResource"


class Validator:
    """Asks the service about chunks; thread-safe."""

    def __init__(self, client: ServiceClient, url: str) -> None:
        self._client = client
        self._url = url

    def validate(self, chunk: ValidationChunk) -> list[ChunkOutcome]:
        """Return the outcomes about a chunk: one, or several if the chunk had to be halved.

        A resource that the service cannot process while it processes others is a finding about that resource. Raises
        what ``ServiceClient.send`` raises, with file and lines; ``validation-answer``, ``validation-too-large``.
        """
        try:
            answer = self._ask(chunk.body())
        except SluiceError as error:
            if not self._is_about_data(error):
                raise self._placed(error, chunk) from None
            if len(chunk) > 1:
                first, second = chunk.halves()
                return [*self.validate(first), *self.validate(second)]
            if error.answered == 413:
                raise self._too_large(error, chunk) from None
            return [ChunkOutcome(_cannot_be_validated(error), chunk)]
        # A line break in JSON text is only ever white space between tokens.
        return [ChunkOutcome(_LINE_BREAKS.sub(b"", self._checked(answer, chunk).body).strip(), chunk)]

    def _ask(self, body: bytes) -> Answer:
        return self._client.send(Call("POST", self._url, OPERATION, body, HEADERS, accept=WITH_ERRORS))

    def _is_about_data(self, error: SluiceError) -> bool:
        """Return whether halves may succeed: the chunk was too large, or the service fails on it alone."""
        if error.answered == 413:
            return True
        answer = error.answer
        return answer is not None and answer.status == 500 and bool(issues(answer.body)) and self._still_works()

    def _still_works(self) -> bool:
        """Return whether the service still validates the synthetic resource."""
        try:
            return not wrong_with(self._ask(_BODY), 1)
        except SluiceError:
            return False

    def _checked(self, answer: Answer, chunk: ValidationChunk) -> Answer:
        if what := wrong_with(answer, len(chunk)):
            raise ServiceError(
                "validation-answer", f"validation: a request was answered {answer.status} with {what}",
                context=chunk.where, hint="is services.validation.url the URL of a validation service?",
                operation=OPERATION, status=answer.status,
            ).made_from(answer)  # fmt: skip
        return answer

    def _placed(self, error: SluiceError, chunk: ValidationChunk) -> SluiceError:
        error.context = f"{chunk.where}\n  {error.context}" if error.context else chunk.where
        return error

    def _too_large(self, error: SluiceError, chunk: ValidationChunk) -> SluiceError:
        what = f"validation: a resource of {chunk.size:,} bytes is more than the service takes"
        hint = "raise the service's limit for the size of a request"
        return ServiceError(
            "validation-too-large", what, context=chunk.where, hint=hint, operation=OPERATION, status=error.status
        )


def _cannot_be_validated(error: SluiceError) -> bytes:
    text = f"the validation service cannot process this resource ({error.reference}, status {error.status})"
    issue = {"severity": "error", "code": "exception", "diagnostics": text, "expression": ["Bundle.entry[0]"]}
    return json.dumps({"resourceType": "OperationOutcome", "issue": [issue]}).encode()


_WRONG_PATIENT: Final = {
    "resourceType": "Patient",
    "id": "sluice-probe-patient",
    "sluiceProbe": True,
    "gender": "sluice-probe",
    "birthDate": "yesterday",
}
"""A Patient with three errors: an unknown element, an invalid code, an invalid date."""

_BODY: Final = json.dumps({
    "resourceType": "Bundle",
    "type": "collection",
    "entry": [{"fullUrl": "https://example.org/sluice/probe/Patient/sluice-probe-patient", "resource": _WRONG_PATIENT}],
}).encode()  # fmt: skip


def _exchanges(service: Service, _config: PipelineConfig) -> Iterator[ProbeRequest]:
    call = Call("POST", endpoint(service.url or ""), "test request", _BODY, HEADERS, accept=WITH_ERRORS)
    yield ProbeRequest(call, _wrong)


def _wrong(answer: Answer) -> str | None:
    if what := wrong_with(answer, 1):
        return f"answered {answer.status} with {what}"
    if not any(issue.is_finding for issue in read_outcome(answer.body)):
        return "found nothing wrong with a Patient that is wrong in three ways: it does not validate"
    return None


def service(config: PipelineConfig) -> Service:
    """Return ``services.validation``, which has no credentials."""
    return Service(
        "validation", config.services.validation.url, probe=SyntheticProbe("a validation service", _exchanges)
    )
