"""The one place that knows boto3: a bucket of an S3-compatible store, as the few calls that an upload makes.

* Credentials, region and endpoint come from the configuration and from nowhere else: no variable, no file in the home
  directory, no metadata service of a cloud machine is asked (document 3 §7).
* Every call is repeated by our retry block; botocore's own retries are off.
* With a custom endpoint no checksum of the newer kind is sent, which older stores refuse, but ``Content-MD5``. The
  public service gets boto3's own checksums.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
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
from tasks.send.s3.refusal import UploadGoneError
from tasks.send.s3.remarks import remarks_on
from tasks.send.s3.source import Digests, OpenSource
from tasks.shared.errors import InputError, ServiceBusyError, ServiceError, TransientError
from tasks.shared.http.answer import RefusedError, place
from tasks.shared.http.retry import announce, retrying
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

log = logging.getLogger("sluice.send")
# These log headers with signatures; that must not depend on the root logger's level.
for _name in ("boto3", "botocore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

CONNECTIONS: Final = 4
"""Requests at once (document 3 §7: 4 files at once)."""

_NOT_FOUND: Final = 404
_MD5: Final = re.compile("[0-9A-Fa-f]{32}")
_UNKNOWN_TO_HEAD: Final = frozenset({400, 403, 404, 405, 501})
"""Answers to HEAD that do not say that the object is there. HEAD has no error document, and keys that may only write
get 403 for everything: the upload that follows gets the whole answer."""


@dataclass(frozen=True)
class Stored:
    """An object that is in the bucket. ``size`` in bytes, ``etag`` without quotes; ``sha256`` from its metadata."""

    size: int
    sha256: str | None
    etag: str
    modified: datetime


@dataclass(frozen=True)
class Unfinished:
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    upload_id: str


@dataclass(frozen=True)
class Part:
    """A part that is uploaded: what ``complete`` says about it to the store."""

    number: int
    etag: str
    crc32: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As boto3 wants it."""
        crc32 = {} if self.crc32 is None else {"ChecksumCRC32": self.crc32}
        return {"PartNumber": self.number, "ETag": self.etag} | crc32


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
        self.wants_md5 = s3.endpoint is not None
        self._meter = meter or Meter()
        self._retry = config.retry
        self._sleep = sleep
        self.remarks: dict[str, None] = {}
        """What is doubtful about objects that are there, a sentence each."""
        self._exchange = Exchange(
            tls=config.tls,
            auth=config.services.send.auth,
            timeout=s3.timeout.total_seconds() if timeout is None else timeout,
            within=within,
            stop=stop,
            max_connections=CONNECTIONS,
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
        except ServiceError as told:
            if told.reference != "s3-access-denied":
                raise
            return looked
        except ServiceBusyError:
            if self._exchange.last.status >= 300:  # botocore calls a 200 that is no XML a 500
                raise
        if b"ListBucketResult" not in self._exchange.last.body:
            raise self._not_s3("")
        return True

    def head(self, key: str, stop: Stop) -> Stored | None:
        """The object ``key``; ``None`` when it is not there, or the store does not tell."""
        try:
            answer = self._call("head_object", stop, Key=key)
        except ServiceError as error:
            if error.status in _UNKNOWN_TO_HEAD and error.reference != "s3-region":
                return None
            raise
        self.remarks |= dict.fromkeys(remarks_on(answer))
        sha256 = answer.get("Metadata", {}).get("sha256")
        modified = answer.get("LastModified") or datetime.now(UTC)
        return Stored(int(answer.get("ContentLength", -1)), sha256, _bare(answer.get("ETag")), modified)

    def compare(self, key: str, size: int, sha256: str, etag: str, stop: Stop, *, md5: str | None = None) -> None:
        """Look whether the object is what was uploaded: ``size``, ``sha256`` in its metadata, and the ``etag`` of the
        upload's answer. An ETag in the form of an MD5 must be ``md5`` (Base64) where that is known and no key of a
        customer or of KMS encrypts the object. Keys that may not look pass.

        Raises ``ServiceError`` ``s3-differs``.
        """
        try:
            answer = self._call("head_object", stop, Key=key)
        except ServiceError as error:
            if error.status == _NOT_FOUND:
                raise self._differs(key, "it is not there") from None
            if error.status in _UNKNOWN_TO_HEAD and error.reference != "s3-region":
                return
            raise
        found = _bare(answer.get("ETag"))
        kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
        plain = not kms and "SSECustomerAlgorithm" not in answer
        if answer.get("ContentLength") != size:
            raise self._differs(key, "it has another size")
        if answer.get("Metadata", {}).get("sha256") != sha256:
            raise self._differs(key, "its metadata names another SHA-256, or none")
        if found != etag:
            raise self._differs(key, "it has another ETag than the upload was answered with")
        if md5 is not None and plain and _MD5.fullmatch(found) and b64decode(md5).hex() != found.lower():
            raise self._differs(key, "its ETag is the MD5 of something else")
        self.remarks |= dict.fromkeys(remarks_on(answer))

    def _differs(self, key: str, how: str) -> ServiceError:
        return ServiceError(
            "s3-differs",
            f"send: the store took an object, but asked for it, {how}",
            context=f"{place(self._client.meta.endpoint_url)} {self.name}/{key}",
            hint="does something else write to this key, or change what passes? continuing the job uploads it again",
        )

    def put(self, key: str, file: OpenSource, *, content_type: str, digests: Digests, stop: Stop) -> str:
        """Upload a whole file in one request; the ETag. With ``wants_md5`` the digests have to hold it."""
        answer = self._call(
            "put_object",
            stop,
            Key=key,
            ContentType=content_type,
            Metadata={"sha256": digests.sha256},
            body=lambda: file.section(0, file.source.size, self._on_its_way(stop)),
            **_content_md5(digests.md5),
        )
        return self._etag(answer, key)

    def begin(self, key: str, *, content_type: str, sha256: str, stop: Stop) -> str:
        """Begin an upload in parts; its id."""
        checksum: dict[str, Any] = {} if self.wants_md5 else {"ChecksumAlgorithm": "CRC32"}
        answer = self._call(
            "create_multipart_upload",
            stop,
            Key=key,
            ContentType=content_type,
            Metadata={"sha256": sha256},
            **checksum,
        )
        upload_id = answer.get("UploadId")
        if not upload_id:
            raise self._not_s3(key)
        return str(upload_id)

    def put_part(
        self, key: str, upload_id: str, number: int, file: OpenSource, start: int, size: int, stop: Stop
    ) -> Part:
        """Upload ``size`` bytes from ``start`` as part ``number`` (from 1)."""
        md5 = file.md5(start, size, stop.check) if self.wants_md5 else None
        answer = self._call(
            "upload_part",
            stop,
            Key=key,
            UploadId=upload_id,
            PartNumber=number,
            body=lambda: file.section(start, size, self._on_its_way(stop)),
            **_content_md5(md5),
        )
        return Part(number, self._etag(answer, key), answer.get("ChecksumCRC32"))

    def complete(self, key: str, upload_id: str, parts: list[Part], stop: Stop) -> str:
        """Make the object out of its parts; the ETag. Raises ``UploadGoneError`` when the upload is not known."""
        numbered = [part.as_dict() for part in sorted(parts, key=lambda part: part.number)]
        answer = self._call(
            "complete_multipart_upload", stop, Key=key, UploadId=upload_id, MultipartUpload={"Parts": numbered}
        )
        return self._etag(answer, key)

    def abort(self, upload: Unfinished) -> None:
        """Remove an upload that is not finished, also after a stop: one attempt of a few seconds."""
        self._once("abort_multipart_upload", {"Key": upload.key, "UploadId": upload.upload_id}, retry=False)

    def unfinished(self, prefix: str, stop: Stop) -> Iterator[Unfinished]:
        """The multipart uploads under ``prefix`` that are neither completed nor aborted."""
        marker: dict[str, Any] = {}
        while True:
            page = self._call("list_multipart_uploads", stop, Prefix=prefix, **marker)
            for upload in page.get("Uploads", ()):
                # Some stores take the prefix as a hint.
                if str(upload["Key"]).startswith(prefix):
                    yield Unfinished(upload["Key"], upload["UploadId"])
            following = {
                name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")
            }
            if not page.get("IsTruncated") or not following or following == marker:
                return
            marker = following

    def close(self) -> None:
        """Close every connection."""
        self._client.close()
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Bucket({self.name!r})"

    def _on_its_way(self, stop: Stop) -> Callable[[], None]:
        """What happens at each piece of a body that is sent."""

        def check() -> None:
            stop.check()
            self._meter.moves()

        return check

    def _call(
        self, name: str, stop: Stop, *, body: Callable[[], Any] | None = None, **arguments: Any
    ) -> dict[str, Any]:
        """One call, repeated while that can help; ``body`` gives the same bytes for every attempt."""
        attempt = 0

        def once() -> dict[str, Any]:
            nonlocal attempt
            attempt += 1
            stop.check()
            given = arguments if body is None else arguments | {"Body": body()}
            return self._once(name, given, retry=attempt > 1)

        def tell(state: tenacity.RetryCallState, seconds: float) -> None:
            error = state.outcome.exception() if state.outcome else None
            announce(
                self._meter,
                "send",
                getattr(error, "operation", None) or name.replace("_", " "),
                error,
                attempt=attempt,
                attempts=self._retry.max_attempts,
                seconds=seconds,
            )

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

    def _once(self, name: str, arguments: Mapping[str, Any], *, retry: bool) -> dict[str, Any]:
        started = time.monotonic()
        try:
            answer: dict[str, Any] = getattr(self._client, name)(Bucket=self.name, **arguments)
        except ResponseParserError:
            raise self._not_s3(str(arguments.get("Key", ""))) from None
        except (BotoCoreError, ValueError) as error:
            raise _unusable(error) from None
        finally:
            self._meter.request(time.monotonic() - started, repeated=retry)
        return answer

    def _etag(self, answer: Mapping[str, Any], key: str) -> str:
        etag = _bare(answer.get("ETag"))
        if not etag:
            # Something else says 200 here, the log-in page of a network for example.
            raise self._not_s3(key)
        return etag

    def _not_s3(self, key: str) -> ServiceError:
        return RefusedError(
            "s3-answer",
            "send: the answer is not that of an S3 store",
            context=f"{place(self._client.meta.endpoint_url)} {self.name}/{key}",
            hint="check services.send.s3.endpoint, and whether a proxy answers in place of the store",
        ).made_from(self._exchange.last)


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
        "request_checksum_calculation": "when_required" if s3.endpoint else "when_supported",
        "response_checksum_validation": "when_required" if s3.endpoint else "when_supported",
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


def _content_md5(md5: str | None) -> dict[str, Any]:
    return {} if md5 is None else {"ContentMD5": md5}


def _bare(etag: Any) -> str:
    return str(etag or "").removeprefix("W/").strip('"')


def _unusable(error: Exception) -> InputError:
    """botocore refuses a name before anything is sent. Its text is left out: it may quote what it was given."""
    return InputError(
        "s3-configuration",
        f"send: the settings of the store cannot be used ({type(error).__name__})",
        context="services.send.s3",
        hint="check bucket, region and endpoint: a bucket name has 3 to 63 small letters, digits, dots and hyphens",
    )
