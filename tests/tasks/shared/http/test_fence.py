"""Each request to a service checks that this process still holds the job (4-product.md §6, more than one machine)."""

from __future__ import annotations

import httpx
import pytest

from config import RetryConfig, TlsConfig
from tasks.shared.errors import TransientError
from tasks.shared.http.client import ServiceClient
from tasks.shared.stop import Stop


class LostError(TransientError):
    """The job is another's."""


def test_a_request_is_not_sent_when_the_job_is_anothers() -> None:
    sent: list[httpx.Request] = []
    stop = Stop()
    ours = [True]

    def fence() -> None:
        if not ours[0]:
            raise LostError("job-lease-lost", "made up")

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        ours[0] = len(sent) < 2
        return httpx.Response(200)

    stop.fence = fence
    with ServiceClient(
        "send", tls=TlsConfig(), retry=RetryConfig(max_attempts=1), stop=stop, transport=httpx.MockTransport(answer)
    ) as client:
        for _ in range(2):
            client.send("POST", "http://127.0.0.1/x", operation="x", content=b"{}")
        with pytest.raises(LostError):
            client.send("POST", "http://127.0.0.1/x", operation="x", content=b"{}")
    assert len(sent) == 2
