"""The client of an S3-compatible store: botocore makes and signs a request, ``ServiceClient`` carries it.

In its event ``before-send``, botocore gives a signed request to our handler, and takes the handler's answer instead of
sending the request itself. So S3 has the trust, the proxies, the time limits and the retries of every other call of the
pipeline. In ``needs-retry`` a refusal becomes an error of ours. Credentials, region and endpoint come from the
configuration and from nowhere else (docs/services.md).
"""

from __future__ import annotations

import io
import logging
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any, BinaryIO, Final, Self
from urllib.parse import quote, urlsplit

import botocore.session
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.utils import conditionally_calculate_md5

from config import PipelineConfig
from tasks.send.s3_refusal import error_of, is_busy
from tasks.shared.blanked import remember
from tasks.shared.errors import InputError, InternalError, ServiceError, SluiceError
from tasks.shared.http.answer import place
from tasks.shared.http.client import Call, Endpoint, ServiceClient
from tasks.shared.http.errors import DEFAULT_TRANSIENT, RequestContext
from tasks.shared.http.network import Network
from tasks.shared.http.retry import wait_seconds
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

# These log headers with signatures; that must not depend on the root logger's level.
for _name in ("boto3", "botocore", "s3transfer"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_PIECE: Final = 1 << 18
_REFUSALS: Final = frozenset(range(300, 600)) - DEFAULT_TRANSIENT - {407}
"""Statuses of answers that botocore reads. ``ServiceClient`` repeats those of a busy store before."""

_PAGE: Final = re.compile(rb"\s*<(!doctype )?html", re.IGNORECASE)
_NOT_COPIED: Final = frozenset({"expect", "host", "proxy-authorization"})
"""Headers of a signed request that the client makes itself. Nothing waits for a 100, and some proxies refuse it."""


class StoreClient:
    """The connections to the store that the configuration names; thread-safe. ``boto`` is botocore's client.

    ``within`` (seconds) limits all requests together. The Basic credentials of ``services.send.auth`` are for a proxy:
    the one that the environment names, and a reverse proxy in front of the store, which gets them with every request.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        stop: Stop,
        meter: Meter | None = None,
        within: float | None = None,
    ) -> None:
        auth, s3 = config.services.send.auth, config.services.send.s3
        remember(auth)
        password = auth.password.get_secret_value() if auth.password else ""
        user = None if auth.username is None else (auth.username, password)
        # Added after signing, because a reverse proxy removes the header.
        self._more = (
            {} if user is None else {"Proxy-Authorization": f"Basic {b64encode(':'.join(user).encode()).decode()}"}
        )
        self._bucket = s3.bucket or ""
        self._retry = config.retry
        self._stop = stop
        self._thread = local()
        self._client = ServiceClient(
            Endpoint("send", timeout=s3.timeout.total_seconds()),
            network=Network(config.tls, _with_user(os.environ, user)),
            retry=config.retry, within=within, stop=stop, meter=meter,
        )  # fmt: skip
        self.boto = _boto_client(config)
        events = self.boto.meta.events
        events.register("before-send.s3", self._carry)
        events.register_first("needs-retry.s3", self._judge)
        for name in ("PutObject", "UploadPart"):
            events.register(f"before-call.s3.{name}", conditionally_calculate_md5)

    def place(self, key: str) -> str:
        """Return where an object is, as errors show it."""
        return f"{place(self.boto.meta.endpoint_url)} {self._bucket}/{key}"

    def _carry(self, request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
        """Handle ``before-send.s3``: return the answer to a request. Raises what ``ServiceClient.send`` raises."""
        name = event_name.rpartition(".")[2]
        where = self._thread.where = RequestContext("send", name, request.method, request.url)
        signed = ((key, value) for key, value in request.headers.items() if key.lower() not in _NOT_COPIED)
        headers = {key: value.decode("latin-1") if isinstance(value, bytes) else str(value) for key, value in signed}
        try:
            content = _content(request, self._stop)
            call = Call(request.method, request.url, name, content, headers | self._more, accept=_REFUSALS)
            answer = self._thread.answer = self._client.send(call)
        except SluiceError as error:
            if error.reference == "proxy-authentication":
                error.hint = "give the proxy's user and password in services.send.auth"
            raise
        if answer.status < 300 and _PAGE.match(answer.body):  # the login page of a network, for example
            hint = "check services.send.s3.endpoint, and whether a proxy answers in place of the store"
            what = f"was answered by {where.host}, but not as an S3 store does"
            raise where.error(ServiceError, "s3-answer", what, hint=hint).made_from(answer)
        return AWSResponse(request.url, answer.status, dict(answer.headers), _Answer(answer.body))

    def _judge(
        self,
        response: tuple[AWSResponse, Mapping[str, Any]] | None,
        attempts: int,
        caught_exception: Exception | None,
        **_: Any,
    ) -> int | None:
        """Handle ``needs-retry.s3``: return ``None`` for success, 0 for another attempt; raise the error of a refusal.

        CompleteMultipartUpload may be answered 200 with an error in its body, which botocore turns into a 500.
        """
        if response is None:
            raise caught_exception or InternalError("internal", "send: a call got no answer")
        status, refused = response[0].status_code, response[1].get("Error", {})
        if status < 300 and not refused:
            return None
        code = str(refused.get("Code", ""))
        if is_busy(status, code) and attempts < self._retry.max_attempts:
            self._stop.sleep(wait_seconds(self._retry, attempts - 1, None))
            return 0
        raise error_of(self._thread.where, self._thread.answer, status, code, refused.get("Region"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.boto.close()
        self._client.close()


_NOWHERE: Final = dict.fromkeys(("config_file", "credentials_file"), (None, None, os.devnull, None)) | {
    "profile": (None, None, None, None)
}
"""Where botocore looks for settings: in no file of this machine."""


def _boto_client(config: PipelineConfig) -> Any:
    """Return a client of botocore that uses only the configuration."""
    s3 = config.services.send.s3
    settings: dict[str, Any] = {
        "signature_version": "s3v4",
        "s3": {"addressing_style": "path" if s3.use_path_style else "virtual"},
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "ignore_configured_endpoint_urls": True,
        # Bodies bring a checksum of ours along; older stores refuse those that botocore would add.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    with translated():
        return botocore.session.Session(session_vars=_NOWHERE).create_client(
            "s3",
            region_name=s3.region,
            endpoint_url=str(s3.endpoint) if s3.endpoint else None,
            aws_access_key_id=s3.access_key_id,
            aws_secret_access_key=s3.secret_access_key.get_secret_value() if s3.secret_access_key else None,
            config=Config(**settings),
        )


@contextmanager
def translated() -> Iterator[None]:
    """Raise an error of botocore about its settings as ``InputError`` (``s3-configuration``), without the text, which
    may quote them."""
    try:
        yield
    except (BotoCoreError, ValueError) as error:
        raise InputError(
            "s3-configuration",
            f"send: the settings of the store cannot be used ({type(error).__name__})",
            context="services.send.s3",
            hint="check bucket, region and endpoint: a bucket name has 3 to 63 small letters, digits, dots and hyphens",
        ) from None


def _with_user(environ: Mapping[str, str], user: tuple[str, str] | None) -> Mapping[str, str]:
    """Return the environment with these credentials for its proxies instead of their own."""
    changed = dict(environ)
    for name in environ if user is not None else ():
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy") and environ[name].strip():
            text = environ[name].strip()
            parts = urlsplit(text if "://" in text else f"http://{text}")
            userinfo = ":".join(quote(one, safe="") for one in user or ())
            changed[name] = f"{parts.scheme}://{userinfo}@{parts.netloc.rpartition('@')[2]}"
    return changed


@dataclass(frozen=True)
class _FileBody:
    """The file of a botocore request, as the content of a ``Call``."""

    file: BinaryIO
    stop: Stop

    def __iter__(self) -> Iterator[bytes]:
        self.file.seek(0)
        while piece := self.file.read(_PIECE):
            self.stop.check()
            yield piece


def _content(request: AWSPreparedRequest, stop: Stop) -> bytes | _FileBody | None:
    body = request.body
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else _FileBody(body, stop)


class _Answer(io.BytesIO):
    """The body of an answer as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        """Yield the whole body."""
        yield self.read()
