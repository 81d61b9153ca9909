"""The client of every outgoing HTTP call (docs/services.md): httpx, one client per thread.

``send`` makes a call, repeats it after transient errors, and returns the whole answer; ``stream`` opens a download in
one attempt; ``peek`` asks whether the service is there.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import ssl
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Final, Self
from urllib.parse import urlsplit

import httpx

from config import AuthConfig, RetryConfig
from tasks.shared.errors import TOKEN_OPERATION, InputError, ServiceError, SluiceError
from tasks.shared.http.answer import Answer, place
from tasks.shared.http.auth import Credentials, OriginAuth, origin_of
from tasks.shared.http.errors import DEFAULT_TRANSIENT, RequestContext, error_for, error_without_answer
from tasks.shared.http.network import Network, Proxies, ssl_context
from tasks.shared.http.request_log import log_request
from tasks.shared.http.retry import retrying
from tasks.shared.meter import Meter
from tasks.shared.stop import Stop

# Below WARNING these loggers print headers, and URLs with their query. A site may set PREFECT_LOGGING_ROOT_LEVEL or
# another level for all libraries.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

MAX_REDIRECTS: Final = 5
_CONNECT_SECONDS: Final = 30.0
_ANY: Final = frozenset(range(100, 600)) - {407}
_ISSUER_ANSWERS: Final = frozenset(range(400, 500)) - DEFAULT_TRANSIENT - {407}
_AGENT: Final = {"User-Agent": f"sluice/{metadata.version('sluice')}", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Call:
    """A request, which errors call ``operation``.

    An iterable body must start anew for each attempt, so it is no generator; its length is in ``headers``. ``timeout``
    (seconds) replaces that of the client. A call succeeds with 2xx or a status in ``accept``; after a status in
    ``transient`` the same call may succeed later.
    """

    method: str
    url: str = field(repr=False)
    operation: str
    content: bytes | Iterable[bytes] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    accept: Collection[int] = ()
    transient: Collection[int] = DEFAULT_TRANSIENT

    def accepts(self, status: int) -> bool:
        """Return whether an answer with this status is a success."""
        return 200 <= status < 300 or status in self.accept


@dataclass(frozen=True)
class Endpoint:
    """A service of the configuration; ``key`` is its key under ``services``.

    The credentials of ``auth`` go to the origin of ``url`` (scheme, host, port) and to no other. ``timeout`` (seconds)
    limits each operation of httpx.
    """

    key: str
    url: str | None = None
    auth: AuthConfig | None = None
    timeout: float = 60.0


class ServiceClient:
    """The calls of one step to one service; thread-safe.

    ``within`` (seconds) limits all attempts of all calls together, and replaces the timeout. ``stop`` ends a wait
    between attempts. Raises ``InputError`` for settings that cannot be used.
    """

    def __init__(
        self,
        service: Endpoint,
        *,
        network: Network,
        retry: RetryConfig,
        within: float | None = None,
        stop: Stop | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.service = service.key
        self.meter = meter or Meter()
        self._timeout = within or service.timeout
        self._stop = stop or Stop()
        self._local = threading.local()
        self._clients: list[httpx.Client] = []
        self._verify = ssl_context(network.tls)
        self._proxies = Proxies(network.environ)
        self._transport = network.transport
        self._own = origin_of(_url(service.url)) if service.auth is not None and service.url is not None else None
        self._credentials = Credentials(service.auth if self._own else None, service=self.service, fetch=self._fetch)
        ends = time.monotonic() + (within or math.inf)
        self.retrying = functools.partial(
            retrying, retry, service=self.service, meter=self.meter, sleep=self._stop.sleep,
            seconds_left=lambda: ends - time.monotonic(),
        )  # fmt: skip
        """``retry.retrying`` for calls of this client."""
        # A token is obtained inside an attempt and has been tried as often as the retry block says.
        self._again = self.retrying(retryable=lambda error: error.operation != TOKEN_OPERATION)

    def send(self, call: Call, *, retry: bool = True) -> Answer:
        """Make a call; return the whole answer if the call accepts its status.

        Every attempt sends the same bytes; ``retry=False`` makes one. Redirects are followed for GET and HEAD, within
        the origin. Raises ``ServiceBusyError`` for a transient status and ``NetworkError`` when no answer came, both
        after the last attempt; ``ServiceError`` for any other answer; ``Stopped``.
        """
        auth, attempts = self._auth(call.url), itertools.count()

        def attempt() -> Answer:
            return self._once(call, auth, repeated=next(attempts) > 0)

        return self._again(attempt) if retry else attempt()

    @contextmanager
    def stream(
        self, call: Call, *, follow: bool = False, credentials: bool | None = None, repeated: bool = False
    ) -> Iterator[httpx.Response]:
        """Open a call in one attempt; stream the answer with ``iter_raw()``, which raises our errors.

        With ``follow``, redirects to other origins are followed without credentials, but never from TLS to plain HTTP.
        ``credentials``: ``None`` sends them to their origin; ``True`` also to that of this URL, unless that leaves TLS;
        ``False`` to none. The timeout limits the longest silence.
        """
        auth = self._auth(call.url, credentials)
        with self._open(call, auth, follow=follow, repeated=repeated) as (where, response):
            if not call.accepts(response.status_code):
                raise error_for(_read(where, response), where, transient=call.transient)
            try:
                yield response
            except httpx.HTTPError as error:
                raise error_without_answer(error, where, in_body=True) from None

    def peek(self, method: str, url: str) -> Answer:
        """Return the head of the answer to one request without credentials, redirects followed, within 10 seconds.
        Raises ``NetworkError`` without an answer, ``ServiceError`` when a certificate or the proxy is in the way."""
        call = Call(method, url, "first request", timeout=min(self._timeout, 10.0), accept=_ANY)
        with self.stream(call, follow=True, credentials=False) as response:
            return Answer(response.status_code, response.headers, b"")

    def authorize(self) -> None:
        """Obtain the OAuth 2.0 token now, so that a wrong client is found before a job begins."""
        self._credentials.headers()

    def close(self) -> None:
        """Close every connection."""
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _once(self, call: Call, auth: httpx.Auth | None, *, repeated: bool = False) -> Answer:
        with self._open(call, auth, repeated=repeated) as (where, response):
            answer = _read(where, response)
        if call.accepts(answer.status):
            return answer
        raise error_for(answer, where, transient=call.transient)

    @contextmanager
    def _open(
        self, call: Call, auth: httpx.Auth | None, *, follow: bool = False, repeated: bool = False
    ) -> Iterator[tuple[RequestContext, httpx.Response]]:
        """Follow redirects; yield the last request and its response, whose body is not read yet."""
        for _ in range(MAX_REDIRECTS + 1):
            where = self._where(call)
            with self._request(call, where, auth, repeated=repeated) as response:
                following = _redirected(where, response, follow=follow)
                if following is None:
                    yield where, response
                    return
            call = replace(call, url=following)
        raise where.error(ServiceError, "redirect-refused", f"was redirected more than {MAX_REDIRECTS} times")

    @contextmanager
    def _request(
        self, call: Call, where: RequestContext, auth: httpx.Auth | None, *, repeated: bool
    ) -> Iterator[httpx.Response]:
        self._stop.check()
        seconds = self._timeout if call.timeout is None else call.timeout
        begun = time.monotonic()
        try:
            client = self._client()
            request = client.build_request(
                where.method, _url(call.url), content=call.content, headers=call.headers,
                timeout=httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS)),
            )  # fmt: skip
            response = client.send(request, auth=auth, stream=True)
        except (httpx.HTTPError, ssl.SSLError, UnicodeError) as error:
            wrong = error_without_answer(error, where)
            log_request(where.method, where.url, wrong.reference, begun)
            raise wrong from None
        finally:
            self.meter.request(time.monotonic() - begun, repeated=repeated)
        try:
            yield response
        finally:
            response.close()
            log_request(where.method, where.url, str(response.status_code), begun)

    def _client(self) -> httpx.Client:
        """Return this thread's client. In a shared one, httpcore's pool closes connections that other threads use."""
        client: httpx.Client | None = getattr(self._local, "client", None)
        if client is None:
            transport = self._transport(self._verify, self._proxies)
            self._local.client = client = httpx.Client(transport=transport, headers=_AGENT, trust_env=False)
            self._clients.append(client)
        return client

    def _where(self, call: Call) -> RequestContext:
        proxy = self._proxies.select(_url(call.url))
        host = urlsplit(proxy).hostname if proxy else None
        return RequestContext(self.service, call.operation, call.method.upper(), call.url, host)

    def _auth(self, url: str, credentials: bool | None = None) -> httpx.Auth | None:
        """Return the authentication of a call, ``None`` for none; ``credentials`` as in ``stream``."""
        if self._own is None or credentials is False:
            return None
        origins, target = {self._own}, origin_of(_url(url))
        if credentials and not (self._own[0] == "https" and target[0] != "https"):
            origins.add(target)
        return OriginAuth(self._credentials, frozenset(origins))

    def _fetch(self, method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> Answer:
        """Send a request to the OAuth issuer: ``auth.Fetch``. It has a retry budget of its own."""
        call = Call(method, url, TOKEN_OPERATION, content, headers, timeout=60.0, accept=_ISSUER_ANSWERS)
        return self.retrying()(lambda: self._once(call, None))


def _read(where: RequestContext, response: httpx.Response) -> Answer:
    try:
        return Answer(response.status_code, response.headers, b"".join(response.iter_bytes()))
    except httpx.HTTPError as error:
        raise error_without_answer(error, where) from None


@functools.lru_cache(maxsize=64)  # a step requests the same URL again and again
def _url(text: str) -> httpx.URL:
    """Return a parsed URL. Raises ``InputError`` (``url-invalid``)."""
    try:
        url = httpx.URL(text)
        # httpx escapes characters that a host name cannot contain instead of refusing them.
        if url.scheme in ("http", "https") and url.host and b"%" not in url.raw_host:
            return url
    except (httpx.InvalidURL, ValueError):  # their texts quote the URL
        pass
    raise InputError("url-invalid", "this is not an http or https URL", context=place(text)) from None


def _redirected(where: RequestContext, response: httpx.Response, *, follow: bool) -> str | None:
    """Return the URL that an answer redirects to; ``None`` without one. Raises ``ServiceError`` for a forbidden one."""
    if not response.has_redirect_location:
        return None
    hint, what = "configure the URL that it redirects to", "was redirected"
    try:
        url = _url(str(response.url.join(response.headers["location"])))
        what += f" to {url.scheme}://{url.host}"
        same = origin_of(url) == origin_of(response.url)
        leaves_tls = response.url.scheme == "https" and url.scheme != "https"
        if where.method in ("GET", "HEAD") and (same or follow) and not leaves_tls:
            return str(url)
    except (SluiceError, httpx.InvalidURL, ValueError):
        pass
    raise where.error(ServiceError, "redirect-refused", what, hint=hint, status=response.status_code)
