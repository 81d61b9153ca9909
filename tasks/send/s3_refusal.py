"""Turn refusals of an S3 store into errors (docs/services.md), by status and code, never by the message.

Each terminal error says what a person has to change. Errors quote the code of the store, not its message.
"""

from __future__ import annotations

import re
from typing import Final

from tasks.shared.blanked import blanked
from tasks.shared.errors import ServiceBusyError, ServiceError, SluiceError
from tasks.shared.http.answer import Answer
from tasks.shared.http.errors import RequestContext

_BUSY: Final = frozenset({"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"})
_OF_REGION: Final = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect"})
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9.]{0,63}")
_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_KEYS: Final = "check services.send.s3.access_key_id and secret_access_key, and that both are of the same key"

_BUCKET: Final = "s3-bucket", "there is no such bucket", "check services.send.s3.bucket and endpoint"
_DENIED: Final = (
    "s3-access-denied", "the store does not allow this with these keys",
    "the access key needs the right to put objects into services.send.s3.bucket",
)  # fmt: skip
_FULL: Final = "s3-store-full", "the store is full, or the quota of the bucket is used up", "make room, then continue"
_TERMINAL: Final = {
    "InvalidAccessKeyId": ("s3-access-key", "the store rejects the access key as unknown", _KEYS),
    "SignatureDoesNotMatch": (
        "s3-signature", "the store does not accept the signature",
        f"{_KEYS}; a proxy that changes requests breaks signatures too",
    ),
    "NoSuchBucket": _BUCKET,
    "404": _BUCKET,  # botocore's code for an answer to HEAD, which has no document
    "AccessDenied": _DENIED,
    "QuotaExceeded": _FULL,
}  # fmt: skip
_BY_STATUS: Final = {401: _DENIED, 403: _DENIED, 507: _FULL}


def is_busy(status: int, code: str) -> bool:
    """Return whether the same request may succeed later."""
    return code in _BUSY or (status >= 500 and status not in (501, 507))


def error_of(where: RequestContext, answer: Answer, status: int, code: str, region: str | None) -> SluiceError:
    """Return the error for a refusal. ``code`` and ``region`` are from the error document."""
    told = blanked(code.encode()).decode()
    shown = f" {told}" if _CODE.fullmatch(told) else ""
    answered = f"was answered {status}{shown} by {where.host}"
    if is_busy(status, code):
        hint = "the same command may succeed later"
        return where.error(ServiceBusyError, "service-busy", answered, hint=hint, status=status).made_from(answer)
    named = (region, answer.headers.get("x-amz-bucket-region"))
    expected = next((one for one in named if one and _REGION.fullmatch(one)), None)
    if code in _OF_REGION or 300 <= status < 400 or (status == 400 and expected):
        what = f"the bucket is in the region {expected}" if expected else "the bucket is not in this region"
        reference, hint = "s3-region", "check services.send.s3.region and endpoint"
    else:
        found = _TERMINAL.get(code) or _BY_STATUS.get(status)
        reference, what, hint = found or ("s3-refused", "the store refuses", "see the log of the store")
    error = where.error(ServiceError, reference, f"{answered}: {what}", hint=hint, status=status)
    return error.made_from(answer)
