"""``s3_upload`` (docs/services.md): upload each file as an object, then the manifest.

boto3's transfer manager sends a file in one request up to 64 MiB, in parts above, and aborts an upload in parts that
fails. A file is not sent when HEAD shows its size and ``sha256``; after an upload HEAD must show them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber

from tasks.send import STATE
from tasks.send.checks import SentFile
from tasks.send.s3_store import StoreClient, translated
from tasks.shared.errors import ServiceError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.part_file import write_whole
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

_LARGE: Final = (64 << 20) + 1
AT_ONCE: Final = TransferConfig(multipart_threshold=_LARGE, multipart_chunksize=32 << 20, max_request_concurrency=4)

MANIFEST: Final = "upload_manifest.json"
"""A JSON list of ``Uploaded`` in the order of the keys: the last object, with a copy in the job's ``send/``."""

_TYPES: Final = {
    ".ndjson": "application/fhir+ndjson", ".zst": "application/zstd", ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
}  # fmt: skip


class Uploaded(msgspec.Struct, frozen=True, order=True):
    """One object that is in the bucket: ``size`` in bytes, ``etag`` without quotes, ``time`` in UTC."""

    key: str
    size: int
    sha256: str | None
    etag: str
    time: str


def run(context: StepContext, files: list[SentFile]) -> StepReport:
    """Bring every file of the input directory into the bucket; those that are there are not sent again.

    Keys are ``[prefix/]<job id>/<path below the input directory>``. ``bytes_out`` includes files from before.
    """
    s3 = context.config.services.send.s3
    prefix = "/".join([*filter(None, [(s3.prefix or "").strip("/")]), context.job_id, ""])
    total = sum(file.size for file in files)
    context.meter.expect(files=len(files), bytes=total)
    state = context.state(STATE)
    with (
        FailedAnswers(state).begin().saving_answers(),
        StoreClient(context.config, stop=context.stop, meter=context.meter) as client,
        TransferManager(client.boto, AT_ONCE) as manager,
    ):
        uploads = Uploads(client, manager, s3.bucket or "")

        def one(file: SentFile, _: Stop) -> None:
            progress = _SentBytes(context.meter)
            there = uploads.upload(file, prefix + file.name, [progress])
            # The transfer manager reports quarters of a MiB, and not the rest.
            count = context.meter.skip if there else context.meter.add
            count(files=1, stored=file.size - progress.sent)

        for_each(files, one, threads=AT_ONCE.max_request_concurrency, stop=context.stop)
        text = msgspec.json.format(msgspec.json.encode(sorted(uploads.done)), indent=2) + b"\n"
        write_whole(state / MANIFEST, text)
        there = uploads.already_there
        file = SentFile(state / MANIFEST, MANIFEST, len(text), hashlib.sha256(text).hexdigest())
        uploads.upload(file, prefix + MANIFEST)
    return StepReport(
        files=len(files),
        bytes_in=total,
        bytes_out=total,
        details={
            "bucket": s3.bucket,
            "prefix": prefix,
            "uploaded": len(files) - there,
            "already_there": there,
            "manifest": f"send/{MANIFEST}",
        },
    )


class Uploads:
    """Uploads files into the bucket; thread-safe."""

    def __init__(self, client: StoreClient, manager: TransferManager, bucket: str) -> None:
        self.done: list[Uploaded] = []
        self.already_there = 0
        self._client = client
        self._bucket = bucket
        self._manager = manager

    def upload(self, file: SentFile, key: str, progress: Sequence[BaseSubscriber] = ()) -> bool:
        """Bring a file into the bucket as ``key``, unless it is there, and return whether it was.

        Raises ``ServiceError`` (``s3-differs``) when the object is not the file afterwards.
        """
        stored, wanted = self._head(key), (file.size, file.sha256)
        there = stored is not None and (stored.size, stored.sha256) == wanted
        if not there:
            more = {"ContentType": content_type(file.name), "Metadata": {"sha256": file.sha256}}
            with translated():
                path, progress = str(file.path), [*progress]
                self._manager.upload(path, self._bucket, key, extra_args=more, subscribers=progress).result()
            stored = self._head(key)
        if stored is None or (stored.size, stored.sha256) != wanted:
            raise ServiceError(
                "s3-differs",
                "send: the store accepted an object, but does not show it afterwards with this size and SHA-256",
                context=self._client.place(key),
                hint="the access key needs the right to read what it wrote; check, too, whether something else writes "
                "to this key; continue the job to upload the object again",
            )
        self.already_there += there
        self.done.append(stored)
        return there

    def _head(self, key: str) -> Uploaded | None:
        """Return the object ``key``; ``None`` after a 404, or a 403, which keys without the right to list get."""
        try:
            with translated():
                told: dict[str, Any] = self._client.boto.head_object(Bucket=self._bucket, Key=key)
        except ServiceError as error:
            if error.status in (403, 404) and error.reference != "s3-region":
                return None
            raise
        return Uploaded(
            key=key,
            size=int(told.get("ContentLength", -1)),
            sha256=told.get("Metadata", {}).get("sha256"),
            etag=str(told.get("ETag") or "").strip('"'),
            time=_timestamp(told.get("LastModified") or datetime.now(UTC)),
        )


class _SentBytes(BaseSubscriber):  # type: ignore[misc]
    """Counts the sent bytes of a file on the meter."""

    def __init__(self, meter: Meter) -> None:
        self.sent = 0
        self._meter = meter

    def on_progress(self, future: object, bytes_transferred: int, **_: Any) -> None:
        """Count bytes; their number is negative when they will be sent again."""
        self.sent += bytes_transferred
        self._meter.add(bytes=bytes_transferred)


def content_type(name: str) -> str:
    """Return the ``Content-Type`` of a file. ``Content-Encoding`` is not used: clients would unpack zstd files."""
    return _TYPES.get(Path(name.lower()).suffix, "application/octet-stream")


def _timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
