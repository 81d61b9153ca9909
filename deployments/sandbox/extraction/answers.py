"""How the extraction server reads requests and answers them."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from deployments.sandbox.common.json_text import encode
from deployments.sandbox.common.request import FhirRequest, answer

FHIR_JSON = "application/fhir+json"
JSON = "application/json"


def said(document: object, status: int = 200, headers: dict[str, str] | None = None, kind: str = FHIR_JSON) -> Response:
    """A JSON document as an answer."""
    return answer(encode(document), status, headers, kind)


def issue(severity: str, code: str, diagnostics: str) -> dict[str, Any]:
    """One issue of an OperationOutcome."""
    return {"severity": severity, "code": code, "diagnostics": diagnostics}


def outcome(issues: Any) -> dict[str, Any]:
    """An OperationOutcome."""
    return {"resourceType": "OperationOutcome", "issue": list(issues)}


def root_url(request: FhirRequest, public_url: str | None) -> str:
    """The URL that the client used; a proxy in between, as in front of real servers, tells it in ``X-Forwarded-…``.

    ``public_url``: the root URL, whatever the client says.
    """
    if public_url:
        return public_url

    def forwarded(what: str) -> str:
        return request.headers.get(f"x-forwarded-{what}", "").partition(",")[0].strip()

    prefix = "".join(f"/{part}" for part in forwarded("prefix").split("/") if part)
    here = request.base_url
    return f"{forwarded('proto') or here.scheme}://{forwarded('host') or here.netloc}{prefix}"
