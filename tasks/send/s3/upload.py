"""``s3_upload`` from beginning to end (document 3 §7): tidy up, upload, write the manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import httpx

from config import PipelineConfig
from tasks.send import STATE
from tasks.send.comparison import Compared
from tasks.send.s3.keys import job_prefix, object_key
from tasks.send.s3.manifest import MANIFEST, Uploaded, begun_in_parts, write_in_parts, write_manifest
from tasks.send.s3.objects import Sizes, Uploader, abort
from tasks.send.s3.refusal import UploadGoneError
from tasks.send.s3.source import Source, sources
from tasks.send.s3.store import CONNECTIONS, Bucket
from tasks.shared.errors import DataError, ServiceError, SluiceError
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import RefusedError
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.service import PATIENCE, Doubt, Found, WrongServiceError
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

log = logging.getLogger("sluice.send")

_NO_STORE: Final = frozenset({"s3-answer", "s3-not-supported", "s3-refused"})
_MAY_BE_FORBIDDEN: Final = frozenset({"s3-access-denied", "s3-not-supported", "s3-refused"})


def findings(
    config: PipelineConfig,
    *,
    stop: Stop | None = None,
    meter: Meter | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Found]:
    """What would stop an upload before its first byte: the store is asked for the bucket, as often as the retry block
    says, for two minutes at most.

    References: ``wrong-service`` for what is no store, those of ``Refusal`` and of the HTTP client. Keys that may write
    but not look are a doubt.
    """
    stop = stop or Stop()
    try:
        with Bucket(config, stop=stop, meter=meter, timeout=PATIENCE, within=PATIENCE, environ=environ) as bucket:
            if bucket.check(stop):
                return []
    except RefusedError as error:
        return [_no_store(error) if error.reference in _NO_STORE else error]
    except SluiceError as error:
        return [error]
    return [Doubt("send: the keys may not look into the bucket; whether they may write, the upload will show")]


def _no_store(error: RefusedError) -> WrongServiceError:
    return WrongServiceError(
        "wrong-service",
        f"send: this is not an S3 store: asked for the bucket, it answered {error.answer.status}",
        context=error.context,
        hint="check services.send.s3.endpoint, and whether a proxy answers in place of the store; no data was sent",
        operation="probe",
        status=error.answer.status,
    ).made_from(error.answer)


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
    failed = FailedAnswers(context.state(STATE)).begin()
    with (
        failed.telling(),
        Bucket(
            context.config,
            stop=context.stop,
            meter=context.meter,
            transport=transport,
            environ=environ,
            sleep=sleep,
        ) as bucket,
    ):
        sizes = sizes or Sizes()
        state = context.state(STATE)
        divided = {keys[source.name] for source in found if sizes.divides(source.size)}.union(begun_in_parts(state))
        write_in_parts(state, divided)
        _tidy(bucket, [prefix, *sorted(divided)], context.stop)
        uploader = Uploader(bucket, context.meter, sizes)

        def one(source: Source, stop: Stop) -> None:
            uploaded, new = uploader.upload(source, keys[source.name], stop)
            done.append(uploaded)
            if new:
                sent.append(source.name)

        for_each(found, one, threads=CONNECTIONS, stop=context.stop)
    for remark in bucket.remarks:
        context.meter.warn(f"send: {remark}")
    write_manifest(context.state(STATE), done)
    write_in_parts(context.state(STATE), ())
    return StepReport(
        files=len(found),
        bytes_in=total,
        bytes_out=sum(uploaded.size for uploaded in done),
        warnings=tuple(f"send: {remark}" for remark in bucket.remarks),
        details={
            "bucket": bucket.name,
            "prefix": prefix,
            "uploaded": len(sent),
            "already_there": len(found) - len(sent),
            "manifest": f"send/{MANIFEST}",
        },
    )


def _tidy(bucket: Bucket, prefixes: Iterable[str], stop: Stop) -> None:
    """Abort what a killed run of this job left: unfinished uploads cost their owner storage, and nobody sees them.

    Some stores (MinIO) list an upload only for its whole key, so ``prefixes`` holds those of the files that go in
    parts, too, and of those that an earlier run sent in parts, whatever became of the files.
    """
    for prefix in prefixes:
        try:
            for upload in list(bucket.unfinished(prefix, stop)):
                stop.check()
                log.info("send: removing an unfinished upload of an earlier run: %s", upload.key)
                abort(bucket, upload)
        except ServiceError as error:
            if error.reference not in _MAY_BE_FORBIDDEN:
                raise
            log.info("send: the store does not list unfinished uploads (%s)", error.reference)
            return
        except UploadGoneError:
            log.info("send: the store says that there are no unfinished uploads")  # as rclone's answers an empty list
