"""``transfer_load``: one zip, one Binary, one DocumentReference (document 3 §7).

1. Read the input once: names, sizes, hashes, lines.
2. Ask the store what it has for the project, before anything expensive is done.
3. Make the zip in the job's ``send/`` directory.
4. Upload it as a Binary, unless the store has it, and look at what is there then.
5. Put the DocumentReference last, onto the id that the receiving process finds: the commit. Search for it once more:
   what is found must be what was put.
6. Remove the Binaries that nothing points to any more, best effort, and the zip.

Every step is idempotent and leads to the same ids, so after a crash at any moment the same command ends at the same
state of the store, and a second send changes nothing there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.send import STATE
from tasks.send.checks import fhir_url, service
from tasks.send.comparison import InputComparison
from tasks.send.transfer.archive import Archive, ArchiveContents, survey, write_archive
from tasks.send.transfer.documents import MAX_SIZE, Hit, Transfer
from tasks.send.transfer.store import FhirStore, TransferBounds
from tasks.shared.errors import InputError, SluiceError, storage_errors
from tasks.shared.files.data_directory import stored_bytes
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.out_file import size_of, write_file
from tasks.shared.files.private_file import read_state
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

ARCHIVE: Final = "transfer.zip"
JOURNAL: Final = "transfer.json"

log = logging.getLogger("sluice.send")


class TransferJournal(msgspec.Struct, frozen=True):
    """The state of a transfer to ``target``, the base URL of the FHIR store, kept over a crash as small JSON.

    It is written before the thing it guards: the id of a Binary before its upload begins, the ids of old Binaries
    before the DocumentReference that names them is replaced. So nothing is left on the server that a later run of this
    job does not know of.

    ``archive`` is the zip of the contents with this identity, ``uploaded`` whether the server confirmed its Binary,
    ``date`` that of the DocumentReference, ``leftovers`` the Binary ids that are to go once another one stands.
    """

    target: str
    contents: str
    date: str
    archive: Archive | None = None
    uploaded: bool = False
    leftovers: tuple[str, ...] = ()


def load_journal(directory: Path, *, target: str, contents: str, date: str) -> TransferJournal:
    """Return the journal for these contents and this target; a new one, dated ``date``, if there is none.

    What an earlier run of this job left at the same target is remembered even if the contents are others now.
    """
    fresh = TransferJournal(target, contents, date)
    # One that another version wrote counts as none: at worst an upload is repeated, which changes nothing.
    known = read_state(directory / JOURNAL, TransferJournal)
    if known is None or known.target != target:
        return fresh
    if known.contents != contents:
        return msgspec.structs.replace(fresh, leftovers=known.leftovers)
    return known


def run(
    context: StepContext,
    compared: InputComparison,
    *,
    bounds: TransferBounds | None = None,
    sleep: Callable[[float], None] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> StepReport:
    """Send everything in the input directory as one zip.

    ``compared`` is the input as it must still be; ``bounds``, ``sleep`` (seconds) and ``now`` (with a zone) are seams
    for tests. Raises ``InputError`` for a missing URL or identifier, ``DataError`` for input that cannot be sent or
    changed, ``TransientError`` when the server stays away or busy, ``ServiceError`` when it refuses, ``StorageError``,
    ``Stopped``.
    """
    bounds = bounds or TransferBounds()
    send = context.config.services.send
    base = fhir_url(context.config)
    transfer = Transfer(
        _identifier(send.transfer.project_identifier, "project"),
        _identifier(send.transfer.organization_identifier, "organization"),
    )
    directory = context.state(STATE)
    where, timeout = service(context.config), send.timeout.total_seconds()
    failed = FailedAnswers(directory).begin().saving_answers()
    with failed, context.client(where, timeout=timeout, max_connections=1, sleep=sleep) as client:
        store = FhirStore(client, base, bounds, timeout=timeout)
        date = now().isoformat(timespec="seconds")
        return _Sending(context, compared, transfer, store, directory).run(date)


def _identifier(value: str | None, name: str) -> str:
    if value is None:
        key = f"services.send.transfer.{name}_identifier"
        raise InputError("transfer-identifier", f"send: transfer_load needs a {name} identifier", context=key)
    return value


class _Sending:
    """One run of the step."""

    def __init__(
        self, context: StepContext, compared: InputComparison, transfer: Transfer, store: FhirStore, directory: Path
    ) -> None:
        self._context = context
        self._compared = compared
        self._transfer = transfer
        self._store = store
        self._directory = directory
        self._path = directory / ARCHIVE
        self._journal = TransferJournal("", "", "")

    def run(self, date: str) -> StepReport:
        contents = self._survey()
        self._journal = load_journal(self._directory, target=self._store.base, contents=contents.identity, date=date)
        self._store.find(self._transfer)
        uploaded = self._upload(contents)
        archive = self._archive(contents)
        document, removed, warnings = self._commit(archive)
        self._remove_zip()
        if archive.size > MAX_SIZE:
            warnings.append(
                "the zip is larger than attachment.size can say (2 GiB); the DocumentReference leaves it out"
            )
        for text in warnings:
            log.warning("send: %s", text)
        return StepReport(
            files=len(contents.members),
            resources_in=contents.resources,
            resources_out=contents.resources,
            lines_in=contents.lines,
            bytes_in=stored_bytes(contents.paths),
            bytes_out=archive.size,
            content=contents.size,
            warnings=tuple(warnings),
            details={
                "document": document,
                "binary": f"Binary/{self._transfer.binary_id(archive)}",
                "zip_sha256": archive.sha256,
                "already_there": not uploaded,
                "removed_binaries": removed,
                "requests": self._context.meter.requests,
            },
        )

    # The zip

    def _survey(self) -> ArchiveContents:
        progress = self._context.meter
        progress.set_status("reads the files")

        def read(size: int) -> None:
            self._context.stop.check()
            progress.add(bytes=size)

        contents = survey(self._context.input_dir, read=read, largest=self._context.config.limits.largest_resource)
        # The zip is compared with what the survey read.
        if sorted(contents.paths) != sorted(self._compared.files()):
            raise self._compared.changed(self._context.input_dir)
        return contents

    def _archive(self, contents: ArchiveContents) -> Archive:
        """Return the facts of the zip; create it if they are unknown."""
        return self._journal.archive or self._pack(contents)

    def _pack(self, contents: ArchiveContents) -> Archive:
        """Make the zip."""
        progress = self._context.meter
        progress.begin("packs the zip")
        progress.expect(bytes=contents.size)
        self._remove_zip()  # one of other contents must not stand under this name with a journal of these

        def packed(size: int) -> None:
            self._context.stop.check()
            progress.add(bytes=size)

        archive = write_archive(contents, self._path, packed=packed)
        if archive != self._journal.archive:
            self._note(archive=archive, uploaded=False)
        return archive

    def _has_zip(self, archive: Archive) -> bool:
        """Return whether the finished zip exists; under its final name it is complete."""
        return size_of(self._path) == archive.size

    def _remove_zip(self) -> None:
        with storage_errors(self._path):
            self._path.unlink(missing_ok=True)

    # The server

    def _upload(self, contents: ArchiveContents) -> bool:
        """Get the Binary to the server; whether that took an upload."""
        archive = self._archive(contents)
        if self._store.holds(self._transfer.binary_id(archive), archive, uploaded=self._journal.uploaded):
            return False
        if not self._has_zip(archive):
            archive = self._pack(contents)
        identity = self._transfer.binary_id(archive)
        self._note(leftovers=[*self._journal.leftovers, identity], uploaded=False)
        progress = self._context.meter
        progress.begin("uploads the zip")
        progress.expect(bytes=archive.size)
        before = 0

        def sent(count: int) -> None:
            nonlocal before
            progress.add(bytes=count - before)  # less, when it is sent once more
            before = count

        self._store.put_binary(identity, self._path, archive, sent=sent)
        self._store.check_binary(identity, archive)
        self._note(uploaded=True)
        return True

    def _commit(self, archive: Archive) -> tuple[str, int, list[str]]:
        """Let the DocumentReference point to the Binary, then remove what it pointed to before. Return its place, how
        many Binaries are gone, and warnings, which quote no data.
        """
        hits, _ = self._store.find(self._transfer)
        first = hits[0] if hits else None
        identity = first.id if first is not None else self._transfer.document_id
        warnings = self._warnings(hits)
        current = self._transfer.binary_id(archive)
        if first is None or not self._transfer.stands(first, archive):
            if first is not None and self._transfer.owns(first):
                self._note(leftovers=[*self._journal.leftovers, *first.binaries(self._store.base)])
            self._store.put_document(identity, self._transfer.document(identity, archive, self._journal.date))
            self._read_back(identity, archive)
        kept = {current, *(one for hit in hits[1:] for one in hit.binaries(self._store.base))}
        removed, left = self._tidy([one for one in self._journal.leftovers if one not in kept])
        if left:
            text = "{} zips of earlier sends could not be removed from the server; nothing points to them any more"
            warnings.append(text.format(len(left)))
        self._note(leftovers=left)
        return f"DocumentReference/{identity}", removed, warnings

    def _read_back(self, identity: str, archive: Archive) -> None:
        """Search as the receiving process does: what it gets must be what was put."""
        hits, answer = self._store.find(self._transfer)
        name = f"DocumentReference/{identity}"
        if not hits:
            raise self._store.differs(name, "is not found", answer)
        if hits[0].id != identity:
            raise self._store.differs(name, "is not the first one that is found", answer)
        if not self._transfer.arrived(hits[0], archive, self._store.base):
            raise self._store.differs(name, "names another Binary, type, size, hash, status or author", answer)

    def _tidy(self, identities: Sequence[str]) -> tuple[int, list[str]]:
        """Remove Binaries, best effort: how many are gone, and which are left."""
        left: list[str] = []
        for identity in identities:
            try:
                self._store.delete_binary(identity)
            except SluiceError as error:
                log.warning("send: Binary/%s was not removed (%s)", identity, error.status or error.reference)
                left.append(identity)
        return len(identities) - len(left), left

    def _warnings(self, hits: Sequence[Hit]) -> list[str]:
        warnings: list[str] = []
        if len(hits) > 1:
            warnings.append(
                f"the server has {len(hits)} DocumentReferences for this project; the first one, which the receiving "
                "process takes, now points to this zip, the others stay as they are"
            )
        if hits and not self._transfer.owns(hits[0]):
            warnings.append(
                "the DocumentReference of this project did not name this organization as its author; it was replaced"
            )
        return warnings

    def _note(self, **changes: Any) -> None:
        """Write the journal with these changes, each of the ``leftovers`` once; durable when this returns."""
        leftovers = changes.pop("leftovers", self._journal.leftovers)
        self._journal = msgspec.structs.replace(self._journal, leftovers=tuple(dict.fromkeys(leftovers)), **changes)
        text = msgspec.json.format(msgspec.json.encode(self._journal), indent=2)
        write_file(self._directory / JOURNAL, text + b"\n")
