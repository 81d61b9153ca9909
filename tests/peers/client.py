"""A ``ServiceClient`` for tests: no real waiting, nothing from the environment."""

from __future__ import annotations

from typing import Any

from config import RetryConfig, TlsConfig
from tasks.shared.http.client import Endpoint, ServiceClient
from tasks.shared.http.network import Network
from tasks.shared.stop import Stop


class Sleeps(Stop):
    """A stop whose waits are remembered, and over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def client(service: str = "pseudonymizer", *, attempts: int = 5, **options: Any) -> ServiceClient:
    about = {name: options.pop(name) for name in ("url", "auth", "timeout") if name in options}
    made = {name: options.pop(name) for name in ("tls", "environ", "transport") if name in options}
    defaults: dict[str, Any] = {
        "network": Network(**({"tls": TlsConfig(), "environ": {}} | made)),
        "retry": RetryConfig(max_attempts=attempts, initial_backoff_ms=1000, max_backoff_ms=30000),
        "stop": Sleeps(),
    }
    return ServiceClient(Endpoint(service, **({"timeout": 10.0} | about)), **(defaults | options))
