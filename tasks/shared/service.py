"""A service that a step uses: its address, its credentials and its probe.

The TLS context, the retry rules and the credentials of a step's client are put together here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from config import PipelineConfig
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.http.answer import Answer, place
from tasks.shared.http.client import Call, Endpoint, ServiceClient
from tasks.shared.http.network import Network


@dataclass(frozen=True)
class Service(Endpoint):
    """A service that a step uses, and how to find out that it is the right one."""

    probe: Probe | None = None

    def client(self, config: PipelineConfig, *, network: Network | None = None, **more: Any) -> ServiceClient:
        """Return a client of this service; ``more`` is passed to ``ServiceClient``."""
        return ServiceClient(self, network=network or Network(config.tls), retry=config.retry, **more)


@dataclass(frozen=True)
class ProbeWarning:
    """A warning of a probe. It does not stop a start."""

    text: str


Found = SluiceError | ProbeWarning


class Probe(Protocol):
    """Checks that a service answers and is the expected one."""

    proves: bool
    """Whether the probe also runs when the step begins, before the first data go to the service."""

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """Yield errors and warnings about the service. ``more`` is passed to the client."""
        ...


PATIENCE: Final = 120.0
"""Seconds for all synthetic requests to a service, retries included: the first one may start an engine."""

_REFUSALS: Final = frozenset({401, 403, 407, 413})
"""Statuses about credentials, the proxy or sizes: they do not show that the URL is that of another service."""


class WrongServiceError(ServiceError):
    """The service at a URL is of another kind, or does not fit this configuration."""

    exit_code = 2


@dataclass(frozen=True)
class ProbeRequest:
    """One synthetic request of a probe. ``wrong(answer)`` judges an answer that ``call`` accepts.

    It returns ``None`` for a right answer, a warning, an error, or the text of a ``wrong-service`` error, which
    continues "tested with a synthetic resource, it …".
    """

    call: Call
    wrong: Callable[[Answer], Found | str | None]


@dataclass(frozen=True)
class SyntheticProbe:
    """Prove with synthetic resources that the service at a URL is ``kind``, before the first data go there.

    ``exchanges`` returns the requests. They are sent in order, with retries, until one ends in an error. ``key`` is the
    configuration key of the URL below ``services.<service>``.

    A wrong service (``wrong-service``), wrong credentials or certificates are terminal errors; no answer is transient.
    """

    proves = True

    kind: str
    exchanges: Callable[[Service, PipelineConfig], Iterable[ProbeRequest]]
    key: str = "url"

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """See ``Probe``; a service without URL is not asked."""
        if not service.url:
            return
        with service.client(config, within=PATIENCE, **more) as client:
            for exchange in self.exchanges(service, config):
                found = self._send_request(service, client, exchange)
                if found is not None:
                    yield found
                if isinstance(found, SluiceError):
                    return

    def _send_request(self, service: Service, client: ServiceClient, exchange: ProbeRequest) -> Found | None:
        try:
            answer = client.send(exchange.call)
        except SluiceError as error:
            if isinstance(error, ServiceError) and error.answered not in (None, *_REFUSALS):
                return self._wrong(service, exchange, f"answered {error.answered}", error.answer)
            return error
        wrong = exchange.wrong(answer)
        if isinstance(wrong, ServiceError):
            return wrong if wrong.answer else wrong.made_from(answer)
        return self._wrong(service, exchange, wrong, answer) if isinstance(wrong, str) else wrong

    def _wrong(self, service: Service, exchange: ProbeRequest, what: str, answer: Answer) -> ServiceError:
        path = f"{exchange.call.method} {place(exchange.call.url)}"
        return WrongServiceError(
            "wrong-service",
            f"{service.key}: this is not {self.kind}: tested with a synthetic resource, it {what}",
            context=f"services.{service.key}.{self.key}: {path}",
            hint="check this URL, and those of the other services: two may be swapped; no data was sent",
            operation="test request",
            status=answer.status,
        ).made_from(answer)
