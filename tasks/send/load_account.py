"""Count the resources read, sent, deferred and refused in a load, and keep its ledger (document 3 §7).

One thread keeps the account. A resource is *done* in the ledger when it is on the server, or when a later resource with
the same ``Type/id`` stands for it; it is then never sent again, also not with another batch size after a crash.

``send/failed/`` holds the refused resources and the answers of the server. Everything there may hold data of patients:
mode 0600, in the job directory, never in logs. ``summary.csv`` names file, line, entry, resource, status and codes;
``<number>.json`` holds the entry and the answer.
"""

from __future__ import annotations

import csv
import io
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tasks.send.order import DeferredResources
from tasks.send.transaction_sender import Collapsed, Deferred, Failed, Outcome, SentTransaction
from tasks.send.verdict import Verdict
from tasks.shared.blanked import blanked
from tasks.shared.errors import ReconciliationError, TerminalError, storage_errors
from tasks.shared.fhir.bundle import CutLine, RejectedResource, Resource
from tasks.shared.files.ledger import FileProgress, Ledger, Ranges
from tasks.shared.files.out_file import AppendFile, OutFile, as_text
from tasks.shared.meter import Meter

SUMMARY: Final = "summary.csv"
MAX_ANSWER: Final = 1024 * 1024
"""Bytes of a server's answer that are kept."""

_SHOWN = 5
_COLUMNS = ("number", "file", "line", "entry", "resource", "status", "reason")


class RefusedResourcesError(TerminalError):
    """Resources did not get in. ``details`` counts them by reason, for an artifact: ``{"failed": {reason: count}}``.

    A reason is a status with issue codes, or the reference of what made a resource impossible to send: no data.
    """

    details: dict[str, dict[str, int]]


