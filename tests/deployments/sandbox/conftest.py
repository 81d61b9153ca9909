"""A FHIR server over real HTTP, and a simple client for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import FhirOptions, fhir_service


class SandboxClient(httpx.Client):
    """An HTTP client of one service."""

    def __init__(self, url: str) -> None:
        super().__init__(base_url=url, trust_env=False, timeout=60)

    def bundle(self, *entries: tuple[str, str, str | bytes | None], kind: str = "transaction", **headers: str) -> Any:
        """POST a Bundle of (method, url, resource) entries."""
        return self.post("/fhir", content=bundle(*entries, kind=kind), headers={"content-type": JSON, **headers})

    def store(self, path: str, body: str, **headers: str) -> httpx.Response:
        """PUT a resource."""
        return self.put(f"/fhir/{path}", content=body.encode(), headers={"content-type": JSON, **headers})

    def faults(self, *rules: dict[str, Any]) -> None:
        """Set the fault rules."""
        self.put("/_sandbox/faults", json=list(rules)).raise_for_status()

    def request_log(self) -> Any:
        """Return the request log."""
        return self.get("/_sandbox/requests").json()

    def counts(self) -> Any:
        """Return the number of resources by type."""
        return self.get("/_sandbox/counts").json()


JSON = "application/fhir+json"


def bundle(*entries: tuple[str, str, str | bytes | None], kind: str = "transaction") -> bytes:
    """Return a Bundle as bytes, with resources in their original spelling."""
    parts = []
    for method, url, resource in entries:
        request = f'"request":{{"method":{json.dumps(method)},"url":{json.dumps(url)}}}'.encode()
        body = resource.encode() if isinstance(resource, str) else resource
        parts.append(b"{" + request + (b',"resource":' + body if body is not None else b"") + b"}")
    return b'{"resourceType":"Bundle","type":"' + kind.encode() + b'","entry":[' + b",".join(parts) + b"]}"


Start = Callable[..., SandboxClient]


@contextmanager
def starting(
    make: Callable[..., Starlette], options: Callable[..., Any], client: Callable[[str], Any] = SandboxClient
) -> Iterator[Callable[..., Any]]:
    """Yield a function that starts a service with options and credentials; a test can start several."""
    with ExitStack() as stack:

        def begin(gate: RequiredCredentials | None = None, **chosen: Any) -> Any:
            return stack.enter_context(client(stack.enter_context(serve_in_thread(make(options(**chosen), gate))).url))

        yield begin


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a FHIR server."""
    with starting(fhir_service, FhirOptions) as begin:
        yield begin


@pytest.fixture
def fhir(start: Start) -> SandboxClient:
    """A FHIR server with HAPI manners and no state."""
    return start()
