"""Services of the sandbox, and their own endpoints: faults, received requests, stored resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from deployments.sandbox.serve import serve_in_thread

PATIENCE = 60
"""Seconds for an answer of the sandbox: it shares its processors with everything else."""


@dataclass
class Sandboxed:
    """A service of the sandbox, wherever it runs."""

    url: str

    def call_sandbox(self, method: str, what: str, **options: Any) -> httpx.Response:
        """Use an endpoint of the sandbox's own."""
        with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
            return client.request(method, f"{self.url}/_sandbox/{what}", **options).raise_for_status()

    def faults(self, *rules: dict[str, Any]) -> None:
        """Inject faults; without any, none."""
        self.call_sandbox("PUT", "faults", json=list(rules))

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests so far, without payloads."""
        found: list[dict[str, Any]] = self.call_sandbox("GET", "requests").json()["requests"]
        return found

    def forget(self) -> None:
        """Delete the log of requests so far."""
        self.call_sandbox("DELETE", "requests")

    def posts(self) -> list[dict[str, Any]]:
        """Of it the POST requests: the transactions of a FHIR server."""
        return [request for request in self.requests() if request["method"] == "POST"]

    def resources(self) -> dict[str, bytes]:
        """Return the stored resources of a FHIR server, byte for byte, by ``Type/id``."""
        found = {}
        for line in self.call_sandbox("GET", "resources").content.splitlines():
            document = json.loads(line)
            found[f"{document['resourceType']}/{document['id']}"] = line
        return found


@contextmanager
def sandboxed(**applications: Any) -> Iterator[dict[str, Sandboxed]]:
    """Applications that are served, by their names."""
    with ExitStack() as stack:
        yield {name: Sandboxed(stack.enter_context(serve_in_thread(app)).url) for name, app in applications.items()}
