"""A ``ServiceClient`` for tests: no real waiting, nothing from the environment."""

from __future__ import annotations

from typing import Any

from config import RetryConfig, TlsConfig
from tasks.shared.http.client import ServiceClient


class Sleeps(list[float]):
    """Stands in for ``time.sleep``: remembers, does not wait."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def client(service: str = "pseudonymizer", *, attempts: int = 5, **options: Any) -> ServiceClient:
    defaults: dict[str, Any] = {
        "tls": TlsConfig(),
        "retry": RetryConfig(max_attempts=attempts, initial_backoff_ms=1000, max_backoff_ms=30000),
        "environ": {},
        "sleep": Sleeps(),
        "timeout": 10.0,
    }
    return ServiceClient(service, **(defaults | options))
