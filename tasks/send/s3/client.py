"""The client of an S3-compatible store: boto3 makes and signs a request, ``ServiceClient`` carries it.

* Credentials, region and endpoint come from the configuration and from nowhere else: no variable, no file in the home
  directory, no metadata service of a cloud machine is asked (document 3 §7).
* Every call is repeated by our retry block; botocore's own retries are off.

botocore offers every signed request to the handlers of its event ``before-send`` and takes an answer from them instead
of its own session. So S3 has the trust, the proxies, the time limits and the stop of every other call of the pipeline.
On ``needs-retry`` a refusal becomes an error of ours, or is repeated after a wait. With bodies goes ``Content-MD5``:
older stores do not know the newer checksums.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import math
import os
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, local
from typing import Any, BinaryIO, Final, Self
from urllib.parse import quote

import boto3.session
import botocore.session
import httpx
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError

from config import PipelineConfig
from tasks.send.s3.refusal import Refusal, proxy_authentication
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import InputError, ServiceBusyError, SluiceError, TransientError
from tasks.shared.http_old.answer import Answer, BusyError, RefusedError, RequestContext, place
from tasks.shared.http_old.body import SLICE
from tasks.shared.http_old.client import ServiceClient
from tasks.shared.http_old.proxies import parse_proxy
from tasks.shared.http_old.retry import announce, wait_seconds
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

# These log headers with signatures; that must not depend on the root logger's level.
for _name in ("boto3", "botocore", "s3transfer"):
    logging.getLogger(_name).setLevel(logging.WARNING)

CONNECTIONS: Final = 4
"""Requests at once (document 3 §7)."""

_MOST: Final = 16 * 1024 * 1024  # bytes of an answer
_TIDYING: Final = 3.0
"""Seconds for tidying up, also after a stop."""
_ANY: Final = range(100, 1000)
_NOT_COPIED: Final = frozenset({"content-length", "expect", "host", "proxy-authorization"})
"""Headers of a signed request that the client makes itself. Nothing waits for a 100, and some proxies refuse it."""

_ABORT: Final = "AbortMultipartUpload"
_OPERATIONS: Final = {
    "HeadBucket": "look for the bucket",
    "HeadObject": "look for the object",
    "PutObject": "upload",
    "CreateMultipartUpload": "begin of an upload in parts",
    "UploadPart": "upload of a part",
    "CompleteMultipartUpload": "end of an upload in parts",
    _ABORT: "removal of an unfinished upload",
}


class StoreClient:
    """The connections to the store that the configuration names; thread-safe. As a context manager it closes them.

    ``boto`` is boto3's client: what it raises are our errors, see ``translated``. ``timeout`` is in seconds for one
    request, by default ``services.send.s3.timeout``, ``within`` for all of them, waits included. The Basic credentials
    of ``services.send.auth`` are those of an upstream proxy (document 1, "Authentication" rule 7): they go to the proxy
    that the environment names, and with every request, for a reverse proxy in front of the store. ``transport``,
    ``environ`` and ``sleep`` (seconds) are seams for tests.

    Raises ``InputError`` for a configuration, certificate bundle or proxy variable that cannot be used.
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
        auth, s3 = config.services.send.auth, config.services.send.s3
        SECRETS.auth(auth)
        password = auth.password.get_secret_value() if auth.password else ""
        user = None if auth.username is None else (auth.username, password)
        # After signing: a reverse proxy takes it away again.
        self._more = {} if user is None else {"Proxy-Authorization": f"Basic {_base64(':'.join(user))}"}
        self._bucket = s3.bucket or ""
        self._meter = meter or Meter()
        self._retry = config.retry
        self._sleep = sleep or stop.sleep
        self._ends = time.monotonic() + within
        self._thread = local()
        timeout = s3.timeout.total_seconds() if timeout is None else timeout

        def client(stop: Stop | None, timeout: float, within: float = math.inf) -> ServiceClient:
            return ServiceClient(
                "send",
                tls=config.tls,
                retry=config.retry,
                timeout=timeout,
                within=within,
                stop=stop,
                meter=self._meter,
                max_connections=CONNECTIONS,
                transport=transport,
                environ=_with_user(os.environ if environ is None else environ, user),
            )

        self._client = client(stop, timeout, within)
        # A stop must not keep an unfinished upload from being removed: nobody else would do that in this run.
        self._tidying = client(None, min(timeout, _TIDYING))
        self.boto = _boto_client(config)
        events = self.boto.meta.events
        events.register("before-send.s3", self._carry)
        events.register_first("needs-retry.s3", self._wait_or_raise)
        for name in ("PutObject", "UploadPart"):
            events.register(f"before-call.s3.{name}", _add_md5)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Let the errors of calls be ours: ``NetworkError`` and ``ServiceBusyError`` after the last attempt,
        ``ServiceError``, ``InputError`` and ``Stopped``."""
        try:
            yield
        except ResponseParserError:
            raise self._not_s3() from None
        except (BotoCoreError, ValueError) as error:
            raise _unusable(error) from None

    def place(self, key: str) -> str:
        """Return where an object is, as errors show it."""
        return f"{place(self.boto.meta.endpoint_url)} {self._bucket}/{key}"

    def _carry(self, request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
        """Handler of ``before-send.s3``: the answer to a signed request, whatever its status.

        Raises ``NetworkError``, ``ServiceError`` and ``Stopped``.
        """
        name = event_name.rpartition(".")[2]
        where = RequestContext("send", _OPERATIONS.get(name, name), request.method, request.url)
        self._thread.where = where
        attempt, self._thread.attempt = getattr(self._thread, "attempt", 1), 1
        signed = {name: _text(value) for name, value in request.headers.items()}
        headers = {name: value for name, value in signed.items() if name.lower() not in _NOT_COPIED}
        try:
            answer = (self._tidying if name == _ABORT else self._client).send(
                request.method,
                request.url,
                operation=where.operation,
                content=_content(request),
                headers=headers | self._more,
                retry=False,
                attempt=attempt,
                accept=_ANY,
                max_answer_bytes=_MOST,
            )
        except SluiceError as error:
            if error.reference == "proxy-authentication":
                raise proxy_authentication(where) from None
            raise
        self._thread.answer, self._thread.authorization = answer, headers.get("Authorization", "")
        return AWSResponse(request.url, answer.status, dict(answer.headers), _Answer(answer.body))

    def _wait_or_raise(
        self,
        response: tuple[AWSResponse, Mapping[str, Any]] | None,
        attempts: int,
        caught_exception: Exception | None,
        operation: Any,
        **_: Any,
    ) -> int | None:
        """Handler of ``needs-retry.s3``: wait and return 0 for another attempt, or raise the error; ``None`` for
        success."""
        error = caught_exception if response is None else self._refused(*response)
        if error is None:
            return None
        if not isinstance(error, TransientError) or attempts >= self._retry.max_attempts or operation.name == _ABORT:
            raise error
        asked = error.retry_after if isinstance(error, ServiceBusyError) else None
        seconds = wait_seconds(self._retry, attempts - 1, asked)
        if time.monotonic() + seconds >= self._ends:
            raise error
        what = self._thread.where.operation
        announce(self._meter, "send", what, error, attempt=attempts, attempts=self._retry.max_attempts, seconds=seconds)
        self._sleep(seconds)
        self._thread.attempt = attempts + 1
        return 0

    def _refused(self, response: AWSResponse, parsed: Mapping[str, Any]) -> SluiceError | None:
        """Return the error for a refusal. CompleteMultipartUpload may be answered 200 with an error in its body, which
        botocore turns into a 500."""
        refused = parsed.get("Error", {})
        if response.status_code < 300 and not refused:
            return None
        headers = {name.lower(): value for name, value in response.headers.items()}
        code, region = str(refused.get("Code", "")), refused.get("Region")
        if self._thread.answer.status < 300 and code.isdigit():  # it is no XML
            return self._not_s3()
        error = Refusal(self._thread.where, response.status_code, code, region, headers).error()
        if isinstance(error, RefusedError | BusyError):
            error.answer = self._blanked_answer()
        return error

    def _not_s3(self) -> RefusedError:
        """Return the error for an answer that another server gives, the log-in page of a network for example."""
        where: RequestContext = self._thread.where
        return where.error(
            RefusedError,
            "s3-answer",
            f"was answered by {where.host}, but not as an S3 store does",
            hint="check services.send.s3.endpoint, and whether a proxy answers in place of the store",
        )

    def _blanked_answer(self) -> Answer:
        """Return the answer to this thread's last request. Stores quote the signature of what they refuse: from here on
        it is blanked in what is kept, if there is anything to keep."""
        authorization: str = self._thread.authorization
        answer: Answer = self._thread.answer
        for secret in filter(None, (authorization, authorization.rpartition("Signature=")[2]) if answer.body else ()):
            SECRETS.token(secret)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.boto.close()
        self._client.close()
        self._tidying.close()


_loading = Lock()


@functools.cache
def _descriptions() -> Loader:
    """botocore's own descriptions of services, none from a home directory. Reading them takes half a second, once."""
    return Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)


