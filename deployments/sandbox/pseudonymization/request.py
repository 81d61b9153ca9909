"""A request to ``$de-identify``: a resource, or Parameters that contain one."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from dataclasses import dataclass

from deployments.sandbox.common.json_text import JsonValue, decode_raw
from deployments.sandbox.pseudonymization.problem import MalformedResourceError, RuleFileError


@dataclass(frozen=True, repr=False)
class DeIdentifyRequest:
    """A parsed request."""

    resource: dict[str, JsonValue]
    config: bytes | None
    """The rule file; None: use the service's own."""

    @property
    def entries(self) -> int | None:
        """Number of entries of a Bundle."""
        return len(self._entries()) if self.resource.get("resourceType") == "Bundle" else None

    @property
    def types(self) -> dict[str, int]:
        """Number of resources by type."""
        resources = [entry.get("resource") for entry in self._entries() if isinstance(entry, dict)]
        kinds = [item.get("resourceType") for item in resources if isinstance(item, dict)]
        return dict(Counter(kind for kind in kinds if isinstance(kind, str)))

    def _entries(self) -> list[JsonValue]:
        entries = self.resource.get("entry")
        return entries if isinstance(entries, list) else []


def read_request(body: bytes, *, with_config: bool = True) -> DeIdentifyRequest:
    """Parse a body; without ``with_config`` the ``config`` is ignored.

    Raises ``MalformedResourceError``, and ``RuleFileError`` for a ``config`` without a file.
    """
    try:
        document = decode_raw(body)
    except (ValueError, RecursionError):
        raise MalformedResourceError("The body is not JSON.") from None
    if not isinstance(document, dict) or not isinstance(document.get("resourceType"), str):
        raise MalformedResourceError("Received malformed or missing resource.")
    if document["resourceType"] != "Parameters":
        return DeIdentifyRequest(document, None)
    parameters = document.get("parameter")
    named = _by_name(parameters if isinstance(parameters, list) else [])
    resource = named.get("resource", {}).get("resource")
    if not isinstance(resource, dict):
        raise MalformedResourceError("The Parameters contain no resource.")
    if "settings" in named:
        raise MalformedResourceError("The sandbox does not support settings; use the rules instead.")
    return DeIdentifyRequest(resource, _config(named["config"]) if with_config and "config" in named else None)


def _by_name(parameters: list[JsonValue]) -> dict[str, dict[str, JsonValue]]:
    named: dict[str, dict[str, JsonValue]] = {}
    for parameter in parameters:
        name = parameter.get("name") if isinstance(parameter, dict) else None
        if not isinstance(name, str) or name in named:
            raise MalformedResourceError("A parameter has no name or a duplicate name.")
        named[name] = parameter
    return named


def _config(parameter: dict[str, JsonValue]) -> bytes:
    attachment = parameter.get("valueAttachment")
    data = attachment.get("data") if isinstance(attachment, dict) else None
    if not isinstance(data, str):
        raise RuleFileError("config is not an attachment with data")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise RuleFileError("the data of config is not Base64") from None
