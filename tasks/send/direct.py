"""``direct_resource_load``: resources go to a FHIR server in transactions (docs/services.md).

``core`` is sent first and alone, then the other files, several at once. Refused resources wait in ``pending.db``. After
all files they are sent again by patient, so that circles of references are in one transaction. When the server accepts
no further resource, one error lists those that it refuses alone.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tasks.send import STATE
from tasks.send.checks import SentFile, fhir_url, service
from tasks.send.failures import Failure, list_failures, remove_failures
from tasks.send.pending import Pending
from tasks.send.transaction import Item, Refusal, Transactions
from tasks.shared.errors import DataError, ReconciliationError
from tasks.shared.fhir.bundles import Found, unwrapped
from tasks.shared.fhir.resource import ID, head_of
from tasks.shared.file_work import Done, FileWork, digest
from tasks.shared.files.data_directory import CORE, base_name, is_ndjson_name
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ndjson import MIB, lines
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each, in_order

MOST_REFUSED: Final = 1000  # in a row: that many examples are enough to see what is wrong
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sluice:resource-without-id")
_PLACEHOLDER: Final = re.compile(rb'("reference"\s*:\s*")(urn:[^"\\]+)"')


def run(context: StepContext, given: list[SentFile]) -> StepReport:
    """Send every file of the input that has no done record, then what waits. Raises ``TerminalError``
    (``send-refused``) when the server refused resources: all others are sent then."""
    send = context.config.services.send
    files = {base_name(file.name): file for file in given if "/" not in file.name and is_ndjson_name(file.name)}
    url, state = fhir_url(context.config), context.state(STATE)
    work = FileWork(context.job_dir, context.position, None, terms=digest(url))
    todo = work.begin({base: file.sha256 for base, file in files.items()})
    works = any(done.counts.get("sent") for done in work.done())
    client = context.client(service(context.config))
    with client, Pending(state) as pending, FailedAnswers(state).begin().saving_answers():
        remove_failures(state)
        pending.keep_only({files[done.file].name for done in work.done()})
        transactions = Transactions(client, url, send.batch_size, works=works)
        _Load(context, files, work, pending, transactions).send_files(todo)
        waiting = _Waiting(context, pending, transactions)
        refused = waiting.send()
        report = _report(context, files, work, waiting.replaced)
        if failed := [*_failures(pending, refused)]:
            raise list_failures(state, failed, report.resources_in or 0, pending.count() - len(refused))
        pending.delete()
    return report


def _failures(pending: Pending, refused: Mapping[int, Refusal]) -> Iterator[Failure]:
    """Yield the resources that cannot be sent, and those that were refused alone."""
    for item, reason in pending.rows():
        refusal = refused.get(item.row)
        if reason:
            yield item, reason, None
        elif refusal is not None:
            yield item, refusal.reason, refusal


def _report(context: StepContext, files: Mapping[str, SentFile], work: FileWork, replaced: int) -> StepReport:
    """Return the sum of the done records; ``replaced`` resources waited, and were replaced by a later one."""
    total: Counter[str] = Counter(replaced=replaced)
    types: Counter[str] = Counter()
    for done in work.done():
        total.update(done.counts)
        types.update(done.tallies.get("types", {}))
    texts = {
        total["replaced"]: "resources replaced by a later one with the same type and id: {:,}",
        total["derived_ids"]: "resources without an id: {:,}; they got one derived from content and position",
        len(work.again): "finished files that were sent again, because they or the server had changed: {:,}",
    }
    return StepReport(
        files=len(files),
        resources_in=total["resources"],
        lines_in=total["lines"],
        resources_out=total["resources"] - total["replaced"],
        bytes_in=sum(file.size for file in files.values()),
        bytes_out=total["bytes"],
        warnings=tuple(text.format(count) for count, text in texts.items() if count),
        details={
            "types": dict(sorted(types.items())),
            **{name: total[name] for name in ("deferred", "replaced", "derived_ids")},
            "requests": context.meter.requests,
        },
    )


@dataclass(frozen=True)
class _Load:
    """The files of a load."""

    context: StepContext
    files: Mapping[str, SentFile]
    work: FileWork
    pending: Pending
    transactions: Transactions

    def send_files(self, todo: list[str]) -> None:
        """Send these files, ``core`` alone and first."""
        meter = self.context.meter
        meter.expect(files=len(self.files), bytes=sum(file.size for file in self.files.values()))
        for done in self.work.done():
            meter.skip(files=1, resources=done.counts["sent"], stored=self.files[done.file].size)
        core = [base for base in todo if base.lower() == CORE]
        threads = self.context.config.services.send.max_concurrent_requests
        for stage in (core, [base for base in todo if base not in core]):
            for_each(stage, self._send_file, threads=threads, stop=self.context.stop)

    def _send_file(self, base: str, stop: Stop) -> None:
        file, meter, began = self.files[base], self.context.meter, time.monotonic()
        reader = FileReader(file.path, self.context.config.limits.max_line_mb * MIB, self.pending, meter)
        counts, replaced = reader.counts, list[Item]()
        for batch in self.transactions.pack(reader.items(), replaced):
            stop.check()
            sent = self.transactions.send(batch, halving=False)
            for refused, _ in sent.refused:
                self.pending.add(refused)
                counts["deferred"] += len(refused)
            counts["sent"] += len(sent.taken)
            counts["bytes"] += sent.bytes
            meter.add(resources=len(sent.taken), bytes=sent.bytes, stored=0)
        counts["replaced"] = len(replaced)
        if counts["resources"] != sum(counts[name] for name in ("sent", "replaced", "deferred", "unsendable")):
            raise ReconciliationError(
                "send-counts", "send: resources of a file were neither sent nor refused", context=file.name,
                hint="this is a defect of the program; please report it",
            )  # fmt: skip
        self.pending.commit()
        done = Done(
            file=base, identity=file.sha256, counts=dict(counts), tallies={"types": dict(reader.types)},
            seconds=round(time.monotonic() - began, 3), patients=reader.types["Patient"],
        )  # fmt: skip
        self.work.finish(done)
        meter.add(files=1)


class _Waiting:
    """Sends the resources in ``pending.db`` after all files. ``replaced`` counts those with a later version there."""

    def __init__(self, context: StepContext, pending: Pending, transactions: Transactions) -> None:
        self.replaced = 0
        self._context = context
        self._pending = pending
        self._transactions = transactions

    def send(self) -> dict[int, Refusal]:
        """Send the resources in rounds until none is accepted; return row → refusal of those refused alone."""
        backwards = False
        while count := self._pending.count():
            self._context.meter.set_status(f"{count:,} resources wait for the targets of their references")
            replaced: list[Item] = []
            batches = self._transactions.pack(self._pending.items(backwards=backwards), replaced)
            moved, refused = self._round(batches, halving=True)
            self._pending.remove(replaced)
            self.replaced += len(replaced)
            if not moved and not self._round(self._with_targets(), halving=False)[0]:
                return refused
            backwards = not backwards  # a chain of references against the order is sent in one round then
        return {}

    def _round(self, batches: Iterator[list[Item]], *, halving: bool) -> tuple[bool, dict[int, Refusal]]:
        """Send transactions; return whether a resource was accepted, and if none was, those refused alone by row."""
        moved, refused = False, dict[int, Refusal]()
        send = partial(self._transactions.send, halving=halving)
        threads = self._context.config.services.send.max_concurrent_requests
        with closing(in_order(batches, send, threads=threads, stop=self._context.stop)) as results:
            for sent in results:
                self._pending.remove(sent.taken)
                self._context.meter.add(resources=len(sent.taken))
                moved = moved or bool(sent.taken)
                for (item, *_), refusal in sent.refused:
                    if refusal.answer.status == 500 and not self._transactions.works:
                        raise refusal.error  # nothing shows that it is about this resource
                    refused[item.row] = refusal
                if sent.taken:
                    refused.clear()
                elif len(refused) >= MOST_REFUSED:
                    break
        return moved, refused

    def _with_targets(self) -> Iterator[list[Item]]:
        """Yield each resource with the waiting ones that it refers to: a circle is accepted only as a whole."""
        most = self._context.config.services.send.batch_size
        found = (self._pending.with_targets(item, most) for item in self._pending.items())
        return (together for together in found if len(together) > 1)


class FileReader:
    """Reads the resources of a file. Those that cannot be sent go to ``pending``. ``most`` limits a line (bytes)."""

    def __init__(self, path: Path, most: int, pending: Pending, meter: Meter) -> None:
        self.counts: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self._path = path
        self._name = path.name
        self._most = most
        self._pending = pending
        self._meter = meter

    def items(self) -> Iterator[Item]:
        """Yield the resources in their order."""
        for number, line in lines(self._path, self._most, stored=self._meter.read):
            self.counts["lines"] += 1
            self.counts["content"] += len(line) + 1
            try:
                found = list(unwrapped(line))
            except DataError as error:
                self._reject(Item("", line, self._name, number), error)
                continue
            items = [item for one in found if (item := self._item(number, one)) is not None]
            self.counts["resources"] += len(items)
            yield from _resolved(items, found) if b'"urn:' in line else items

    def _item(self, number: int, found: Found) -> Item | None:
        raw: bytes | msgspec.Raw = found.raw
        try:
            kind, identifier = identified(raw)
            if identifier is None:
                raw, identifier = self._with_id(number, found)
        except DataError as error:
            self._reject(Item("", raw, self._name, number, found.entry), error)
            return None
        self.types[kind] += 1
        return Item(f"{kind}/{identifier}", raw, self._name, number, found.entry, number)

    def _with_id(self, number: int, found: Found) -> tuple[bytes, str]:
        """Return a resource with an id, a UUIDv5 of position and bytes, so that a repeated send changes nothing."""
        self.counts["derived_ids"] += 1
        text = bytes(found.raw)
        content = hashlib.sha256(msgspec.json.format(text, indent=-1)).hexdigest()
        entry = "" if found.entry is None else found.entry
        name = f"{base_name(self._name)}\n{number}\n{entry}\n{content}"
        identifier = str(uuid.uuid5(_NAMESPACE, name))
        brace = text.index(b"{") + 1
        return b'%b"id":"%b",%b' % (text[:brace], identifier.encode(), text[brace:]), identifier

    def _reject(self, item: Item, error: DataError) -> None:
        self.counts["resources"] += 1
        self.counts["unsendable"] += 1
        self._pending.add([item], error.reference)


def identified(raw: bytes | msgspec.Raw) -> tuple[str, str | None]:
    """Return type and id of a resource. Raises ``DataError`` (``not-a-resource``, ``invalid-id``)."""
    kind, identifier = head_of(raw)
    if identifier is not None and ID.fullmatch(identifier) is None:
        raise DataError("invalid-id", "the id is not 1 to 64 letters, digits, - or .")
    return kind, identifier


def _resolved(items: list[Item], found: list[Found]) -> Iterator[Item]:
    """Yield the resources of a Bundle with ``Type/id`` in place of references to its ``urn:`` entries, as a server
    resolves them: their ``fullUrl`` is not sent."""
    urls = {one.entry: one.full_url for one in found if one.full_url is not None}
    keys = {urls[item.entry].encode(): item.key.encode() for item in items if item.entry in urls}

    def target(match: re.Match[bytes]) -> bytes:
        return match[1] + keys.get(match[2], match[2]) + b'"'

    for item in items:
        yield msgspec.structs.replace(item, raw=_PLACEHOLDER.sub(target, bytes(item.raw)))
