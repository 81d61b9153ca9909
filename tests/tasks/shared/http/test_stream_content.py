"""A body to ask a ``stream`` with, in attempts that the caller counts (document 3 §1 and §5)."""

from __future__ import annotations

from config import RetryConfig, TlsConfig
from tasks.shared.http.client import ServiceClient
from tasks.shared.meter import Meter
from tests.peers.server import Reply, loopback


def test_a_stream_sends_its_content_once_and_counts_as_the_attempt_it_is() -> None:
    content = b"{}" + b" " * 3_000_000  # larger than what is written at once
    meter = Meter()
    with (
        loopback(lambda seen: Reply(200, seen.body[:2])) as listening,
        ServiceClient("flattening", tls=TlsConfig(), retry=RetryConfig(), meter=meter) as client,
    ):
        for attempt in (1, 2, 3):
            with client.stream(
                "POST", f"{listening.url}/x", operation="$run", content=content, attempt=attempt
            ) as response:
                assert b"".join(response.iter_raw()) == b"{}"
        assert [(seen.method, len(seen.body)) for seen in listening.seen] == [("POST", len(content))] * 3
    assert (meter.requests, meter.retries) == (3, 2)
