"""A client of one service of the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from deployments.sandbox.serve import serve_in_thread
from deployments.sandbox.service import SandboxService

JSON = "application/fhir+json"


class SandboxClient(httpx.Client):
    """An HTTP client of one service."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, trust_env=False, timeout=60, verify=False)

    def faults(self, *rules: dict[str, Any]) -> None:
        self.put("/_sandbox/faults", json=list(rules)).raise_for_status()

    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/_sandbox/requests").json()["requests"]
        return found


@pytest.fixture
def serve() -> Iterator[Callable[[SandboxService], SandboxClient]]:
    """Serve services for the length of a test."""
    with ExitStack() as stack:
        yield lambda service: stack.enter_context(SandboxClient(stack.enter_context(serve_in_thread(service)).url))


def diagnostics(answer: httpx.Response) -> str:
    """Return the text of the first issue of an OperationOutcome."""
    document = answer.json()
    assert document["resourceType"] == "OperationOutcome"
    return str(document["issue"][0]["diagnostics"])
