"""One HTTP exchange with the store: botocore makes and signs the request, ``ServiceClient`` carries it.

botocore offers every signed request to the handlers of its event ``before-send`` and takes an answer from them instead
of its own session. So S3 has the trust, the proxies, the time limits and the stop of every other call of the pipeline.
On ``response-received`` a refusal becomes an error of ours, before botocore's own retries and region redirects see it.
"""

from __future__ import annotations

import io
import math
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from threading import local
from typing import Any, Final
from urllib.parse import quote

import httpx
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from config import AuthConfig, PipelineConfig
from tasks.send.s3.refusal import Refusal, proxy_authentication
from tasks.shared.blanked import SECRETS
from tasks.shared.errors import SluiceError
from tasks.shared.http.answer import Answer, BusyError, RefusedError, Where
from tasks.shared.http.body import Body
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.proxies import parse_proxy
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

CONNECTIONS: Final = 4
"""Requests at once (document 3 §7: 4 files at once)."""

_SLICE: Final = 256 * 1024  # bytes of a body between two looks at the stop
_MOST: Final = 16 * 1024 * 1024  # bytes of an answer: a page of a list has less than one MiB
_TIDYING: Final = 3.0
"""Seconds for tidying up, also after a stop."""
_ANY: Final = range(100, 1000)
_NOT_COPIED: Final = frozenset({"content-length", "expect", "host", "proxy-authorization"})
"""Headers of a signed request that the client makes itself. Nothing waits for a 100, and some proxies refuse it."""

_ABORT: Final = "AbortMultipartUpload"
_OPERATIONS: Final = {
    "HeadBucket": "look for the bucket",
    "ListObjectsV2": "look into the bucket",
    "ListMultipartUploads": "list of unfinished uploads",
    "HeadObject": "look for the object",
    "PutObject": "upload",
    "CreateMultipartUpload": "begin of an upload in parts",
    "UploadPart": "upload of a part",
    "CompleteMultipartUpload": "end of an upload in parts",
    _ABORT: "removal of an unfinished upload",
}
_WHERE: Final = "sluice.where"


class Exchange:
    """The connections to one store; thread-safe. ``timeout`` in seconds, for one whole exchange, ``within`` for all.

    The Basic credentials of ``services.send.auth`` are those of an upstream proxy (document 1, "Authentication" rule
    7): they go to the proxy that the environment names, and with every request, for a reverse proxy in front of the
    store. ``transport`` and ``environ`` are seams for tests.

    Raises ``InputError`` for a certificate bundle or a proxy variable that cannot be used.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        timeout: float,
        within: float = math.inf,
        stop: Stop,
        meter: Meter,
        transport: httpx.BaseTransport | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        auth = config.services.send.auth
        SECRETS.auth(auth)
        user = None if auth.username is None else (auth.username, _password(auth))
        # After signing: a reverse proxy takes it away again.
        self._more = {} if user is None else {"Proxy-Authorization": f"Basic {_base64(':'.join(user))}"}
        self._ends = time.monotonic() + within
        self._thread = local()

        def client(stop: Stop | None, timeout: float, within: float = math.inf) -> ServiceClient:
            return ServiceClient(
                "send",
                tls=config.tls,
                retry=config.retry,
                timeout=timeout,
                within=within,
                stop=stop,
                meter=meter,
                max_connections=CONNECTIONS,
                transport=transport,
                environ=_with_user(os.environ if environ is None else environ, user),
            )

        self._client = client(stop, timeout, within)
        # A stop must not keep an unfinished upload from being removed: nobody else would do that in this run.
        self._tidying = client(None, min(timeout, _TIDYING))

    @property
    def last(self) -> Answer:
        """The answer to this thread's last request: what botocore makes of it has no body any more. Stores quote the
        signature of what they refuse: from here on it is blanked in what is kept, if there is anything to keep.
        """
        authorization: str = self._thread.authorization
        answer: Answer = self._thread.answer
        for secret in filter(None, (authorization, authorization.rpartition("Signature=")[2]) if answer.body else ()):
            SECRETS.token(secret)
        return answer

    def seconds_left(self) -> float:
        """Return the seconds until no further request is made."""
        return self._ends - time.monotonic()

    def send(self, request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
        """Handler of ``before-send.s3``: the answer to a signed request, whatever its status.

        Raises ``NetworkError``, ``ServiceError`` and ``Stopped``.
        """
        name = event_name.rpartition(".")[2]
        where = Where("send", _OPERATIONS.get(name, name), request.method, request.url)
        request.context[_WHERE] = where
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
                accept=_ANY,
                max_answer_bytes=_MOST,
            )
        except SluiceError as error:
            if error.reference == "proxy-authentication":
                raise proxy_authentication(where) from None
            raise
        self._thread.answer, self._thread.authorization = answer, headers.get("Authorization", "")
        return AWSResponse(request.url, answer.status, dict(answer.headers), _Answer(answer.body))

    def judge(
        self,
        parsed_response: Mapping[str, Any] | None,
        response_dict: Mapping[str, Any] | None,
        exception: Exception | None,
        context: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Handler of ``response-received.s3``: raises the error for a refusal, and what ``send`` raised."""
        if exception is not None:
            raise exception
        if parsed_response is None:
            return
        status = parsed_response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        refused = parsed_response.get("Error")
        # CompleteMultipartUpload may be answered 200 with an error in its body, which botocore turns into a 500.
        if status < 300 and not refused:
            return
        headers = (response_dict or {}).get("headers", {})
        refused = refused or {}
        error = Refusal(
            context[_WHERE],
            status,
            str(refused.get("Code", "")),
            refused.get("Region"),
            {name.lower(): value for name, value in headers.items()},
        ).error()
        if isinstance(error, RefusedError | BusyError):
            error.answer = self.last
        raise error

    def close(self) -> None:
        """Close every connection."""
        self._client.close()
        self._tidying.close()


def _password(auth: AuthConfig) -> str:
    return auth.password.get_secret_value() if auth.password else ""


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


def _content(request: AWSPreparedRequest) -> bytes | Body | None:
    body = request.body
    if body is None or isinstance(body, bytes):
        return body
    if hasattr(body, "read"):
        return _Content(body, int(request.headers["Content-Length"]))
    return body.encode() if isinstance(body, str) else bytes(body)


class _Content:
    """The body of a signed request, a file object, for the one attempt that it was signed for."""

    def __init__(self, file: Any, length: int) -> None:
        self._file = file
        self.length = length

    def pieces(self) -> Iterator[bytes]:
        """All of it, in slices."""
        while data := self._file.read(_SLICE):
            yield data


class _Answer(io.BytesIO):
    """The body of an answer as botocore reads it."""

    def stream(self) -> Iterator[bytes]:
        """All of it."""
        yield self.read()
