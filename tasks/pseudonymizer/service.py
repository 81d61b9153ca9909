"""``$de-identify``: one resource to the pseudonymization service and back (document 3 §4)."""

from __future__ import annotations

import base64
from typing import Final

from config import PipelineConfig
from tasks.pseudonymizer.rules import AnonymizationRules
from tasks.shared.blanked import SECRETS
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import ServiceClient

OPERATION: Final = "$de-identify"
HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/fhir+json"}
_LEAST_ANSWER: Final = 64 << 20


def endpoint(config: PipelineConfig) -> str:
    """Return the URL of the operation."""
    return f"{(config.services.pseudonymizer.url or '').rstrip('/')}/fhir/{OPERATION}"


def body_of(rules: bytes | None, resource: bytes) -> bytes:
    """Return a request body: the resource, in Parameters with the anonymization file if there is one."""
    if rules is None:
        return resource
    return (
        b'{"resourceType":"Parameters","parameter":[{"name":"config","valueAttachment":'
        b'{"contentType":"application/yaml","data":"%b"}},{"name":"resource","resource":%b}]}'
    ) % (base64.b64encode(rules), resource)


class Deidentify:
    """The calls of a step, with ``rules`` or with the service's own. Thread-safe."""

    def __init__(self, client: ServiceClient, url: str, rules: AnonymizationRules | None) -> None:
        self._client = client
        self._url = url
        self._rules = rules.content if rules is not None else None
        if rules is not None:
            for secret in (base64.b64encode(rules.content).decode(), *rules.keys):
                SECRETS.text(secret)

    def __call__(self, resource: bytes) -> Answer:
        """Send one resource. Raises what ``ServiceClient.send`` raises."""
        return self._client.send(
            "POST",
            self._url,
            operation=OPERATION,
            content=body_of(self._rules, resource),
            headers=HEADERS,
            max_answer_bytes=max(_LEAST_ANSWER, 4 * len(resource)),  # a pretty-printed answer is larger
        )
