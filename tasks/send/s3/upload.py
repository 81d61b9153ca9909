"""``s3_upload`` (document 3 §7): tidy up, make one object of each file, write the manifest.

A file goes in one request up to 64 MiB, in parts above, and not at all when the object is there: HEAD names the same
size and the same ``sha256`` in the metadata. After an upload HEAD is asked too, and its ETag must be the one that the
upload was answered with. An upload in parts that fails or is stopped is aborted; what a killed process left is aborted
by the next run, and the file is begun anew. Parts are small, so that a repeat loses little and one large file uses all
connections.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from config import PipelineConfig
from tasks.send import STATE
from tasks.send.comparison import InputComparison
from tasks.send.s3.bucket import Bucket, ComparedObject
from tasks.send.s3.client import CONNECTIONS
from tasks.send.s3.files import (
    MANIFEST,
    FileSection,
    OpenFile,
    Uploaded,
    content_type,
    job_prefix,
    object_key,
    timestamp,
    write_manifest,
)
from tasks.send.s3.refusal import UploadGoneError
from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError, storage_errors
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import read_state
from tasks.shared.http.answer import RefusedError
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.service import PATIENCE, Found, ProbeWarning, WrongServiceError
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

log = logging.getLogger("sluice.send")

MIB: Final = 1024 * 1024
IN_PARTS: Final = "in_parts.json"
"""Keys of the files that a run sends in parts, written before it begins with the first: a killed one leaves it."""

_MOST_PARTS: Final = 10_000  # S3
_WAIT: Final = 0.25  # seconds between two looks at the stop
_MD5: Final = re.compile("[0-9A-Fa-f]{32}")
_NO_STORE: Final = frozenset({"s3-answer", "s3-not-supported", "s3-refused"})
_MAY_BE_FORBIDDEN: Final = frozenset({"s3-access-denied", "s3-not-supported", "s3-refused"})


@dataclass(frozen=True)
class Sizes:
    """Bytes. Files above ``threshold`` go in parts of ``part`` or, when there would be too many, larger ones."""

    threshold: int = 64 * MIB
    part: int = 32 * MIB

    def part_size(self, size: int) -> int:
        """Return the size of the parts of a file of ``size`` bytes."""
        least = -(-size // _MOST_PARTS)
        return max(self.part, -(-least // MIB) * MIB)


def findings(
    config: PipelineConfig,
    *,
    stop: Stop | None = None,
    meter: Meter | None = None,
    environ: Mapping[str, str] | None = None,
) -> list[Found]:
    """Check the bucket before an upload, with retries for at most two minutes, and return the findings.

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
    return [ProbeWarning("send: the keys may not look into the bucket; whether they may write, the upload will show")]


