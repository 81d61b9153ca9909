"""Map the refusals of an S3 store to errors (document 3 §7), by status and code, never by the message.

Transient: the store is busy, or what arrived was damaged. Terminal: everything that a person has to change, each with
what to change. The message of the store is not quoted; its code is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from tasks.shared.blanked import blanked
from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError, TransientError
from tasks.shared.http.answer import BusyError, RefusedError, RequestContext
from tasks.shared.http.retry import parse_retry_after

BUSY_CODES: Final = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
DAMAGED_CODES: Final = frozenset(
    {"BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
)
FULL_CODES: Final = frozenset(
    {
        "EntityTooLargeForQuota",
        "InsufficientStorage",
        "QuotaExceeded",
        "QuotaExceededException",
        "ServiceQuotaExceededException",
        "XMinioAdminBucketQuotaExceeded",
        "XMinioStorageFull",
    }
)
REGION_CODES: Final = frozenset(
    {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "InvalidRegion", "PermanentRedirect"}
)

_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}\Z")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")

_ENDPOINT_HINT: Final = "check services.send.s3.endpoint"
_KEYS_HINT: Final = "check services.send.s3.access_key_id and secret_access_key, and that both are of the same key"

_TERMINAL: Final[dict[str, tuple[str, str, str]]] = {
    "InvalidAccessKeyId": ("s3-access-key", "the store rejects the access key as unknown", _KEYS_HINT),
    "InvalidSecurity": ("s3-access-key", "the store rejects the access key as unknown", _KEYS_HINT),
    "SignatureDoesNotMatch": (
        "s3-signature",
        "the store does not accept the signature",
        f"{_KEYS_HINT}; a proxy that changes requests breaks signatures too",
    ),
    "NoSuchBucket": ("s3-bucket", "there is no such bucket", "check services.send.s3.bucket and endpoint"),
    "InvalidBucketName": ("s3-bucket", "there is no such bucket", "check services.send.s3.bucket and endpoint"),
    "EntityTooLarge": ("s3-too-large", "the store does not take an object of this size", "see the limits of the store"),
    "MethodNotAllowed": ("s3-not-supported", "the store does not support this request", _ENDPOINT_HINT),
    "NotImplemented": ("s3-not-supported", "the store does not support this request", _ENDPOINT_HINT),
} | dict.fromkeys(
    ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
    (
        "s3-token-expired",
        "the credentials have expired",
        "put valid keys into services.send.s3, then continue the job: what is uploaded is not uploaded again",
    ),
)  # fmt: skip

_BY_STATUS: Final = {405: "MethodNotAllowed", 413: "EntityTooLarge", 501: "NotImplemented"}


class UploadGoneError(TransientError):
    """The store does not know the multipart upload any more: it was completed, or somebody aborted it."""


@dataclass(frozen=True)
class Refusal:
    """A refusal of the store. ``code`` and ``region`` are from the error document."""

    where: RequestContext
    status: int
    code: str
    region: str | None
    headers: Mapping[str, str]

    def error(self, now: datetime | None = None) -> SluiceError:
        """Return the error for the refusal; ``now`` is the time of this machine."""
        code, status = self.code, self.status
        if status == 407:
            return proxy_authentication(self.where)
        if code in FULL_CODES or status == 507:
            return self._terminal(
                "s3-store-full",
                "the store is full, or the quota of the bucket is used up",
                "make room or ask for more, then continue the job",
            )
        if code in DAMAGED_CODES:
            return self._busy(
                "s3-damaged", "what arrived was not what was sent", "something between here and the store changes data"
            )
        if code in BUSY_CODES or status in (408, 429) or (status >= 500 and status != 501):
            return self._busy("s3-busy", "the store is busy", "the same command may succeed later")
        if code == "RequestTimeTooSkewed":
            return self._clock(now or datetime.now(UTC))
        if code == "NoSuchUpload":
            return self.where.error(
                UploadGoneError,
                "s3-upload-gone",
                f"{self._answered()}: the store has dropped the unfinished upload",
                hint="does a rule of the bucket remove unfinished uploads, or another program? continue the job",
                status=status,
            )
        if code in REGION_CODES or 300 <= status < 400 or (status == 400 and self._expected_region()):
            return self._wrong_region()
        found = _TERMINAL.get(code) or _TERMINAL.get(_BY_STATUS.get(status, ""))
        if found:
            return self._terminal(*found)
        if status in (401, 403):
            return self._terminal(
                "s3-access-denied",
                "the store does not allow this with these keys",
                "the access key needs the right to put objects into services.send.s3.bucket",
            )
        return self._terminal("s3-refused", "the store refuses", "see the log of the store")

    def _answered(self) -> str:
        code = blanked(self.code.encode()).decode()
        said = f" {code}" if _CODE.match(code) and not code.isdigit() else ""
        return f"was answered {self.status}{said} by {self.where.host}"

    def _terminal(self, reference: str, what: str, hint: str) -> ServiceError:
        return self.where.error(RefusedError, reference, f"{self._answered()}: {what}", hint=hint, status=self.status)

    def _busy(self, reference: str, what: str, hint: str) -> ServiceBusyError:
        busy = self.where.error(BusyError, reference, f"{self._answered()}: {what}", hint=hint, status=self.status)
        busy.retry_after = parse_retry_after(self.headers.get("retry-after"))
        return busy

    def _clock(self, now: datetime) -> ServiceError:
        by = ""
        try:
            seconds = (now - parsedate_to_datetime(self.headers.get("date", ""))).total_seconds()
            by = f" by {abs(seconds):,.0f} s, this one is {'ahead' if seconds > 0 else 'behind'}"
        except (ValueError, TypeError):
            pass
        what = f"the clocks of this machine and of the store differ{by}"
        return self._terminal("s3-clock", what, "set the clock of this machine (NTP)")

    def _expected_region(self) -> str | None:
        for region in (self.region, self.headers.get("x-amz-bucket-region")):
            if region and _REGION.match(region):
                return region
        return None

    def _wrong_region(self) -> ServiceError:
        region = self._expected_region()
        if region is None:
            what = "the bucket is not in this region, or not at this endpoint"
            return self._terminal("s3-region", what, "check services.send.s3.region and endpoint")
        hint = f"set services.send.s3.region to {region}, and endpoint, where there is one, to that region's"
        return self._terminal("s3-region", f"the bucket is in the region {region}", hint)


def proxy_authentication(where: RequestContext) -> ServiceError:
    """Return the error for wrong credentials of a proxy (document 1, "Authentication" rule 7)."""
    return where.error(
        ServiceError,
        "proxy-authentication",
        "was answered 407: a proxy asks for other credentials",
        hint="give the proxy's user and password in services.send.auth",
        status=407,
    )