def _boto_client(config: PipelineConfig) -> Any:
    """Return a boto3 client that uses only the configuration."""
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


def _unusable(error: Exception) -> InputError:
    """botocore refuses a name before anything is sent. Its text is left out: it may quote what it was given."""
    return InputError(
        "s3-configuration",
        f"send: the settings of the store cannot be used ({type(error).__name__})",
        context="services.send.s3",
        hint="check bucket, region and endpoint: a bucket name has 3 to 63 small letters, digits, dots and hyphens",
    )


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode("ascii")


def _with_user(environ: Mapping[str, str], user: tuple[str, str] | None) -> Mapping[str, str]:
    """Return the environment with these credentials for its proxies instead of their own."""
    if user is None:
        return environ
    userinfo = ":".join(quote(one, safe="") for one in user)
    changed = dict(environ)
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        if text := environ.get(name, "").strip():
            changed[name] = parse_proxy(text, name).url.replace("://", f"://{userinfo}@", 1)
    return changed


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _add_md5(params: dict[str, Any], **_: Any) -> None:
    """Handler of ``before-call.s3``: add the MD5 of a body."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in _pieces(params["body"]):
        digest.update(piece)
    params["headers"]["Content-MD5"] = b64encode(digest.digest()).decode("ascii")


def _pieces(body: bytes | BinaryIO) -> Iterator[bytes]:
    """Yield a body from its start, and leave it there."""
    if isinstance(body, bytes):
        yield body
        return
    body.seek(0)
    while piece := body.read(SLICE):
        yield piece
    body.seek(0)


class _FileBody:
    """The file object of a request as a ``Body``."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.length = len(file)

    def pieces(self) -> Iterator[bytes]:
        """Yield it from its start."""
        yield from _pieces(self._file)


def _content(request: AWSPreparedRequest) -> bytes | _FileBody | None:
    body = request.body
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else _FileBody(body)


class _Answer(io.BytesIO):
    """The body of an answer as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        """Yield the whole body."""
        yield self.read()
