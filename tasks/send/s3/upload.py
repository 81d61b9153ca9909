"""``s3_upload`` (document 3 §7): make one object of each file, then of the manifest.

boto3's transfer manager sends a file in one request up to 64 MiB, in parts above, and aborts an upload in parts that
fails or is stopped. A file is not sent at all when the object is there: HEAD names the same size and the same
``sha256`` in the metadata. After an upload HEAD is asked, too.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber

from config import PipelineConfig
from tasks.send import STATE
from tasks.send.comparison import InputComparison
from tasks.send.s3.client import CONNECTIONS, StoreClient
from tasks.send.s3.files import MANIFEST, Uploaded, content_type, job_prefix, manifest, object_key, timestamp
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.out_file import write_file
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.service import PATIENCE, Found, ProbeWarning
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

log = logging.getLogger("sluice.send")

MIB: Final = 1024 * 1024

_NOT_FOUND: Final = 404
_UNKNOWN_TO_HEAD: Final = frozenset({400, 403, 404, 405, 501})
"""Answers to HEAD that do not say that the object is there. HEAD has no error document, and keys that may only write
get 403 for everything: the upload that follows gets the whole answer."""


@dataclass(frozen=True)
class Sizes:
    """Bytes. Files above ``threshold`` go in parts of ``part`` or, when there would be too many, larger ones."""

    threshold: int = 64 * MIB
    part: int = 32 * MIB


@dataclass(frozen=True)
class StoredObject:
    """An object that is in the bucket: ``size`` in bytes, ``sha256`` from its metadata, ``etag`` without quotes."""

    size: int
    sha256: str | None
    etag: str
    modified: datetime


def findings(
    config: PipelineConfig,
    *,
    stop: Stop | None = None,
    meter: Meter | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Found]:
    """Look for the bucket before an upload, with retries for at most two minutes, and return the findings.

    References: those of ``Refusal`` and of the HTTP client. Keys that may write but not look are a doubt.
    """
    try:
        with (
            StoreClient(
                config, stop=stop or Stop(), meter=meter, timeout=PATIENCE, within=PATIENCE, environ=environ
            ) as client,
            client.translated(),
        ):
            client.boto.head_bucket(Bucket=config.services.send.s3.bucket)
    except ServiceError as error:
        if error.status == 403 and error.reference == "s3-access-denied":
            what = "send: the keys may not look for the bucket; whether they may write, the upload will show"
            return [ProbeWarning(what)]
        return [error]
    except SluiceError as error:
        return [error]
    return []


def run(
    context: StepContext,
    compared: InputComparison,
    *,
    sizes: Sizes | None = None,
    transport: httpx.BaseTransport | None = None,
    environ: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> StepReport:
    """Bring every file of the input directory into the bucket; those that are there are not sent again.

    Keys are ``[prefix/]<job id>/<path below the input directory>``. At the end the manifest says what is in the bucket.
    ``bytes_out`` is the size of the objects of the job, sent now or before. ``sizes``, ``transport``, ``environ`` and
    ``sleep`` are seams for tests.

    Raises ``DataError`` (``send-no-input``), ``InputError``, ``StorageError``, ``TransientError``, ``ServiceError`` and
    ``Stopped``. Unfinished uploads are aborted then.
    """
    files = compared.files()
    prefix = job_prefix(context.config.services.send.s3.prefix, context.job_id)
    keys = {path: object_key(prefix, compared.name(path)) for path in files}
    total = sum(compared.entry(path).size for path in files)
    context.meter.expect(files=len(files), bytes=total)
    state = context.state(STATE)
    with (
        FailedAnswers(state).begin().saving_answers(),
        StoreClient(
            context.config, stop=context.stop, meter=context.meter, transport=transport, environ=environ, sleep=sleep
        ) as client,
        Uploads(client, context.config, sizes or Sizes()) as uploads,
    ):

        def one(path: Path, _: Stop) -> None:
            entry, progress = compared.entry(path), _SentBytes(context.meter)
            there = uploads.upload(path, keys[path], entry.size, entry.sha256, [progress])
            # The transfer manager tells of a quarter of a MiB at once, and not of the rest.
            context.meter.add(files=1, bytes=entry.size - progress.sent, earlier=there)

        for_each(files, one, threads=CONNECTIONS, stop=context.stop)
        text = manifest(uploads.done)
        written = write_file(state / MANIFEST, text)
        already_there = uploads.already_there
        uploads.upload(written, prefix + MANIFEST, len(text), hashlib.sha256(text).hexdigest())
    for warning in uploads.warnings:
        context.meter.warn(warning)
    return StepReport(
        files=len(files),
        bytes_in=total,
        bytes_out=total,
        warnings=tuple(uploads.warnings),
        details={
            "bucket": context.config.services.send.s3.bucket,
            "prefix": prefix,
            "uploaded": len(files) - already_there,
            "already_there": already_there,
            "manifest": f"send/{MANIFEST}",
        },
    )


class Uploads:
    """Uploads files into the bucket; thread-safe. Leaving its context waits for nothing."""

    def __init__(self, client: StoreClient, config: PipelineConfig, sizes: Sizes) -> None:
        self.done: list[Uploaded] = []
        self.already_there = 0
        self.warnings: dict[str, None] = {}
        self._client = client
        self._bucket = config.services.send.s3.bucket
        at_once = TransferConfig(
            multipart_threshold=sizes.threshold + 1, multipart_chunksize=sizes.part, max_request_concurrency=CONNECTIONS
        )
        self._manager = TransferManager(client.boto, at_once)

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.shutdown(cancel=True)

    def upload(self, path: Path, key: str, size: int, sha256: str, subscribers: Sequence[BaseSubscriber] = ()) -> bool:
        """Bring a file into the bucket as ``key``, unless it is there, and return whether it was.

        Raises what ``StoreClient.translated`` raises, and ``ServiceError`` ``s3-differs`` when the object is not the
        file afterwards.
        """
        stored = self._head(key)
        there = stored is not None and (stored.size, stored.sha256) == (size, sha256)
        if not there:
            arguments = {"ContentType": content_type(path.name), "Metadata": {"sha256": sha256}}
            with self._client.translated():
                self._manager.upload(
                    str(path), self._bucket, key, extra_args=arguments, subscribers=list(subscribers)
                ).result()
            stored = self._head(key, uploaded=True)
            if stored is not None and (stored.size, stored.sha256) != (size, sha256):
                raise self._differs(key, "it has another size, or its metadata another SHA-256")
        self.already_there += there
        etag, moment = (stored.etag, stored.modified) if stored is not None else ("", datetime.now(UTC))
        self.done.append(Uploaded(key, size, sha256, etag, timestamp(moment)))
        return there

    def _head(self, key: str, *, uploaded: bool = False) -> StoredObject | None:
        """Return the object ``key``; ``None`` when it is not there, or the store does not tell."""
        try:
            with self._client.translated():
                answer: dict[str, Any] = self._client.boto.head_object(Bucket=self._bucket, Key=key)
        except ServiceError as error:
            if uploaded and error.status == _NOT_FOUND:
                raise self._differs(key, "it is not there") from None
            if error.status in _UNKNOWN_TO_HEAD and error.reference != "s3-region":
                return None
            raise
        if answer.get("ContentEncoding"):
            what = "send: the store reports a Content-Encoding that was not sent: readers may try to decompress objects"
            self.warnings[what] = None
        return StoredObject(
            size=int(answer.get("ContentLength", -1)),
            sha256=answer.get("Metadata", {}).get("sha256"),
            etag=str(answer.get("ETag") or "").strip('"'),
            modified=answer.get("LastModified") or datetime.now(UTC),
        )

    def _differs(self, key: str, how: str) -> ServiceError:
        return ServiceError(
            "s3-differs",
            f"send: the store accepted an object, but afterwards {how}",
            context=self._client.place(key),
            hint="check whether something else writes to this key; continuing the job uploads the object again",
        )


class _SentBytes(BaseSubscriber):  # type: ignore[misc]
    """Tells the meter of the bytes of a file that have left."""

    def __init__(self, meter: Meter) -> None:
        self.sent = 0
        self._meter = meter

    def on_progress(self, future: object, bytes_transferred: int, **_: Any) -> None:
        """Count them; less than 0, when they are sent once more."""
        self.sent += bytes_transferred
        self._meter.add(bytes=bytes_transferred)
