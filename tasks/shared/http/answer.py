"""What a service answered, and which error an unwelcome answer is (document 3 §1).

An error names service, operation, host and status, and the issue codes when the body is an OperationOutcome.
It never quotes the body: services put patient data and stack traces into ``diagnostics``. The whole answer
hangs on the error, out of sight of ``str`` and ``repr``, for a caller that keeps it in the job directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError
from tasks.shared.http.retry import parse_retry_after

TOKEN_OPERATION = "obtain token"  # noqa: S105 - the name of an operation
DEFAULT_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same call may succeed later; a caller narrows or widens them for its service."""

# http://hl7.org/fhir/ValueSet/issue-type, R4 and R5. A code outside this list is text from the service.
# fmt: off
ISSUE_CODES = frozenset({
    "business-rule", "code-invalid", "conflict", "deleted", "duplicate", "exception", "expired",
    "extension", "forbidden", "incomplete", "informational", "invalid", "invariant", "limited-filter",
    "lock-error", "login", "multiple-matches", "no-store", "not-found", "not-supported", "processing",
    "required", "security", "structure", "success", "suppressed", "throttled", "timeout", "too-costly",
    "too-long", "transient", "unknown", "value",
})
# fmt: on
E = TypeVar("E", bound=SluiceError)

_JSON = re.compile(r"(application|text)/([a-z0-9.-]+\+)?json")
_LARGEST_OUTCOME = 8 * 1024 * 1024
_CODES_SHOWN = 5


class _Issue(msgspec.Struct):
    code: Any = None


class _Outcome(msgspec.Struct):
    resource_type: Any = msgspec.field(default=None, name="resourceType")
    issue: Any = None


_outcome_decoder = msgspec.json.Decoder(_Outcome)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer: ``body`` is decoded from any ``Content-Encoding``. Only the status ever shows."""

    status: int
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def says_json(self) -> bool:
        """Whether it is JSON by its ``Content-Type``."""
        kind = self.headers.get("content-type", "").partition(";")[0]
        return _JSON.fullmatch(kind.strip().lower()) is not None

    def issue_codes(self) -> tuple[str, ...]:
        """The issue codes of an OperationOutcome, each once, in order; empty for any other body."""
        return issue_codes(self.body)


class _AnsweredError(SluiceError):
    """An error that keeps the ``answer`` it was made from."""

    answer: Answer

    def made_from(self, answer: Answer) -> Self:
        """The same error, with its answer; that of an issuer of tokens is not the service's own status."""
        self.answer = answer
        self.answered = answer.status if self.operation != TOKEN_OPERATION else None
        return self


class RefusedError(_AnsweredError, ServiceError):
    """A ``ServiceError`` that keeps the ``answer`` it was made from."""


class BusyError(_AnsweredError, ServiceBusyError):
    """A ``ServiceBusyError`` that keeps the ``answer`` it was made from."""


def answer_of(error: BaseException) -> Answer | None:
    """The answer behind an error of ``ServiceClient``; ``None`` when there was none."""
    answer = getattr(error, "answer", None)
    return answer if isinstance(answer, Answer) else None


def issue_codes(body: bytes) -> tuple[str, ...]:
    """The codes of an OperationOutcome that are in FHIR's list; empty for any other text."""
    if len(body) > _LARGEST_OUTCOME or b"OperationOutcome" not in body:
        return ()
    try:
        outcome = _outcome_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()
    if outcome.resource_type != "OperationOutcome" or not isinstance(outcome.issue, list):
        return ()
    codes = (issue.get("code") for issue in outcome.issue if isinstance(issue, dict))
    return tuple(dict.fromkeys(code for code in codes if isinstance(code, str) and code in ISSUE_CODES))


def place(url: str) -> str:
    """A URL as errors show it: without user, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an unreadable URL"
    return f"{parts.scheme}://{host}{port}{parts.path}"


@dataclass(frozen=True, slots=True)
class Where:
    """The request an error is about. ``service`` is the key under ``services``."""

    service: str
    operation: str
    method: str
    url: str = field(repr=False)

    @property
    def host(self) -> str:
        """The host that was asked."""
        return urlsplit(self.url).hostname or "?"

    def error(
        self, kind: type[E], reference: str, what: str, *, hint: str | None = None, status: int | None = None
    ) -> E:
        """An error of ``kind`` that says ``what`` about this request."""
        return kind(
            reference,
            f"{self.service}: {self.operation} {what}",
            context=f"{self.method} {place(self.url)}",
            hint=hint,
            operation=self.operation,
            status=status,
        )


def error_for(answer: Answer, where: Where, *, transient: Collection[int]) -> SluiceError:
    """The error for an answer that the caller did not ask for.

    ``BusyError`` (``service-busy``) for the statuses in ``transient``; else ``RefusedError``, whose reference
    tells the cases apart that a person handles differently.
    """
    status = answer.status
    codes = answer.issue_codes()
    shown = f" (issue codes: {', '.join(codes[:_CODES_SHOWN])})" if codes else ""
    what = f"was answered {status} by {where.host}{shown}"
    if status in transient:
        hint = "the service cannot serve the call now; the same command may succeed later"
        busy = where.error(BusyError, "service-busy", what, hint=hint, status=status)
        busy.retry_after = parse_retry_after(answer.headers.get("retry-after"))
        return busy.made_from(answer)
    reference, hint = _TERMINAL.get(status) or _other(status)
    hint = hint.format(service=where.service)
    return where.error(RefusedError, reference, what, hint=hint, status=status).made_from(answer)


def wrong_answer(answer: Answer, where: Where, what: str, *, reference: str, hint: str) -> RefusedError:
    """The error for an answer that is not what was asked for, though its status is."""
    what = f"was answered {answer.status} {what}"
    return where.error(RefusedError, reference, what, hint=hint, status=answer.status).made_from(answer)


_TERMINAL = {
    401: ("service-unauthorized", "check the credentials in services.{service}.auth"),
    403: ("service-forbidden", "the credentials in services.{service}.auth do not allow this"),
    404: ("service-not-found", "check the URL of services.{service}"),
    407: (
        "proxy-authentication",
        "give user and password in the proxy variable: http://user:password@host:port",
    ),
    413: ("service-too-large", "the service does not take a request of this size"),
}


def _other(status: int) -> tuple[str, str]:
    if status >= 500:
        return "service-failed", "see the log of services.{service}"
    if status >= 400:
        return "service-refused", "see the log of services.{service}"
    return "service-unexpected", "services.{service} answered something that the contract does not know"
