"""The client of the validation service (document 3 §6).

One request for each chunk, repeated as the retry block says. An answer 200 with an OperationOutcome that says something
about what was sent is an answer, whatever it says; everything else is a failure of the step, which names the file and
its lines.

Before anything else a synthetic resource checks the service. It is invalid, so a service without findings does not
validate.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from config import PipelineConfig
from tasks.shared.errors import SluiceError
from tasks.shared.http.answer import Answer, RefusedError
from tasks.shared.http.client import ServiceClient
from tasks.shared.service import ProbeRequest, Service, SyntheticProbe
from tasks.validation.chunks import ResourcePlace, ValidationChunk
from tasks.validation.findings import ValidationIssue, read_outcome, wrong_with

OPERATION: Final = "validate resources"
HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"}
MAX_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of an answer. Of a chunk about which there is more to say, the halves are asked."""

_LINE_BREAKS: Final = re.compile(rb"[\r\n]+")

log = logging.getLogger("sluice.validation")


@dataclass(frozen=True, slots=True)
class ChunkOutcome:
    """One line of the report: an OperationOutcome about a Bundle, and where the Bundle's entries came from.

    ``span`` is the first and the last line of the file that the Bundle had something of.
    """

    line: bytes = field(repr=False)
    place: Callable[[int], ResourcePlace | None] = field(repr=False)
    span: tuple[int, int]

    def issues(self) -> list[ValidationIssue]:
        """Return the issues, parsed again to save memory."""
        return read_outcome(self.line)


def endpoint(url: str) -> str:
    """Return the URL to post to: ``url`` if it names the operation, else ``{url}/validateResource``."""
    return url if url.endswith(("/validateResource", "/$validate")) else f"{url}/validateResource"


class ValidationClient:
    """Asks the service about chunks; thread-safe. ``timeout`` in seconds, for one request."""

    def __init__(self, client: ServiceClient, url: str, *, timeout: float) -> None:
        self._client = client
        self._url = endpoint(url)
        self._timeout = timeout
        self._refused = float("inf")  # bytes of the smallest body that was too large
        self._lock = threading.Lock()

    def validate(self, chunk: ValidationChunk) -> Iterator[ChunkOutcome]:
        """Validate a chunk and yield the outcomes for the report: one, or more when the service takes or gives only
        smaller pieces.

        Raises what ``ServiceClient.send`` raises, with file and lines in the context, and ``ServiceError``
        ``validation-answer`` and ``validation-too-large``.
        """
        stack = [chunk]
        while stack:
            part = stack.pop()
            outcome = None
            # What is as large as something that was refused need not be asked.
            if len(part) == 1 or len(part.body) < self._refused:
                outcome = self._request(part)
            if outcome is None:
                stack += reversed(part.halves())
            else:
                yield outcome

    def _request(self, chunk: ValidationChunk) -> ChunkOutcome | None:
        """Send one request; return ``None`` if the chunk must be halved."""
        try:
            answer = self._client.send(
                "POST",
                self._url,
                operation=OPERATION,
                content=chunk.body,
                headers=HEADERS,
                timeout=self._timeout,
                accept={413},
                max_answer_bytes=MAX_ANSWER,
            )
            if answer.status != 413:
                return self._read_answer(chunk, answer)
            self._too_large(chunk, answer)
        except SluiceError as error:
            if error.reference == "answer-too-large" and len(chunk) > 1:
                log.info("validation: the answer about %s is too large; sending the request in two halves", chunk.where)
                return None
            error.context = f"{chunk.where}, {error.context}" if error.context else chunk.where
            raise
        return None

    def _too_large(self, chunk: ValidationChunk, answer: Answer) -> None:
        size = len(chunk.body)
        if len(chunk) == 1:
            raise _refusal(
                "validation-too-large",
                f"validation: a resource of {size:,} bytes is more than the service takes",
                "raise the service's limit for the size of a request",
                answer,
            )
        with self._lock:
            self._refused = min(self._refused, size)
        log.info("validation: %d bytes are more than the service takes, halves are sent", size)

    def _read_answer(self, chunk: ValidationChunk, answer: Answer) -> ChunkOutcome:
        if what := wrong_with(answer, len(chunk)):
            raise _refusal(
                "validation-answer",
                f"validation: a request was answered {answer.status} with {what}",
                "is services.validation.url the URL of a validation service?",
                answer,
            )
        # A line break in JSON text is only ever white space between tokens (document 3 §1).
        return ChunkOutcome(_LINE_BREAKS.sub(b"", answer.body).strip(), chunk.place, chunk.span)


def _refusal(reference: str, message: str, hint: str, answer: Answer) -> RefusedError:
    """Return an error that keeps the answer it is about."""
    return RefusedError(reference, message, hint=hint, operation=OPERATION, status=answer.status).made_from(answer)


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
