"""A bucket of an S3-compatible store, as the few calls that an upload makes.

With a custom endpoint no checksum of the newer kind is sent, which older stores refuse, but ``Content-MD5``. The public
service gets CRC32.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

from config import PipelineConfig
from tasks.send.s3.client import StoreClient
from tasks.send.s3.files import FileSection
from tasks.shared.errors import ServiceBusyError, ServiceError
from tasks.shared.stop import Stop

_NOT_FOUND: Final = 404
_UNKNOWN_TO_HEAD: Final = frozenset({400, 403, 404, 405, 501})
"""Answers to HEAD that do not say that the object is there. HEAD has no error document, and keys that may only write
get 403 for everything: the upload that follows gets the whole answer."""

_ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_SOON: Final = timedelta(days=30)
_EXPIRY: Final = re.compile('expiry-date="([^"]{1,64})"')


@dataclass(frozen=True)
class ComparedObject:
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

    ``more`` is what ``StoreClient`` takes. Every call raises what ``StoreClient.call`` raises.
    """

    def __init__(self, config: PipelineConfig, **more: Any) -> None:
        s3 = config.services.send.s3
        self.name = s3.bucket or ""
        self._newer_checksums = s3.endpoint is None
        self.warnings: dict[str, None] = {}
        """What is doubtful about objects that are there, a sentence each."""
        self._client = StoreClient(config, **more)

    def check(self, stop: Stop) -> bool:
        """Look whether the bucket is there and the credentials are known; whether it may be looked at. Keys that may
        only write pass.

        Raises the error that an upload would raise.
        """
        looked = True
        try:
            self._client.call("head_bucket", stop)
        except ServiceError as error:
            if error.reference not in ("s3-access-denied", "s3-refused"):
                raise
            looked = False
        # The answer to HEAD has no document: it names no reason, and any web server gives it.
        try:
            self._client.call("list_objects_v2", stop, MaxKeys=1)
        except ServiceError as error:
            if error.reference != "s3-access-denied" or self._client.last.status == 401:
                raise
            return looked
        except ServiceBusyError:
            if self._client.last.status >= 300:  # botocore calls a 200 that is no XML a 500
                raise
        if b"ListBucketResult" not in self._client.last.body:
            raise self._client.not_s3("")
        return True

    def head(self, key: str, stop: Stop, *, uploaded: bool = False) -> ComparedObject | None:
        """Return the object ``key``; ``None`` when it is not there, or the store does not tell.

        Raises ``ServiceError`` ``s3-differs`` when it was ``uploaded`` and the store says that it is not there.
        """
        try:
            answer = self._client.call("head_object", stop, Key=key)
        except ServiceError as error:
            if uploaded and error.status == _NOT_FOUND:
                raise self.differs(key, "it is not there") from None
            if error.status in _UNKNOWN_TO_HEAD and error.reference != "s3-region":
                return None
            raise
        self.warnings |= dict.fromkeys(warnings_about(answer))
        kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
        return ComparedObject(
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
            f"send: the store accepted an object, but afterwards {how}",
            context=self._client.place(key),
            hint="check whether something else writes to this key; continuing the job uploads the object again",
        )

    def put(self, key: str, body: FileSection, *, content_type: str, sha256: str, stop: Stop) -> str:
        """Upload a whole file in one request; the ETag."""
        metadata = {"sha256": sha256}
        answer = self._client.call(
            "put_object", stop, body, Key=key, ContentType=content_type, Metadata=metadata, **self._checksum(body)
        )
        return _bare(self._required(answer, "ETag", key))

    def begin(self, key: str, *, content_type: str, sha256: str, stop: Stop) -> str:
        """Begin an upload in parts; its id."""
        checksum: dict[str, Any] = {"ChecksumAlgorithm": "CRC32"} if self._newer_checksums else {}
        metadata = {"sha256": sha256}
        answer = self._client.call(
            "create_multipart_upload", stop, Key=key, ContentType=content_type, Metadata=metadata, **checksum
        )
        return self._required(answer, "UploadId", key)

    def put_part(self, key: str, upload_id: str, number: int, body: FileSection, stop: Stop) -> dict[str, Any]:
        """Upload part ``number`` (from 1); what ``complete`` says about it to the store."""
        checksum = self._checksum(body)
        answer = self._client.call(
            "upload_part", stop, body, Key=key, UploadId=upload_id, PartNumber=number, **checksum
        )
        checksum.pop("ContentMD5", None)
        return {"PartNumber": number, "ETag": _bare(self._required(answer, "ETag", key))} | checksum

    def complete(self, key: str, upload_id: str, parts: list[dict[str, Any]], stop: Stop) -> str:
        """Make the object out of its parts; the ETag. Raises ``UploadGoneError`` when the upload is not known."""
        whole = {"Parts": sorted(parts, key=lambda part: part["PartNumber"])}
        answer = self._client.call(
            "complete_multipart_upload", stop, Key=key, UploadId=upload_id, MultipartUpload=whole
        )
        return _bare(self._required(answer, "ETag", key))

    def abort(self, key: str, upload_id: str) -> None:
        """Remove an upload that is not finished, also after a stop: one attempt of a few seconds."""
        self._client.call_once("abort_multipart_upload", Key=key, UploadId=upload_id)

    def unfinished(self, prefix: str, stop: Stop) -> Iterator[tuple[str, str]]:
        """Yield key and id of the uploads in parts under ``prefix`` that are neither completed nor aborted."""
        marker: dict[str, Any] = {}
        while True:
            page = self._client.call("list_multipart_uploads", stop, Prefix=prefix, **marker)
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

    def __repr__(self) -> str:
        return f"Bucket({self.name!r})"

    def _checksum(self, body: FileSection) -> dict[str, Any]:
        name, digest = ("ChecksumCRC32", body.crc32) if self._newer_checksums else ("ContentMD5", body.md5)
        return {name: b64encode(digest).decode("ascii")}

    def _required(self, answer: Mapping[str, Any], name: str, key: str) -> str:
        value = str(answer.get(name) or "")
        if not _bare(value):
            raise self._client.not_s3(key)
        return value


def warnings_about(head: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each problem of an object; ``head`` is the answer to HEAD as boto3 reads it.

    No warning contains a value of the object, so the same problem of many objects gives one warning.
    """
    if head.get("DeleteMarker"):
        yield "the store reports uploaded objects as deleted: does another program delete them?"
    if head.get("ContentEncoding"):
        yield "the store reports a Content-Encoding that was not sent: readers may try to decompress the objects"
    if head.get("StorageClass") in _ARCHIVES:
        yield "the store puts objects into an archive storage class: they must be restored before they can be read"
    if _expires(str(head.get("Expiration") or ""), datetime.now(UTC) + _SOON):
        yield "the store deletes objects within 30 days: see the lifecycle rules of the bucket"


def _expires(expiration: str, before: datetime) -> bool:
    """Return whether the moment in an ``x-amz-expiration`` is not after ``before``."""
    found = _EXPIRY.search(expiration)
    try:
        moment = parsedate_to_datetime(found[1]) if found else None
    except ValueError:
        return False
    return moment is not None and (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) <= before


def _bare(text: Any) -> str:
    return str(text or "").removeprefix("W/").strip('"')