class Failures:
    """The failures of one run. What an earlier run left is removed: those resources are sent again now.

    Raises ``StorageError``.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: list[str] = []
        self.count = 0
        """How many there are."""
        self._by_reason: Counter[str] = Counter()
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in [*directory.glob("[0-9]*.json"), directory / SUMMARY]:
                old.unlink(missing_ok=True)

    def refused(self, resource: Resource, verdict: Verdict) -> str:
        """Keep a resource that the server refused; the reason as logs may show it: status and issue codes."""
        codes = ", ".join(verdict.codes)
        reason = f"{verdict.status} ({codes})" if codes else str(verdict.status)
        answer = _json(blanked(verdict.body)[:MAX_ANSWER])
        self._write_failure(resource, resource.type, reason, resource.key, verdict.status, answer)
        return reason

    def rejected(self, rejected: RejectedResource) -> None:
        """Keep a resource, or a line, that could not even be sent."""
        self._write_failure(rejected, rejected.type or "", rejected.reference, rejected.type)

    def error(self, read: int, *, complete: bool) -> RefusedResourcesError:
        """Return all failures as one error: their number of the ``read`` resources, the reasons, and the first places.

        ``complete`` is False when the step gave up before it had tried everything.
        """
        reasons = "; ".join(f"{count:,} × {reason}" for reason, count in self._by_reason.most_common(_SHOWN))
        if len(self._by_reason) > _SHOWN:
            reasons += "; …"
        more = ", …" if self.count > _SHOWN else ""
        gave_up = "" if complete else "; the step gave up, not everything was tried"
        error = RefusedResourcesError(
            "send-refused",
            f"send: {self.count:,} of {read:,} resources did not get in: {reasons}{gave_up}",
            context=", ".join(self._places) + more,
            hint=f"send/{self._directory.name}/{SUMMARY} in the job directory lists them, with the server's answers "
            "beside it; after a correction, continue the job: what is on the server already is not sent again",
            operation="send transaction",
        )
        error.details = {"failed": dict(self._by_reason.most_common())}
        return error

    def _write_failure(
        self,
        what: Resource | RejectedResource,
        kind: str,
        reason: str,
        resource: str | None,
        status: int | None = None,
        answer: msgspec.Raw | str | None = None,
    ) -> None:
        self.count += 1
        self._by_reason[reason] += 1
        if len(self._places) < _SHOWN:
            self._places.append(f"{what.file}:{what.line} {kind}".rstrip())
        row = io.StringIO()
        writer = csv.writer(row, lineterminator="\n")
        if self.count == 1:
            writer.writerow(_COLUMNS)
        cells = (self.count, what.file, what.line, what.entry, resource, status, reason)
        writer.writerow(as_text(cell) if isinstance(cell, str) else cell for cell in cells)
        request = _json(bytes(what.raw))
        record = dict(zip(_COLUMNS[1:], cells[1:], strict=True)) | {"request": request, "answer": answer}
        with OutFile(self._directory / f"{self.count:04}.json") as file:
            file.write(msgspec.json.encode(record) + b"\n")
        with AppendFile(self._directory / SUMMARY) as summary:
            summary.append(row.getvalue().encode())


def _json(data: bytes) -> msgspec.Raw | str:
    """Return the data unchanged if it is JSON, else as text."""
    try:
        data.decode()  # msgspec does not look into strings that it only passes over
        return msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode("utf-8", "backslashreplace")


_LOGGED: Final = 20

log = logging.getLogger("sluice.send")


class LoadFacts(msgspec.Struct):
    """Counts of a file that was read; ``bytes`` is the uncompressed size of its lines."""

    lines: int = 0
    resources: int = 0
    bytes: int = 0
    skipped: int = 0
    derived_ids: int = 0
    resolved_references: int = 0
    types: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, other: LoadFacts) -> None:
        """Sum up."""
        self.lines += other.lines
        self.resources += other.resources
        self.bytes += other.bytes
        self.skipped += other.skipped
        self.derived_ids += other.derived_ids
        self.resolved_references += other.resolved_references
        self.types = dict(Counter(self.types) + Counter(other.types))


class LoadSource:
    """One input file: what was read of it, and its account in the ledger."""

    def __init__(self, path: Path, account: FileProgress) -> None:
        self.path = path
        self.account = account
        self.known = Ranges(account.done)
        """The ordinals that earlier runs have done."""
        self.read_to_end = account.complete is not None
        self.facts = msgspec.convert(account.complete, LoadFacts) if self.read_to_end else LoadFacts()
        self.types: Counter[str] = Counter()

    def closable(self) -> bool:
        """Return whether the file is completely done and the ledger does not say so yet."""
        return self.read_to_end and self.account.complete is None and self.account.done.covers(0, self.facts.resources)


class LoadAccount:
    """Takes in what is read and what becomes of it."""

    def __init__(
        self, ledger: Ledger, waiting: DeferredResources, failures: Failures, *, target: str, progress: Meter
    ) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self._target = target
        self._progress = progress
        self.failures = failures
        self.sources: dict[str, LoadSource] = {}
        self.put_off_in_a_row = 0
        """Resources that were put off since the last one that got in."""

    def open(self, path: Path, sha256: str) -> LoadSource:
        """Return the source for a file; ``sha256`` (hex) is that of its stored bytes.

        What the ledger knows counts only for the same bytes and the same server.
        """
        account = self._ledger.account(path.name, f"sha256:{sha256} {self._target}")
        source = self.sources[path.name] = LoadSource(path, account)
        done = account.counts["sent"]
        if done:
            self._progress.add(resources=done)
        return source

    def read(self, source: LoadSource, cut: CutLine, size: int | None) -> Sequence[Resource]:
        """Count a line of ``size`` bytes, or its first part, or with ``None`` another part; what of it is still to be
        sent."""
        facts = source.facts
        if size is not None:
            facts.lines += 1
            facts.bytes += size + 1
        facts.resources += cut.count
        facts.skipped += cut.skipped
        facts.derived_ids += cut.derived_ids
        facts.resolved_references += cut.resolved_references
        source.types.update([resource.type for resource in cut.resources])
        for rejected in cut.rejected:
            self.failures.rejected(rejected)
            self._log(rejected.file, rejected.line, rejected.type or "", rejected.reference)
        known = source.known
        if not known:
            return cut.resources
        return [resource for resource in cut.resources if resource.ordinal not in known]

    def end_of(self, source: LoadSource) -> None:
        """Record that the file was read to its end."""
        source.facts.types = dict(source.types)
        source.read_to_end = True
        self._close(source)

    def record(self, outcome: Outcome) -> None:
        """Enter what became of resources."""
        match outcome:
            case SentTransaction(resources, body):
                self._sent(resources, body)
            case Deferred(resources):
                self.put_off_in_a_row += len(resources)
                new = [resource for resource in resources if not self._waiting.holds(resource)]
                for resource in new:
                    self._supersede(resource)
                    self._waiting.put(resource)
                for file, count in Counter(resource.file for resource in new).items():
                    self._ledger.done(file, (), deferred=count)
            case Collapsed(resources):
                self._done(resources, "collapsed")
            case Failed(resource, verdict):
                if self._waiting.holds(resource):
                    self._waiting.take_out(resource.key)
                self._progress.hand_in(1)
                reason = self.failures.refused(resource, verdict)
                self._log(resource.file, resource.line, resource.type, reason)

    def count(self, what: str) -> int:
        """Return the number of resources ``sent``, ``collapsed`` or ``deferred``, or the ``bytes`` of transactions, by
        this run and earlier ones."""
        return sum(source.account.counts[what] for source in self.sources.values())

    def facts(self) -> LoadFacts:
        """Return the counts of all files."""
        total = LoadFacts()
        for source in self.sources.values():
            total.add(source.facts)
        return total

    def reconcile(self) -> None:
        """Raise ``ReconciliationError`` ``send-counts`` when a resource is neither sent nor accounted for."""
        read = self.facts().resources
        sent, collapsed, failed = self.count("sent"), self.count("collapsed"), self.failures.count
        if read != sent + collapsed + failed:
            raise ReconciliationError(
                "send-counts",
                f"send: {read:,} resources were read, but {sent:,} sent, {collapsed:,} replaced by a later one and "
                f"{failed:,} refused",
                hint="this is a defect; continuing the job sends what the ledger does not know as sent",
            )

    def _sent(self, resources: Sequence[Resource], body: int) -> None:
        if not resources:
            return
        self.put_off_in_a_row = 0
        if len(self._waiting):
            for resource in resources:
                if self._waiting.holds(resource):
                    self._waiting.take_out(resource.key)
                else:
                    self._supersede(resource)
        self._done(resources, "sent", body)
        self._progress.add(resources=len(resources))

    def _supersede(self, resource: Resource) -> None:
        """Drop an earlier waiting resource with the same ``Type/id``, which would otherwise overwrite this one."""
        earlier = self._waiting.take_out(resource.key)
        if earlier is not None:
            file, ordinal = earlier
            self._ledger.done(file, [ordinal], collapsed=1)
            self._close(self.sources[file])

    def _done(self, resources: Sequence[Resource], how: str, body: int = 0) -> None:
        self._progress.hand_in(len(resources))
        files = {resource.file for resource in resources}
        for file in sorted(files):
            ordinals = [resource.ordinal for resource in resources if len(files) == 1 or resource.file == file]
            self._ledger.done(file, ordinals, **{how: len(ordinals), "bytes": body})
            body = 0  # counted for the first file
            self._close(self.sources[file])

    def _close(self, source: LoadSource) -> None:
        if source.closable():
            self._ledger.complete(source.path.name, msgspec.to_builtins(source.facts))
            self._progress.add(files=1)

    def _log(self, file: str, line: int, kind: str, reason: str) -> None:
        if self.failures.count <= _LOGGED:
            log.warning("send: %s:%d %s did not get in: %s", file, line, kind, reason)
        elif self.failures.count == _LOGGED + 1:
            log.warning("send: more resources did not get in; send/failed lists them all")
