"""The one place that knows boto3: a bucket of an S3-compatible store, as the few calls that an upload makes.

* Credentials, region and endpoint come from the configuration and from nowhere else: no variable, no file in the home
  directory, no metadata service of a cloud machine is asked (document 3 §7).
* Every call is repeated by our retry block; botocore's own retries are off.
* With a custom endpoint no checksum of the newer kind is sent, which older stores refuse, but ``Content-MD5``. The
  public service gets CRC32.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

import boto3.session
import botocore.session
import httpx
import tenacity
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError

from config import PipelineConfig
from tasks.send.s3.exchange import Exchange
from tasks.send.s3.files import Section
from tasks.send.s3.refusal import UploadGoneError
from tasks.shared.errors import InputError, ServiceBusyError, ServiceError, TransientError
from tasks.shared.http.answer import RefusedError, place
from tasks.shared.http.retry import announce, retrying
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

# These log headers with signatures; that must not depend on the root logger's level.
for _name in ("boto3", "botocore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_NOT_FOUND: Final = 404
_UNKNOWN_TO_HEAD: Final = frozenset({400, 403, 404, 405, 501})
"""Answers to HEAD that do not say that the object is there. HEAD has no error document, and keys that may only write
get 403 for everything: the upload that follows gets the whole answer."""

_ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_SOON: Final = timedelta(days=30)
_EXPIRY: Final = re.compile('expiry-date="([^"]{1,64})"')


@dataclass(frozen=True)
class Stored:
    """An object that is in the bucket. ``size`` in bytes, ``etag`` without quotes; ``sha256`` from its metadata.

    ``plain`` is False when a key of a customer or of KMS encrypts it: then the ETag is not the MD5 of its content.
    """

    size: int
    sha256: str | None
    etag: str
    modified: datetime
    plain: bool


class Bucket:
    """The bucket that the configuration names; thread-safe. As a context manager it closes its connections.

    Raises ``InputError`` for a configuration that cannot be used. Every call raises ``NetworkError`` and
    ``ServiceBusyError`` after the last attempt, ``ServiceError``, ``Stopped``. ``timeout`` is in seconds for one
    request, ``within`` for all of them, waits included. ``transport``, ``environ`` and ``sleep`` (seconds) are seams
    for tests.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        stop: Stop,
        meter: Meter | None = None,
        timeout: float | None = None,
        within: float = math.inf,
        transport: httpx.BaseTransport | None = None,
        environ: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        s3 = config.services.send.s3
        self.name = s3.bucket or ""
        self._newer_checksums = s3.endpoint is None
        self._meter = meter or Meter()
        self._retry = config.retry
        self._sleep = sleep
        self.warnings: dict[str, None] = {}
        """What is doubtful about objects that are there, a sentence each."""
        self._exchange = Exchange(
            config,
            timeout=s3.timeout.total_seconds() if timeout is None else timeout,
            within=within,
            stop=stop,
            meter=self._meter,
            transport=transport,
            environ=environ,
        )
        self._client = _client(config)
        events = self._client.meta.events
        events.register("before-send.s3", self._exchange.send)
        events.register("response-received.s3", self._exchange.judge)

    def check(self, stop: Stop) -> bool:
        """Look whether the bucket is there and the credentials are known; whether it may be looked at. Keys that may
        only write pass.

        Raises the error that an upload would raise.
        """
        looked = True
        try:
            self._call("head_bucket", stop)
        except ServiceError as error:
            if error.reference not in ("s3-access-denied", "s3-refused"):
                raise
            looked = False
        # The answer to HEAD has no document: it names no reason, and any web server gives it.
        try:
            self._call("list_objects_v2", stop, MaxKeys=1)
        except ServiceError as error:
            if error.reference != "s3-access-denied":
                raise
            return looked
        except ServiceBusyError:
            if self._exchange.last.status >= 300:  # botocore calls a 200 that is no XML a 500
                raise
        if b"ListBucketResult" not in self._exchange.last.body:
            raise self._not_s3("")
        return True

    def head(self, key: str, stop: Stop, *, uploaded: bool = False) -> Stored | None:
        """Return the object ``key``; ``None`` when it is not there, or the store does not tell.

        Raises ``ServiceError`` ``s3-differs`` when it was ``uploaded`` and the store says that it is not there.
        """
        try:
            answer = self._call("head_object", stop, Key=key)
        except ServiceError as error:
            if uploaded and error.status == _NOT_FOUND:
                raise self.differs(key, "it is not there") from None
            if error.status in _UNKNOWN_TO_HEAD and error.reference != "s3-region":
                return None
            raise
        self.warnings |= dict.fromkeys(warnings_about(answer))
        kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
        return Stored(
            size=int(answer.get("ContentLength", -1)),
            sha256=answer.get("Metadata", {}).get("sha256"),
            etag=_bare(answer.get("ETag")),
            modified=answer.get("LastModified") or datetime.now(UTC),
            plain=not kms and "SSECustomerAlgorithm" not in answer,
        )

    def differs(self, key: str, how: str) -> ServiceError:
        """Return the error for an object that is not the one that was uploaded."""
        return ServiceError(
            "s3-differs",
            f"send: the store took an object, but asked for it, {how}",
            context=self._place(key),
            hint="does something else write to this key, or change what passes? continuing the job uploads it again",
        )

    def put(self, key: str, body: Section, *, content_type: str, sha256: str, stop: Stop) -> str:
        """Upload a whole file in one request; the ETag."""
        metadata = {"sha256": sha256}
        answer = self._call(
            "put_object", stop, body, Key=key, ContentType=content_type, Metadata=metadata, **self._checksum(body)
        )
        return self._required(answer, "ETag", key)

    def begin(self, key: str, *, content_type: str, sha256: str, stop: Stop) -> str:
        """Begin an upload in parts; its id."""
        checksum: dict[str, Any] = {"ChecksumAlgorithm": "CRC32"} if self._newer_checksums else {}
        metadata = {"sha256": sha256}
        answer = self._call(
            "create_multipart_upload", stop, Key=key, ContentType=content_type, Metadata=metadata, **checksum
        )
        return self._required(answer, "UploadId", key)

    def put_part(self, key: str, upload_id: str, number: int, body: Section, stop: Stop) -> dict[str, Any]:
        """Upload part ``number`` (from 1); what ``complete`` says about it to the store."""
        checksum = self._checksum(body)
        answer = self._call("upload_part", stop, body, Key=key, UploadId=upload_id, PartNumber=number, **checksum)
        checksum.pop("ContentMD5", None)
        return {"PartNumber": number, "ETag": self._required(answer, "ETag", key)} | checksum

    def complete(self, key: str, upload_id: str, parts: list[dict[str, Any]], stop: Stop) -> str:
        """Make the object out of its parts; the ETag. Raises ``UploadGoneError`` when the upload is not known."""
        whole = {"Parts": sorted(parts, key=lambda part: part["PartNumber"])}
        answer = self._call("complete_multipart_upload", stop, Key=key, UploadId=upload_id, MultipartUpload=whole)
        return self._required(answer, "ETag", key)

    def abort(self, key: str, upload_id: str) -> None:
        """Remove an upload that is not finished, also after a stop: one attempt of a few seconds."""
        self._once("abort_multipart_upload", {"Key": key, "UploadId": upload_id})

    def unfinished(self, prefix: str, stop: Stop) -> Iterator[tuple[str, str]]:
        """Yield key and id of the uploads in parts under ``prefix`` that are neither completed nor aborted."""
        marker: dict[str, Any] = {}
        while True:
            page = self._call("list_multipart_uploads", stop, Prefix=prefix, **marker)
            for upload in page.get("Uploads", ()):
                # Some stores take the prefix as a hint.
                if str(upload["Key"]).startswith(prefix):
                    yield upload["Key"], upload["UploadId"]
            following = {
                name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")
            }
            if not page.get("IsTruncated") or not following or following == marker:
                return
            marker = following

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._exchange.close()

    def __repr__(self) -> str:
        return f"Bucket({self.name!r})"

    def _checksum(self, body: Section) -> dict[str, Any]:
        name, digest = ("ChecksumCRC32", body.crc32) if self._newer_checksums else ("ContentMD5", body.md5)
        return {name: b64encode(digest).decode("ascii")}

    def _call(self, name: str, stop: Stop, body: Section | None = None, **arguments: Any) -> dict[str, Any]:
        """One call, repeated while that can help, with the same bytes for every attempt."""
        attempt = 0

        def once() -> dict[str, Any]:
            nonlocal attempt
            attempt += 1
            stop.check()
            if attempt > 1:
                self._meter.retried()
            if body is None:
                return self._once(name, arguments)
            body.seek(0)
            return self._once(name, arguments | {"Body": body})

        def tell(state: tenacity.RetryCallState, seconds: float) -> None:
            error = state.outcome.exception() if state.outcome else None
            operation = getattr(error, "operation", None) or name.replace("_", " ")
            attempts = self._retry.max_attempts
            announce(self._meter, "send", operation, error, attempt=attempt, attempts=attempts, seconds=seconds)

        def helps(error: TransientError) -> bool:
            return not isinstance(error, UploadGoneError)  # it stays gone; the file has to be begun anew

        again = retrying(
            self._retry,
            sleep=self._sleep or stop.sleep,
            retryable=helps,
            before_wait=tell,
            seconds_left=self._exchange.seconds_left,
        )
        return again(once)

    def _once(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(self._client, name)(Bucket=self.name, **arguments)
        except ResponseParserError:
            raise self._not_s3(str(arguments.get("Key", ""))) from None
        except (BotoCoreError, ValueError) as error:
            raise _unusable(error) from None
        return answer

    def _required(self, answer: Mapping[str, Any], name: str, key: str) -> str:
        value = _bare(answer.get(name))
        if not value:
            # Something else says 200 here, the log-in page of a network for example.
            raise self._not_s3(key)
        return value

    def _not_s3(self, key: str) -> ServiceError:
        return RefusedError(
            "s3-answer",
            "send: the answer is not that of an S3 store",
            context=self._place(key),
            hint="check services.send.s3.endpoint, and whether a proxy answers in place of the store",
        ).made_from(self._exchange.last)

    def _place(self, key: str) -> str:
        return f"{place(self._client.meta.endpoint_url)} {self.name}/{key}"


def warnings_about(head: Mapping[str, Any], now: datetime | None = None) -> Iterator[str]:
    """Yield a warning for each problem of an object; ``head`` is the answer to HEAD as boto3 reads it.

    No warning contains a value of the object, so the same problem of many objects gives one warning.
    """
    if head.get("DeleteMarker"):
        yield "the store reports uploaded objects as deleted: does another program delete them?"
    if head.get("ContentEncoding"):
        yield "the store reports a Content-Encoding that was not sent: readers may try to decompress the objects"
    if head.get("StorageClass") in _ARCHIVES:
        yield "the store puts objects into an archive storage class: they must be restored before they can be read"
    if _expires(str(head.get("Expiration") or ""), (now or datetime.now(UTC)) + _SOON):
        yield "the store deletes objects within 30 days: see the lifecycle rules of the bucket"


def _expires(expiration: str, before: datetime) -> bool:
    """Whether an ``x-amz-expiration`` names a moment that is not after ``before``."""
    found = _EXPIRY.search(expiration)
    try:
        moment = parsedate_to_datetime(found[1]) if found else None
    except ValueError:
        return False
    return moment is not None and (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) <= before


_loading = threading.Lock()


@functools.cache
def _descriptions() -> Loader:
    """botocore's own descriptions of services, none from a home directory. Reading them takes half a second, once."""
    return Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)


