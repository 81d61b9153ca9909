"""A service that a step talks to: where it is, whose credentials go there, how to find out that it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from config import AuthConfig, PipelineConfig
from tasks.shared.errors import SluiceError
from tasks.shared.http.answer import Answer, place
from tasks.shared.http.client import ServiceClient


@dataclass(frozen=True)
class Service:
    """``key`` is that under ``services`` in the configuration; credentials go to the origin of ``url`` only.

    ``words`` say where data go, for a person; without them it is the place of ``url``.
    """

    key: str
    url: str | None = None
    auth: AuthConfig | None = None
    probe: Probe | None = None
    words: str | None = None

    @property
    def destination(self) -> str:
        """Where data go: an address without user, query and fragment, so without credentials."""
        return self.words or place(self.url or "")

    def client(self, config: PipelineConfig, **more: Any) -> ServiceClient:
        """A client of this service; ``more`` is what ``ServiceClient`` takes beside."""
        origin = self.url if self.auth is not None else None
        return ServiceClient(
            self.key, tls=config.tls, retry=config.retry, auth=self.auth, credentials_origin=origin, **more
        )


class Probe(Protocol):
    """How to find out before a job that a service is there and is the right one: what is asked, what is wrong with the
    answer, and the words for it."""

    def ask(self, service: Service, config: PipelineConfig) -> Iterator[SluiceError]:
        """Ask once; what keeps the service from being used."""
        ...


def alive(_service: Service, _answer: Answer) -> SluiceError | None:
    """Whatever answers is alive."""
    return None


@dataclass(frozen=True)
class HttpProbe:
    """One GET of ``path`` below the service's URL, without credentials; ``check`` says what is wrong with the answer.

    Where the credentials are a client's, a token is obtained first: as often as the retry block says, like those of the
    step.
    """

    path: str = ""
    check: Callable[[Service, Answer], SluiceError | None] = alive
    timeout: float = 15.0

    def ask(self, service: Service, config: PipelineConfig) -> Iterator[SluiceError]:
        """See ``Probe``; a service without URL is not asked."""
        if not service.url:
            return
        try:
            with service.client(config, timeout=self.timeout) as client:
                client.authorize()
                answer = client.peek("GET", f"{service.url.rstrip('/')}{self.path}" if self.path else service.url)
            wrong = self.check(service, answer)
        except SluiceError as error:
            wrong = error
        if wrong is not None:
            yield wrong


METADATA = HttpProbe("/fhir/metadata")
"""That of a FHIR service."""
