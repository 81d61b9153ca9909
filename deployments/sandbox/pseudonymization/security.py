"""The labels in ``meta.security`` that say what happened to a resource, as the deployed service sets them."""

from __future__ import annotations

from typing import Any, Final, Literal

from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.pseudonymization.problem import MalformedResourceError

Label = Literal["REDACTED", "ABSTRED", "CRYTOHASH", "PERTURBED", "SUBSTITUTED", "GENERALIZED", "PSEUDED"]
"""What happened; the spelling of CRYTOHASH is HL7's."""

_SYSTEM = "http://terminology.hl7.org/CodeSystem/v3-ObservationValue"
_CODINGS: Final[dict[Label, dict[str, str]]] = {
    "REDACTED": {"system": _SYSTEM, "code": "REDACTED", "display": "redacted"},
    "ABSTRED": {"system": _SYSTEM, "code": "ABSTRED", "display": "abstracted"},
    "CRYTOHASH": {"system": _SYSTEM, "code": "CRYTOHASH", "display": "cryptographic hash function"},
    "PERTURBED": {"code": "PERTURBED", "display": "exact value is replaced with another exact value"},
    "SUBSTITUTED": {"code": "SUBSTITUTED", "display": "exact value is replaced with a predefined value"},
    "GENERALIZED": {"code": "GENERALIZED", "display": "exact value is replaced with a general value"},
    "PSEUDED": {"system": _SYSTEM, "code": "PSEUDED", "display": "pseudonymized"},
}


def add_labels(resource: dict[str, JsonValue], labels: set[Label]) -> None:
    """Write the labels into a resource, each once, in the order above. Raises ``MalformedResourceError``."""
    if not labels:
        return
    meta = resource.setdefault("meta", {})
    security: Any = meta.setdefault("security", []) if isinstance(meta, dict) else None
    if not isinstance(security, list):
        raise MalformedResourceError("meta.security is not a list of codings.")
    present = {str(coding.get("code")).upper() for coding in security if isinstance(coding, dict)}
    security.extend(dict(_CODINGS[label]) for label in _CODINGS if label in labels and label not in present)
