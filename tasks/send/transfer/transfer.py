"""``transfer_load``: one zip, one Binary, one DocumentReference (document 3 §7).

1. Ask the store what it has for the project, before anything expensive is done.
2. Make the zip in the job's ``send/`` directory, unless a run that was killed has left it.
3. Upload the zip as a Binary.
4. Put the DocumentReference last, onto the id that the receiving process finds: the commit.
5. Search once more: what is found must be what was put. Remove the zip.

Every step is idempotent and leads to the same ids, so after a crash at any moment the same command ends at the same
state of the store, and a second send changes nothing there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tasks.send import STATE
from tasks.send.checks import fhir_url, service
from tasks.send.comparison import InputComparison
from tasks.send.transfer.archive import Archive, plain_names, read_archive, write_archive
from tasks.send.transfer.documents import MAX_SIZE, Document, Transfer
from tasks.send.transfer.store import FhirStore, TransferBounds
from tasks.shared.errors import InputError, ServiceError, storage_errors
from tasks.shared.files.data_directory import stored_bytes
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

ARCHIVE: Final = "transfer-{digest:.16}.zip"
"""The name of the zip, by the digest of the input."""

log = logging.getLogger("sluice.send")


def run(
    context: StepContext,
    compared: InputComparison,
    *,
    bounds: TransferBounds | None = None,
    sleep: Callable[[float], None] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> StepReport:
    """Send everything in the input directory as one zip.

    ``bounds``, ``sleep`` (seconds) and ``now`` (with a zone) are seams for tests. Raises ``InputError`` for a missing
    URL or identifier, ``DataError`` for input that cannot be sent, ``TransientError`` when the server stays away or
    busy, ``ServiceError`` when it refuses, ``StorageError``, ``Stopped``.
    """
    bounds = bounds or TransferBounds()
    send = context.config.services.send
    base = fhir_url(context.config)
    transfer = Transfer(
        _identifier(send.transfer.project_identifier, "project"),
        _identifier(send.transfer.organization_identifier, "organization"),
    )
    files = plain_names(context.input_dir, compared.files())
    directory = context.state(STATE)
    path = directory / ARCHIVE.format(digest=compared.inventory.digest)
    where, timeout = service(context.config), send.timeout.total_seconds()
    failed = FailedAnswers(directory).begin().saving_answers()
    with failed, context.old_client(where, timeout=timeout, max_connections=1, sleep=sleep) as client:
        store = FhirStore(client, base, bounds, timeout=timeout)
        documents = store.find(transfer)
        archive = _packed(context, files, path)
        identity = documents[0]["id"] if documents else transfer.document_id
        stands = bool(documents) and transfer.stands(documents[0], archive)
        there = stands and store.holds(transfer.binary_id, archive.size)
        if not there:
            _upload(context, store, transfer.binary_id, path, archive)
        if not stands:
            store.put_document(identity, transfer.document(identity, archive, now().isoformat(timespec="seconds")))
            _read_back(store, transfer, identity, archive)
    _remove_zips(directory)
    warnings = _warnings(documents, transfer, archive)
    for text in warnings:
        log.warning("send: %s", text)
    return StepReport(
        files=len(archive.members),
        lines_in=archive.lines,
        bytes_in=stored_bytes(files.values()),
        bytes_out=archive.size,
        content=archive.content,
        warnings=warnings,
        details={
            "document": f"DocumentReference/{identity}",
            "binary": f"Binary/{transfer.binary_id}",
            "zip_sha1": archive.sha1,
            "already_there": there,
            "requests": context.meter.requests,
        },
    )


def _identifier(value: str | None, name: str) -> str:
    if value is None:
        key = f"services.send.transfer.{name}_identifier"
        raise InputError("transfer-identifier", f"send: transfer_load needs a {name} identifier", context=key)
    return value


def _packed(context: StepContext, files: Mapping[str, Path], path: Path) -> Archive:
    """Make the zip, unless it is there, and return its facts."""
    meter = context.meter

    def passed(size: int) -> None:
        context.stop.check()
        meter.add(bytes=size)

    meter.begin("packs the zip")
    if not path.exists():
        _remove_zips(path.parent)
        write_archive(files, path, packed=passed)
    return read_archive(path, read=passed)


def _remove_zips(directory: Path) -> None:
    """Remove the zips, also those of other contents."""
    with storage_errors(directory):
        for path in directory.glob("transfer-*.zip"):
            path.unlink(missing_ok=True)


def _upload(context: StepContext, store: FhirStore, identity: str, path: Path, archive: Archive) -> None:
    meter = context.meter
    meter.begin("uploads the zip")
    meter.expect(bytes=archive.size)
    before = 0

    def sent(count: int) -> None:
        nonlocal before
        meter.add(bytes=count - before)  # less, when it is sent once more
        before = count

    store.put_binary(identity, path, archive.size, sent=sent)


def _read_back(store: FhirStore, transfer: Transfer, identity: str, archive: Archive) -> None:
    """Search as the receiving process does: what it gets must be what was put. Raises ``ServiceError``."""
    documents = store.find(transfer)
    if not documents or documents[0]["id"] != identity or not transfer.points_to(documents[0], archive):
        raise ServiceError(
            "transfer-differs",
            "send: the server accepted the DocumentReference, but the search for the project finds another one first",
            context=f"{store.base}/DocumentReference/{identity}",
            hint="see the log of the server; does something else write to it? continuing the job sends it again",
            operation="look for what was put",
        )


def _warnings(documents: Sequence[Document], transfer: Transfer, archive: Archive) -> tuple[str, ...]:
    """Return the warnings about the documents that were there before, and about the zip."""
    warnings: list[str] = []
    if len(documents) > 1:
        warnings.append(
            f"the server has {len(documents)} DocumentReferences for this project; the first one, which the receiving "
            "process takes, now points to this zip, the others stay as they are"
        )
    if documents and not transfer.owns(documents[0]):
        warnings.append(
            "the DocumentReference of this project did not name this organization as its author; it was replaced"
        )
    if archive.size > MAX_SIZE:
        warnings.append("the zip is larger than attachment.size can say (2 GiB); the DocumentReference leaves it out")
    return tuple(warnings)
