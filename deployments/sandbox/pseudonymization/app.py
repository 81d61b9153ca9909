"""The sandbox pseudonymization service over HTTP.

``POST /fhir/$de-identify`` takes a resource, or Parameters with ``resource`` and a rule file as attachment ``config``,
and answers 200 with the resource after the rules. 400: no resource, or a rule file that is invalid or not supported;
500: a value that a method cannot handle, quoted in the answer as in the deployed service, but never in a log.
"""

from __future__ import annotations

import base64
import secrets
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.responses import Response

from deployments.sandbox.data import ANONYMIZATION_RULES
from deployments.sandbox.pseudonymization.nodes import Json
from deployments.sandbox.pseudonymization.rules import ProcessingError, RuleFileError, Rules
from deployments.sandbox.service import (
    FHIR_JSON,
    Call,
    FhirProblem,
    SandboxService,
    operations,
)

MAX_BODY: Final = 30_000_000
"""Largest request body in bytes, as in the deployed service."""
_decoder: Final = msgspec.json.Decoder(float_hook=Decimal)
_encoder: Final = msgspec.json.Encoder(decimal_format="number")


class Pseudonymizer:
    """One process of the service, without HTTP. ``rules`` are its own; raises ``RuleFileError`` if they are invalid.

    ``domains`` are those that exist in the pseudonym service behind it (``None``: all). ``ignores_config``: behave like
    a service before 2.34.0.
    """

    def __init__(self, rules: str, domains: frozenset[str] | None = None, *, ignores_config: bool = False) -> None:
        self._key = secrets.token_hex(16)  # for rule files without one
        self._domains = domains
        self._ignores_config = ignores_config
        self._own = Rules(rules, self._key, domains)

    def deidentify(self, body: bytes) -> tuple[Json, bytes]:
        """Return the resource of a request body, and the answer. Raises ``FhirProblem``."""
        resource, config = _read(body)
        try:
            is_own = config is None or self._ignores_config
            rules = self._own if is_own else Rules((config or b"").decode(), self._key, self._domains)
        except (RuleFileError, UnicodeDecodeError) as error:
            text = f"Failed to parse the received config attachment: {error}"
            raise FhirProblem(400, "processing", text) from None
        try:
            return resource, _encoder.encode(rules.apply(resource))
        except ProcessingError as error:
            raise FhirProblem(500, "processing", f"An internal error occurred: {error}", severity="fatal") from None


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


def pseudonymization_service(*, ignores_config: bool = False) -> SandboxService:
    """Return the pseudonymization service; its own rules are those for the demo data."""
    rules = ANONYMIZATION_RULES.read_text(encoding="utf-8")
    pseudonymizer = Pseudonymizer(rules, ignores_config=ignores_config)

    def answered(call: Call) -> Response:
        call.check_json()
        resource, answer = pseudonymizer.deidentify(call.body)
        entries = resource.get("entry")
        call.entry.entries = len(entries) if isinstance(entries, list) else None
        return Response(answer, headers={"content-type": FHIR_JSON})

    endpoints = [("POST", "/fhir/$de-identify", answered)]
    rest = {"operation": operations("de-identify")}
    return SandboxService("pseudonymizer", endpoints, max_body=MAX_BODY, rest=rest)
