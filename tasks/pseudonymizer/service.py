"""``$de-identify``: one resource to the pseudonymization service and back (docs/services.md)."""

from __future__ import annotations

import base64
import threading
import time
from typing import Final

from config import PipelineConfig
from tasks.pseudonymizer.rules import AnonymizationRules
from tasks.shared.blanked import remember_text
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import Call, ServiceClient

OPERATION: Final = "$de-identify"
HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"}


def endpoint(config: PipelineConfig) -> str:
    """Return the URL of the operation."""
    return f"{(config.services.pseudonymizer.url or '').rstrip('/')}/fhir/{OPERATION}"


class Deidentify:
    """The calls of a step, at most ``max_concurrent_requests`` at once; thread-safe. Without ``rules`` the service uses
    its own."""

    def __init__(self, client: ServiceClient, config: PipelineConfig, rules: AnonymizationRules | None) -> None:
        self.config = config
        self.rules = rules
        self.url = endpoint(config)
        self._client = client
        self._slots = threading.Semaphore(config.services.pseudonymizer.max_concurrent_requests)
        self._envelope = _envelope(rules.content) if rules is not None else (b"", b"")
        for secret in (base64.b64encode(rules.content).decode(), *rules.keys) if rules is not None else ():
            remember_text(secret)

    def __call__(self, resource: bytes) -> Answer:
        """Send one resource. Raises what ``ServiceClient.send`` raises."""
        head, tail = self._envelope
        body = b"".join((head, resource, tail))
        with self._slots:
            answer = self._client.send(Call("POST", self.url, OPERATION, body, HEADERS))
        time.sleep(0)  # the next request goes out before this answer is checked
        return answer

    def with_rules(self, content: bytes, resource: bytes, accept: frozenset[int]) -> Answer:
        """Send one resource with other rules, for a test of the service; ``accept`` as in ``ServiceClient.send``."""
        head, tail = _envelope(content)
        return self._client.send(Call("POST", self.url, "test request", head + resource + tail, HEADERS, accept=accept))


def _envelope(rules: bytes) -> tuple[bytes, bytes]:
    """Return the text before and after a resource in a Parameters resource with rules."""
    head = (
        b'{"resourceType":"Parameters","parameter":[{"name":"config","valueAttachment":'
        b'{"contentType":"application/yaml","data":"%b"}},{"name":"resource","resource":'
    )
    return head % base64.b64encode(rules), b"}]}"
