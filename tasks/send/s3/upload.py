"""``s3_upload`` from beginning to end (document 3 §7): tidy up, upload, write the manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import httpx

from config import PipelineConfig, RetryConfig
from tasks.send.checks import STATE
from tasks.send.comparison import Compared
from tasks.send.s3.keys import job_prefix, object_key
from tasks.send.s3.manifest import MANIFEST, Uploaded, write_manifest
from tasks.send.s3.objects import Sizes, Uploader, abort
from tasks.send.s3.refusal import UploadGoneError
from tasks.send.s3.source import Source, sources
from tasks.send.s3.store import CONNECTIONS, Bucket
from tasks.shared.errors import DataError, ServiceError, SluiceError
from tasks.shared.report import StepReport
from tasks.shared.service import Doubt, Found
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

log = logging.getLogger("sluice.send")

_PREFLIGHT_SECONDS: Final = 10.0
_MAY_BE_FORBIDDEN: Final = frozenset({"s3-access-denied", "s3-not-supported", "s3-refused"})


def findings(config: PipelineConfig, *, environ: Mapping[str, str] | None = None) -> list[Found]:
    """What would stop an upload before its first byte: one question to the store, asked once.

    References: those of ``Refusal`` and of the HTTP client. Keys that may write but not look are a doubt.
    """
    stop = Stop()
    once = RetryConfig(max_attempts=1)
    try:
        with Bucket(config, stop=stop, retry=once, timeout=_PREFLIGHT_SECONDS, environ=environ) as bucket:
            if bucket.check(stop):
                return []
    except SluiceError as error:
        return [error]
    return [Doubt("send: the keys may not look into the bucket; whether they may write, the upload will show")]


def run(
    context: StepContext,
    *,
    compared: Compared | None = None,
    sizes: Sizes | None = None,
    transport: httpx.BaseTransport | None = None,
    environ: Mapping[str, str] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> StepReport:
    """Bring every file of the input directory into the bucket; those that are there are not sent again.

    Keys are ``[prefix/]<job id>/<path below the input directory>``. At the end ``send/upload_manifest.json`` says what
    is in the bucket; it is not uploaded. ``bytes_out`` is the size of the objects of the job, sent now or before.
    ``compared`` is the input as it must still be; ``sizes``, ``transport``, ``environ`` and ``sleep`` are seams for
    tests.

    Raises ``DataError`` (``send-no-input``, ``send-input-changed``), ``InputError``, ``StorageError``,
    ``TransientError`` and ``ServiceError`` as ``Bucket`` does, and ``Stopped``. Unfinished uploads are aborted then.
    """
    found = sources(context.input_dir)
    if not found:
        raise DataError("send-no-input", "send: there is nothing to send", context=str(context.input_dir))
    if compared:
        compared.verify_all(source.path for source in found)  # from here on ``OpenSource`` looks after each of them
    prefix = job_prefix(context.config.services.send.s3.prefix, context.job_id)
    keys = {source.name: object_key(prefix, source.name) for source in found}
    total = sum(source.size for source in found)
    context.meter.expect(files=len(found), bytes=total)
    done: list[Uploaded] = []
    sent: list[str] = []
    with Bucket(
        context.config,
        stop=context.stop,
        meter=context.meter,
        transport=transport,
        environ=environ,
        sleep=sleep,
    ) as bucket:
        _tidy(bucket, prefix, context.stop)
        uploader = Uploader(bucket, context.meter, sizes or Sizes())

        def one(source: Source, stop: Stop) -> None:
            uploaded, new = uploader.upload(source, keys[source.name], stop)
            done.append(uploaded)
            if new:
                sent.append(source.name)

        for_each(found, one, threads=CONNECTIONS, stop=context.stop)
    write_manifest(context.state(STATE), done)
    return StepReport(
        files=len(found),
        bytes_in=total,
        bytes_out=sum(uploaded.size for uploaded in done),
        details={
            "bucket": bucket.name,
            "prefix": prefix,
            "uploaded": len(sent),
            "already_there": len(found) - len(sent),
            "manifest": f"send/{MANIFEST}",
        },
    )


def _tidy(bucket: Bucket, prefix: str, stop: Stop) -> None:
    """Abort what a killed run of this job left: unfinished uploads cost their owner storage, and nobody sees them."""
    try:
        for upload in list(bucket.unfinished(prefix, stop)):
            stop.check()
            log.info("send: removing an unfinished upload of an earlier run: %s", upload.key)
            abort(bucket, upload)
    except ServiceError as error:
        if error.reference not in _MAY_BE_FORBIDDEN:
            raise
        log.info("send: the store does not list unfinished uploads (%s)", error.reference)
    except UploadGoneError:
        log.info("send: the store says that there are no unfinished uploads")  # as rclone's answers an empty list
