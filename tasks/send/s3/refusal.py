"""Map the refusals of an S3 store to errors (document 3 §7), by status and code, never by the message.

Transient: the store is busy. Terminal: everything that a person has to change, each with what to change. The message of
the store is not quoted; its code is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tasks.shared.blanked import blanked
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.http_old.answer import BusyError, RefusedError, RequestContext
from tasks.shared.http_old.retry import parse_retry_after

BUSY_CODES: Final = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
REGION_CODES: Final = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect"})

_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}\Z")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")

_KEYS_HINT: Final = "check services.send.s3.access_key_id and secret_access_key, and that both are of the same key"

_TERMINAL: Final[dict[str, tuple[str, str, str]]] = {
    "InvalidAccessKeyId": ("s3-access-key", "the store rejects the access key as unknown", _KEYS_HINT),
    "SignatureDoesNotMatch": (
        "s3-signature",
        "the store does not accept the signature",
        f"{_KEYS_HINT}; a proxy that changes requests breaks signatures too",
    ),
    "NoSuchBucket": ("s3-bucket", "there is no such bucket", "check services.send.s3.bucket and endpoint"),
    "RequestTimeTooSkewed": (
        "s3-clock",
        "the clocks of this machine and of the store differ",
        "set the clock of this machine (NTP)",
    ),
    "EntityTooLarge": ("s3-too-large", "the store does not take an object of this size", "see the limits of the store"),
    "QuotaExceeded": (
        "s3-store-full",
        "the store is full, or the quota of the bucket is used up",
        "make room or ask for more, then continue the job",
    ),
    "AccessDenied": (
        "s3-access-denied",
        "the store does not allow this with these keys",
        "the access key needs the right to put objects into services.send.s3.bucket",
    ),
}

_TERMINAL["404"] = _TERMINAL["NoSuchBucket"]  # botocore's code for an answer to HEAD, which has no document
_BY_STATUS: Final = {401: "AccessDenied", 403: "AccessDenied", 413: "EntityTooLarge", 507: "QuotaExceeded"}


@dataclass(frozen=True)
class Refusal:
    """A refusal of the store. ``code`` and ``region`` are from the error document."""

    where: RequestContext
    status: int
    code: str
    region: str | None
    headers: Mapping[str, str]

    def error(self) -> SluiceError:
        """Return the error for the refusal."""
        code, status = self.code, self.status
        if status == 407:
            return proxy_authentication(self.where)
        if code in BUSY_CODES or status in (408, 429) or (status >= 500 and status not in (501, 507)):
            busy = self.where.error(
                BusyError,
                "s3-busy",
                f"{self._answered()}: the store is busy",
                hint="the same command may succeed later",
                status=status,
            )
            busy.retry_after = parse_retry_after(self.headers.get("retry-after"))
            return busy
        region = self._expected_region()
        if code in REGION_CODES or 300 <= status < 400 or (status == 400 and region):
            what = f"the bucket is in the region {region}" if region else "the bucket is not in this region"
            return self._terminal("s3-region", what, "check services.send.s3.region and endpoint")
        found = _TERMINAL.get(code) or _TERMINAL.get(_BY_STATUS.get(status, ""))
        return self._terminal(*(found or ("s3-refused", "the store refuses", "see the log of the store")))

    def _answered(self) -> str:
        code = blanked(self.code.encode()).decode()
        said = f" {code}" if _CODE.match(code) and not code.isdigit() else ""
        return f"was answered {self.status}{said} by {self.where.host}"

    def _terminal(self, reference: str, what: str, hint: str) -> ServiceError:
        return self.where.error(RefusedError, reference, f"{self._answered()}: {what}", hint=hint, status=self.status)

    def _expected_region(self) -> str | None:
        for region in (self.region, self.headers.get("x-amz-bucket-region")):
            if region and _REGION.match(region):
                return region
        return None


def proxy_authentication(where: RequestContext) -> ServiceError:
    """Return the error for wrong credentials of a proxy (document 1, "Authentication" rule 7)."""
    return where.error(
        ServiceError,
        "proxy-authentication",
        "was answered 407: a proxy asks for other credentials",
        hint="give the proxy's user and password in services.send.auth",
        status=407,
    )
