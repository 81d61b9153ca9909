"""Send one batch to the FHIR server in as many transactions as necessary (document 3 §7).

A transaction succeeds or fails as a whole. A refused transaction is therefore halved until the server refuses a single
resource: the other resources are stored, and the error names the refused one. A transaction that is too large (413) is
halved in the same way. Conflicts of versions and locks are retried together with network errors and busy services: the
``retry`` block of the configuration counts all attempts of a transaction (document 3 §1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from tasks.send.batches import HEADERS, Batch, Resolve, TransactionLimits, Transactions, UnitPart
from tasks.send.verdict import REFUSALS, Fate, Verdict, check_results, judge
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.fhir.bundle import Resource
from tasks.shared.http_old.answer import Answer, BusyError
from tasks.shared.http_old.client import ServiceClient
from tasks.shared.http_old.retry import parse_retry_after

OPERATION = "send transaction"


@dataclass(frozen=True, slots=True)
class SentTransaction:
    """Resources that are on the server. ``body`` is the size of the transaction in bytes."""

    resources: Sequence[Resource]
    body: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """Resources to be sent later, because at least one of them refers to a resource that is not on the server yet."""

    resources: Sequence[Resource]


@dataclass(frozen=True, slots=True)
class Failed:
    """A resource that the server refused."""

    resource: Resource
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Collapsed:
    """Resources that a later one with the same ``Type/id`` in the same transaction replaces."""

    resources: Sequence[Resource] = field(default_factory=tuple)


Outcome = SentTransaction | Deferred | Failed | Collapsed
Report = Callable[[Outcome], None]


class ConflictError(BusyError):
    """Another writer was faster, or holds a lock: a 409 or 412 that can be retried."""


class TransactionSender:
    """Send batches. Thread-safe.

    ``check`` raises an exception if the step must stop.
    """

    def __init__(
        self,
        client: ServiceClient,
        transactions: Transactions,
        limits: TransactionLimits,
        *,
        timeout: float,
        check: Callable[[], None],
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._transactions = transactions
        self._limits = limits
        self._check = check

    def deliver(self, batch: Batch, report: Report) -> None:
        """Send all resources of ``batch``. Report each of them once, as soon as its outcome is known.

        Outcomes that were reported before an error stay valid.

        Raises:
            ServiceError: the endpoint refuses the request (401, 404 …) or gives an answer that cannot be used.
            TransientError: all attempts failed.
            Exception: whatever ``check`` raises.
        """
        if batch.collapsed:
            report(Collapsed(batch.collapsed))
        stack = [batch.content]
        while stack:
            part = stack.pop()
            if self._exceeds(part.resources):
                stack += reversed(part.halves())
                continue
            refused = self._client.repeat_call(partial(self._attempt, part.resources, report))
            if refused is None:
                continue
            if _to_halve(refused, part, batch.resolve):
                stack += reversed(part.halves())
            elif refused.fate is Fate.MISSING_TARGET and batch.resolve is not Resolve.NEVER:
                report(Deferred(part.resources))
            else:
                for resource in part.resources:
                    report(Failed(resource, refused))

    def _exceeds(self, resources: Sequence[Resource]) -> bool:
        """Return whether the resources exceed the limits, because of a cycle of references or a limit lowered since."""
        if len(resources) == 1:
            return False
        if len(resources) > self._limits.batch_size:
            return True
        size = self._transactions.envelope
        return self._limits.lowered and size + sum(self._transactions.sizes(resources)) > self._limits.max_bytes

    def _attempt(self, resources: Sequence[Resource], report: Report, attempt: int) -> Verdict | None:
        """Send one transaction; return the verdict if it was refused."""
        self._check()
        body = self._transactions.body(resources)
        try:
            answer = self._client.send(
                "POST",
                self._transactions.url,
                operation=OPERATION,
                content=body,
                headers=HEADERS,
                timeout=self._timeout,
                retry=False,
                accept=REFUSALS,
                attempt=attempt,
            )
        except SluiceError as error:
            place = _span(resources[0], resources[-1])
            error.context = f"{place}, {error.context}" if error.context else place
            raise
        if answer.status < 300:
            try:
                check_results(answer, [resource.key for resource in resources])
            except ServiceError as error:
                error.context = _span(resources[0], resources[-1])
                raise
            report(SentTransaction(tuple(resources), len(body)))
            return None
        verdict = judge(answer.status, answer.body)
        if verdict.fate is Fate.CONFLICT:
            raise _conflict(verdict, resources[0], answer)
        if verdict.fate is Fate.TOO_LARGE:
            self._limits.too_large(len(body))
        return verdict


def _span(first: Resource, last: Resource) -> str:
    """Return the range of lines from ``first`` to ``last``, for an error message."""
    begin, end = f"{first.file}:{first.line}", f"{last.file}:{last.line}"
    if first.file == last.file:
        return begin if first.line == last.line else f"{begin}-{last.line}"
    return f"{begin} to {end}"


def _to_halve(refused: Verdict, part: UnitPart, resolve: Resolve) -> bool:
    if refused.fate is Fate.MISSING_TARGET:
        # A cycle of references is not split: the server would refuse each part without the others.
        return resolve is not Resolve.LATER and part.divisible()
    return len(part.resources) > 1


def _conflict(verdict: Verdict, first: Resource, answer: Answer) -> ConflictError:
    error = ConflictError(
        "send-conflict",
        f"send: a transaction was answered {verdict.status}: another writer holds or changes the same data",
        context=f"{first.file}:{first.line} {first.type}",
        hint="check whether something else writes to this server, then continue the job",
        operation=OPERATION,
        status=verdict.status,
    )
    error.retry_after = parse_retry_after(answer.headers.get("retry-after"))
    error.answer = answer
    return error
