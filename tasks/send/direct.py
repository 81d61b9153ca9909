"""``direct_resource_load``: resources go to a FHIR server in transactions (document 3 §7).

The order: ``core.ndjson`` first and alone, then files that hold one type (bulk exports), targets of references before
what refers to them, then the files of patients. One patient's resources are sent in one sequence; lines of different
patients may be under way together, at most ``services.send.max_concurrent_requests`` transactions. What is refused
because the target of a reference is missing waits, and is tried again after everything else.

A resource that the server will not have does not end the load: all others are sent, then one error names the failures.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tasks.send import STATE
from tasks.send.batches import (
    MAX_BODY,
    Batch,
    Resolve,
    SendUnit,
    TransactionLimits,
    Transactions,
    UnitPart,
    cut_file,
    pack,
)
from tasks.send.checks import fhir_url, service
from tasks.send.comparison import InputComparison, required
from tasks.send.load_account import Failures, LoadAccount, LoadSource
from tasks.send.order import DeferredResources, dependency_order, patient_of, stages
from tasks.send.transaction_sender import TransactionSender
from tasks.shared.fhir.bundle import Resource
from tasks.shared.files.data_directory import is_ndjson_name, stored_bytes
from tasks.shared.files.kept_answers import FAILED, FailedAnswers
from tasks.shared.files.ledger import Ledger
from tasks.shared.http_old.client import ServiceClient
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import SharedStop
from tasks.shared.work import Workers

LEDGER: Final = "ledger.ndjson"
_LANE: Final = frozenset({"waiting"})

log = logging.getLogger("sluice.send")


@dataclass(frozen=True)
class LoadBounds:
    """Numbers that are not configuration. ``max_body`` in bytes, the others in resources.

    After ``max_failures`` the load gives up: a thousand examples are enough to see what is wrong.
    """

    max_body: int = MAX_BODY
    max_failures: int = 1000


class _GivenUpError(Exception):
    """Too many resources were refused."""


def run(
    context: StepContext,
    compared: InputComparison,
    *,
    bounds: LoadBounds | None = None,
    sleep: Callable[[float], None] | None = None,
) -> StepReport:
    """Send everything in the input directory that the ledger does not know as sent.

    ``sleep`` (seconds) is a seam for tests. Raises ``TransientError`` when the server stays away or busy, and
    ``TerminalError`` ``send-refused`` when resources were refused: all of them are in ``send/failed/`` then.
    """
    together = SharedStop(context.stop)
    most = context.config.services.send.max_concurrent_requests
    with context.old_client(service(context.config), stop=together, max_connections=most, sleep=sleep) as client:
        return _Load(context, compared, client, together, bounds or LoadBounds()).run()


class _Load:
    def __init__(
        self,
        context: StepContext,
        compared: InputComparison,
        client: ServiceClient,
        together: SharedStop,
        bounds: LoadBounds,
    ) -> None:
        send, directory = context.config.services.send, context.input_dir
        self._transactions = Transactions(fhir_url(context.config))
        files = [path for path in compared.files() if path.parent == directory and is_ndjson_name(path.name)]
        self._files = required(files, directory)
        self._context = context
        self._compared = compared
        self._bounds = bounds
        self._limits = TransactionLimits(send.batch_size, bounds.max_body)
        self._threads = send.max_concurrent_requests
        self._together = together
        self._sender = TransactionSender(
            client,
            self._transactions,
            self._limits,
            timeout=send.timeout.total_seconds(),
            check=together.check,
        )

    def run(self) -> StepReport:
        directory = self._context.state(STATE)
        self._context.meter.work_on(self._files)
        failed = FailedAnswers(directory).begin().saving_answers()
        with failed, Ledger(directory / LEDGER) as ledger, DeferredResources(directory) as self._waiting:
            self._account = LoadAccount(
                ledger,
                self._waiting,
                Failures(directory / FAILED),
                target=self._transactions.url,
                progress=self._context.meter,
            )
            complete = True
            try:
                with Workers(
                    self._sender.deliver,
                    take=self._account.record,
                    threads=self._threads,
                    stop=self._together,
                    # One batch ready for each thread keeps them busy while outcomes are taken in; more would only use
                    # memory.
                    budget=self._threads + 2,
                ) as self._workers:
                    for stage in stages(self._files):
                        self._submit_all(self._pack(self._units(stage)))
                    self._send_waiting()
            except _GivenUpError:
                complete = False
            return self._result(complete=complete)

    # Reading

    def _units(self, files: Iterable[Path]) -> Iterator[SendUnit]:
        for path in files:
            source = self._account.open(path, self._compared.entry(path).sha256)
            finished = source.read_to_end
            if not finished:
                yield from self._lines(source)
                self._account.end_of(source)
            else:
                self._context.meter.add(files=1)
            self._context.meter.within(path, source.facts.bytes, whole=True, earlier=finished)

    def _lines(self, source: LoadSource) -> Iterator[SendUnit]:
        path = source.path
        alone = frozenset({f"file {path.name}"})
        largest = self._context.config.limits.largest_resource
        spool, check = self._context.state(STATE), self._context.stop.check
        for part, size, of_line in cut_file(path, spool=spool, largest=largest, check=check):
            left = self._account.read(source, part, of_line)
            self._context.meter.hand_out(len(left))
            if left:
                # What is of one patient can be sent beside what is of others. Of other lines nobody knows whom they
                # concern, so those of a file stay in sequence.
                lanes = part.patients or (_concerned(left, alone) if part.unwrapped else _lanes(left[0])) or alone
                yield SendUnit(left, lanes, size + 50 * part.derived_ids + 100 * part.resolved_references)
            if self._account.failures.count >= self._bounds.max_failures:
                raise _GivenUpError
            self._context.meter.within(path, source.facts.bytes)

    # Sending

    def _pack(self, units: Iterable[SendUnit]) -> Iterator[Batch]:
        return pack(units, self._limits, self._transactions)

    def _submit_all(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self._workers.submit(batch, keys=batch.lanes)
            if self._account.failures.count >= self._bounds.max_failures:
                raise _GivenUpError
        self._workers.drain()

    def _send_waiting(self) -> None:
        """Send the resources that waited for the targets of their references, after everything else."""
        if not len(self._waiting):
            return
        count = len(self._waiting)
        log.info("send: %d resources were put off until the targets of their references are there", count)
        self._context.meter.set_status(f"{count:,} resources waited for the targets of their references")
        while count := len(self._waiting):
            self._send_in_order_of_references()
            if len(self._waiting) == count:
                break
        # Nothing more will come. One by one, so that each is refused with an answer of its own.
        self._submit_all(
            Batch(UnitPart(unit.resources), unit.lanes, resolve=Resolve.NEVER)
            for unit in self._waiting_units(self._waiting.keys())
        )

    def _waiting_units(self, keys: Iterable[str]) -> Iterator[SendUnit]:
        for key in keys:
            resource = self._waiting.read(key)
            if resource is not None:
                yield SendUnit((resource,), _LANE)

    def _send_in_order_of_references(self) -> None:
        base = self._transactions.url.encode() + b"/"
        keys = self._waiting.keys()
        groups = list(dependency_order(keys, lambda key: self._waiting.targets(key, base)))
        units = (
            SendUnit(group, _LANE)
            for names in groups
            if (group := [resource for name in names if (resource := self._waiting.read(name))])
        )
        self._account.put_off_in_a_row = 0
        for batch in pack(units, self._limits, self._transactions, resolve=Resolve.ISOLATE, groups=True):
            self._workers.drain()
            self._workers.submit(batch)
            # One request for each hopeless resource: after as many as may fail, it is known that there are too many.
            if self._account.put_off_in_a_row >= self._bounds.max_failures:
                break
        self._workers.drain()

    # Reporting

    def _result(self, *, complete: bool) -> StepReport:
        account = self._account
        facts = account.facts()
        if complete:
            account.reconcile()
        if account.failures.count:
            raise account.failures.error(facts.resources, complete=complete)
        collapsed = account.count("collapsed")
        warnings = [
            text.format(f"{count:,}")
            for count, text in (
                (collapsed, "resources replaced by a later one with the same type and id: {}"),
                (facts.skipped, "Bundle entries with nothing to load (no resource, DELETE, search outcome): {}"),
                (facts.derived_ids, "resources without an id: {}; they got one derived from content and position"),
            )
            if count
        ]
        return StepReport(
            files=len(self._files),
            resources_in=facts.resources,
            lines_in=facts.lines,
            resources_out=account.count("sent"),
            bytes_in=stored_bytes(self._files),
            bytes_out=account.count("bytes"),
            warnings=tuple(warnings),
            details={
                "types": dict(sorted(facts.types.items())),
                "deferred": account.count("deferred"),
                "collapsed": collapsed,
                "skipped_entries": facts.skipped,
                "derived_ids": facts.derived_ids,
                "resolved_references": facts.resolved_references,
                "requests": self._context.meter.requests,
            },
        )


def _concerned(resources: Iterable[Resource], alone: frozenset[str]) -> frozenset[str]:
    """Return the patients of a Bundle without their Patient. A resource without a patient adds the sequence of the
    file, in which the last of the same ``Type/id`` wins."""
    found = set(map(patient_of, resources))
    return frozenset(filter(None, found)) | (alone if None in found else frozenset())


def _lanes(resource: Resource) -> frozenset[str]:
    """Return the sequences of a resource on its own line: its patient and its ``Type/id`` (the last one wins)."""
    patient = patient_of(resource)
    return frozenset() if patient is None else frozenset((patient, resource.key))
