"""The sandbox pseudonymization service over HTTP.

``POST /fhir/$de-identify`` takes a resource, or Parameters with ``resource`` and a rule file as attachment ``config``,
and answers 200 with the resource after the rules. 400: no resource, or a rule file that is invalid or not supported;
500: a value that a method cannot handle, quoted in the answer as in the deployed service, but never in a log.
"""

from __future__ import annotations

import base64
import itertools
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.responses import Response

from deployments.sandbox.child import SandboxStartError
from deployments.sandbox.credentials import OPEN, Credentials
from deployments.sandbox.data import ANONYMIZATION_RULES
from deployments.sandbox.pseudonymization.nodes import Json
from deployments.sandbox.pseudonymization.rules import ProcessingError, RuleFileError, Rules
from deployments.sandbox.service import (
    FHIR_JSON,
    Call,
    FhirProblem,
    SandboxService,
    capability_statement,
    json_answer,
)

MAX_BODY: Final = 30_000_000
"""Largest request body in bytes, as in the deployed service."""
_decoder: Final = msgspec.json.Decoder(float_hook=Decimal)
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True)
class PseudonymizerSettings:
    """How the service is set up: its own rule file (YAML), and what it and the pseudonym service behind it are like.

    ``domains`` are those that exist in the pseudonym service; ``None``: each does. ``newest`` answers 422 for a missing
    one. ``ignores_config`` is a service before 2.34.0. ``escapes`` has the second serializer of the service. With
    ``replicas`` each request goes to the next process, and each process makes the keys that the rules do not give at
    its start.
    """

    rules: str = "fhirPathRules: [{path: Resource, method: redact}]"
    domains: frozenset[str] | None = None
    newest: bool = False
    ignores_config: bool = False
    escapes: bool = False
    replicas: int = 1


class Pseudonymizer:
    """The service without HTTP. Raises ``RuleFileError`` for its own rule file."""

    def __init__(self, settings: PseudonymizerSettings) -> None:
        self.settings = settings
        self._numbers = itertools.count()
        self.restart()

    def restart(self) -> None:
        """Start all processes again, with new random keys."""
        keys = [secrets.token_hex(16) for _ in range(self.settings.replicas)]
        self._processes = [(key, Rules(self.settings.rules, key, self.settings.domains)) for key in keys]

    def deidentify(self, body: bytes) -> tuple[Json, bytes]:
        """Return the resource of a request body, and the answer. Raises ``FhirProblem``."""
        key, own = self._processes[next(self._numbers) % len(self._processes)]
        resource, config = _read(body)
        try:
            sent = config is not None and not self.settings.ignores_config
            rules = Rules((config or b"").decode(), key, self.settings.domains) if sent else own
        except (RuleFileError, UnicodeDecodeError) as error:
            text = f"Failed to parse the received config attachment: {error}"
            raise FhirProblem(400, "processing", text) from None
        try:
            made = rules.apply(resource)
        except ProcessingError as error:
            status = 422 if self.settings.newest else 500
            raise FhirProblem(status, "processing", f"An internal error occurred: {error}", severity="fatal") from None
        answer = _encoder.encode(made)
        return resource, _escaped(answer) if self.settings.escapes else answer


def _read(body: bytes) -> tuple[Json, bytes | None]:
    """Return resource and rule file of a request. Raises ``FhirProblem`` 400."""
    try:
        document = _decoder.decode(body)
    except (ValueError, RecursionError):
        raise FhirProblem(400, "processing", "The body is not JSON.") from None
    if not isinstance(document, dict) or not isinstance(document.get("resourceType"), str):
        raise FhirProblem(400, "processing", "Received malformed or missing resource.")
    if document["resourceType"] != "Parameters":
        return document, None
    named: dict[Any, Any] = {each.get("name"): each for each in document.get("parameter", ()) if isinstance(each, dict)}
    resource = named.get("resource", {}).get("resource")
    if not isinstance(resource, dict) or named.keys() - {"resource", "config"}:
        text = "The sandbox supports Parameters with a resource and, optionally, a config."
        raise FhirProblem(400, "processing", text)
    if "config" not in named:
        return resource, None
    try:
        return resource, base64.b64decode(named["config"]["valueAttachment"]["data"], validate=True)
    except (KeyError, TypeError, ValueError):
        raise FhirProblem(400, "processing", "config is not an attachment with data in Base64.") from None


def _escaped(text: bytes) -> bytes:
    """Return JSON as the second serializer of the service writes it."""

    def units(found: re.Match[str]) -> str:
        return re.sub("....", r"\\u\g<0>", found[0].encode("utf-16-be").hex().upper())

    return re.sub(r"[^\x00-\x7f]|[+<>&']", units, text.decode()).encode()


class _PseudonymizationServer:
    def __init__(self, settings: PseudonymizerSettings, credentials: Credentials) -> None:
        self._settings = settings
        endpoints = [("POST", "/fhir/$de-identify", self._deidentify), ("GET", "/fhir/metadata", self._metadata)]
        self.service = SandboxService("pseudonymizer", endpoints, credentials, opened=self._opened, max_body=MAX_BODY)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        try:
            self._pseudonymizer = Pseudonymizer(self._settings)
        except RuleFileError as error:
            raise SandboxStartError(f"the pseudonymization service's rule file cannot be used: {error}") from None
        yield

    def _metadata(self, call: Call) -> Response:
        operation = {"name": "de-identify", "definition": f"{call.root}/fhir/OperationDefinition/de-identify"}
        return json_answer(capability_statement(self.service, f"{call.root}/fhir", operation=[operation]))

    def _deidentify(self, call: Call) -> Response:
        call.check_json()
        resource, answer = self._pseudonymizer.deidentify(call.body)
        entries = resource.get("entry")
        call.entry.entries = len(entries) if isinstance(entries, list) else None
        return Response(answer, headers={"content-type": FHIR_JSON})


def pseudonymization_service(
    credentials: Credentials = OPEN, *, rules: str | None = None, ignores_config: bool = False
) -> SandboxService:
    """Return the pseudonymization service; without ``rules`` it has those for the demo data."""
    rules = ANONYMIZATION_RULES.read_text(encoding="utf-8") if rules is None else rules
    return _PseudonymizationServer(PseudonymizerSettings(rules, ignores_config=ignores_config), credentials).service