def _no_store(error: RefusedError) -> WrongServiceError:
    return WrongServiceError(
        "wrong-service",
        f"send: this is not an S3 store: it answered {error.answer.status} to a request for the bucket",
        context=error.context,
        hint="check services.send.s3.endpoint, and whether a proxy answered instead of the store; no data was sent",
        operation="probe",
        status=error.answer.status,
    ).made_from(error.answer)


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

    Keys are ``[prefix/]<job id>/<path below the input directory>``. At the end ``send/upload_manifest.json`` says what
    is in the bucket; it is not uploaded. ``bytes_out`` is the size of the objects of the job, sent now or before.
    ``compared`` is the input as it must still be; ``sizes``, ``transport``, ``environ`` and ``sleep`` are seams for
    tests.

    Raises ``DataError`` (``send-no-input``, ``send-input-changed``), ``InputError``, ``StorageError``,
    ``TransientError`` and ``ServiceError`` as ``Bucket`` does, and ``Stopped``. Unfinished uploads are aborted then.
    """
    sizes = sizes or Sizes()
    files = compared.files()
    prefix = job_prefix(context.config.services.send.s3.prefix, context.job_id)
    keys = {path: object_key(prefix, compared.name(path)) for path in files}
    total = sum(compared.entry(path).size for path in files)
    context.meter.expect(files=len(files), bytes=total)
    state = context.state(STATE)
    bucket = Bucket(
        context.config, stop=context.stop, meter=context.meter, transport=transport, environ=environ, sleep=sleep
    )
    with FailedAnswers(state).begin().saving_answers(), bucket:
        divided = {keys[path] for path in files if compared.entry(path).size > sizes.threshold}
        divided.update(read_state(state / IN_PARTS, tuple[str, ...]) or ())  # left by a run that did not end
        _write_in_parts(state, divided)
        _tidy(bucket, [prefix, *sorted(divided)], context.stop)
        uploader = Uploader(bucket, context.meter, sizes)

        def one(path: Path, stop: Stop) -> None:
            with OpenFile(compared, path) as file:
                uploader.upload(file, keys[path], stop)

        for_each(files, one, threads=CONNECTIONS, stop=context.stop)
    warnings = tuple(f"send: {text}" for text in bucket.warnings)
    for text in warnings:
        context.meter.warn(text)
    write_manifest(state, uploader.done)
    _write_in_parts(state, ())
    return StepReport(
        files=len(files),
        bytes_in=total,
        bytes_out=sum(uploaded.size for uploaded in uploader.done),
        warnings=warnings,
        details={
            "bucket": bucket.name,
            "prefix": prefix,
            "uploaded": len(files) - uploader.already_there,
            "already_there": uploader.already_there,
            "manifest": f"send/{MANIFEST}",
        },
    )


class Uploader:
    """Uploads files into one bucket; thread-safe. At most ``CONNECTIONS`` files or parts are under way at once."""

    def __init__(self, bucket: Bucket, progress: Meter, sizes: Sizes) -> None:
        self.done: list[Uploaded] = []
        self._there: list[str] = []
        self._bucket = bucket
        self._progress = progress
        self._sizes = sizes
        self._slots = threading.Semaphore(CONNECTIONS)

    @property
    def already_there(self) -> int:
        """The number of files that did not have to be sent."""
        return len(self._there)

    def upload(self, file: OpenFile, key: str, stop: Stop) -> None:
        """Bring a file into the bucket as ``key``, unless it is there.

        Raises what ``Bucket`` raises, ``StorageError``, and ``DataError`` when the file changes meanwhile.
        """
        large = file.size > self._sizes.threshold
        try:
            with self._slot(stop):
                stored = self._find(file, key, stop)
            if stored is not None:
                self._there.append(key)
                etag, moment = stored.etag, stored.modified
            else:
                etag, moment = (self._in_parts if large else self._whole)(file, key, stop), datetime.now(UTC)
        except ServiceBusyError:
            file.verify()  # a digest that does not agree, because somebody writes to the file
            raise
        file.verify()
        self.done.append(Uploaded(key, file.size, file.sha256, etag, timestamp(moment)))
        # Parts were counted one by one.
        there = stored is not None
        self._progress.add(files=1, bytes=0 if large and not there else file.size, earlier=there)

    def _find(self, file: OpenFile, key: str, stop: Stop) -> ComparedObject | None:
        """Return the object if it equals the one that an upload would create."""
        stored = self._bucket.head(key, stop)
        return stored if stored is not None and stored.etag and _difference(stored, file) is None else None

    def _whole(self, file: OpenFile, key: str, stop: Stop) -> str:
        with self._slot(stop):
            body = FileSection(file, 0, file.size, stop.check)
            kind = content_type(file.name)
            etag = self._bucket.put(key, body, content_type=kind, sha256=file.sha256, stop=stop)
            self._compare(file, key, etag, stop, body)
        return etag

    def _in_parts(self, file: OpenFile, key: str, stop: Stop) -> str:
        kind = content_type(file.name)
        upload_id = self._bucket.begin(key, content_type=kind, sha256=file.sha256, stop=stop)
        try:
            parts = self._parts(file, key, upload_id, stop)
            file.verify()  # before the object appears
            try:
                etag = self._bucket.complete(key, upload_id, parts, stop)
            except UploadGoneError:
                # A repeated request whose first answer was lost: then the object is there.
                stored = self._find(file, key, stop)
                if stored is None:
                    raise
                etag = stored.etag
        except BaseException:
            _abort(self._bucket, key, upload_id)
            raise
        with self._slot(stop):
            self._compare(file, key, etag, stop)
        return etag

    def _parts(self, file: OpenFile, key: str, upload_id: str, stop: Stop) -> list[dict[str, Any]]:
        size = self._sizes.part_size(file.size)
        done: list[dict[str, Any]] = []

        def one(start: int, stop: Stop) -> None:
            length = min(size, file.size - start)
            with self._slot(stop):
                body = FileSection(file, start, length, stop.check)
                done.append(self._bucket.put_part(key, upload_id, start // size + 1, body, stop))
            self._progress.add(bytes=length)

        for_each(range(0, file.size, size), one, threads=CONNECTIONS, stop=stop)
        return done

    def _compare(self, file: OpenFile, key: str, etag: str, stop: Stop, body: FileSection | None = None) -> None:
        """Look whether the object is what was uploaded, ``body`` in one request. Keys that may not look pass."""
        stored = self._bucket.head(key, stop, uploaded=True)
        if stored is not None and (how := _difference(stored, file, etag, body)) is not None:
            raise self._bucket.differs(key, how)

    @contextmanager
    def _slot(self, stop: Stop) -> Iterator[None]:
        while not self._slots.acquire(timeout=_WAIT):
            stop.check()
        try:
            yield
        finally:
            self._slots.release()


def _difference(
    stored: ComparedObject, file: OpenFile, etag: str | None = None, body: FileSection | None = None
) -> str | None:
    """Return the difference between an object and its upload: size, ``sha256`` in its metadata, and if known the
    ``etag`` of the upload and the MD5 of the ``body``, which an ETag in the form of an MD5 must equal."""
    if stored.size != file.size:
        return "it has another size"
    if stored.sha256 != file.sha256:
        return "its metadata names another SHA-256, or none"
    if etag is not None and stored.etag != etag:
        return "it has another ETag than the upload was answered with"
    if body is not None and stored.plain and _MD5.fullmatch(stored.etag) and body.md5.hex() != stored.etag.lower():
        return "its ETag is the MD5 of something else"
    return None


def _tidy(bucket: Bucket, prefixes: Iterable[str], stop: Stop) -> None:
    """Abort what a killed run of this job left: unfinished uploads cost their owner storage, and nobody sees them.

    Some stores (MinIO) list an upload only for its whole key, so ``prefixes`` holds those of the files that go in
    parts, too, and of those that an earlier run sent in parts, whatever became of the files.
    """
    for prefix in prefixes:
        try:
            for key, upload_id in list(bucket.unfinished(prefix, stop)):
                stop.check()
                log.info("send: removing an unfinished upload of an earlier run: %s", key)
                _abort(bucket, key, upload_id)
        except ServiceError as error:
            if error.reference not in _MAY_BE_FORBIDDEN:
                raise
            log.info("send: the store does not list unfinished uploads (%s)", error.reference)
            return
        except UploadGoneError:
            log.info("send: the store says that there are no unfinished uploads")  # as rclone's answers an empty list


def _abort(bucket: Bucket, key: str, upload_id: str) -> None:
    """Remove an unfinished upload, best effort: the next run of the job tries again."""
    try:
        bucket.abort(key, upload_id)
    except UploadGoneError:
        pass
    except SluiceError as error:
        log.warning("send: the unfinished upload of %s was not removed (%s)", key, error.reference)


def _write_in_parts(directory: Path, keys: Collection[str]) -> None:
    """Note the keys that are about to be sent in parts; without any, forget the note. Raises ``StorageError``."""
    if keys:
        write_file(directory / IN_PARTS, msgspec.json.encode(sorted(keys)) + b"\n")
    else:
        with storage_errors(directory / IN_PARTS):
            (directory / IN_PARTS).unlink(missing_ok=True)