def _client(config: PipelineConfig) -> Any:
    """A boto3 client that knows the configuration and nothing else."""
    s3 = config.services.send.s3
    # Every setting that botocore would look for in variables or files, cut off from both.
    alone = {
        name: (in_file, None, default, convert)
        for name, (in_file, _, default, convert) in botocore.session.Session.SESSION_VARIABLES.items()
    }
    nothing = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None))
    settings: dict[str, Any] = {
        "signature_version": "s3v4",
        "s3": {"addressing_style": "path" if s3.use_path_style else "virtual"},
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "ignore_configured_endpoint_urls": True,
        # Bodies bring a checksum of ours along; older stores refuse those that botocore would add.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    try:
        with _loading:  # boto3: making sessions and clients is not thread-safe
            core = botocore.session.Session(session_vars=alone | nothing)
            core.register_component("data_loader", _descriptions())
            session = boto3.session.Session(
                botocore_session=core,
                aws_access_key_id=s3.access_key_id or "",
                aws_secret_access_key=s3.secret_access_key.get_secret_value() if s3.secret_access_key else "",
                region_name=s3.region,
            )
            return session.client(
                "s3", endpoint_url=str(s3.endpoint) if s3.endpoint else None, config=Config(**settings)
            )
    except (BotoCoreError, ValueError) as error:
        raise _unusable(error) from None


def _bare(text: Any) -> str:
    return str(text or "").removeprefix("W/").strip('"')


def _unusable(error: Exception) -> InputError:
    """botocore refuses a name before anything is sent. Its text is left out: it may quote what it was given."""
    return InputError(
        "s3-configuration",
        f"send: the settings of the store cannot be used ({type(error).__name__})",
        context="services.send.s3",
        hint="check bucket, region and endpoint: a bucket name has 3 to 63 small letters, digits, dots and hyphens",
    )
