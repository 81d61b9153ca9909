"""The one way in which the FHIR server says no: an OperationOutcome."""

from __future__ import annotations

from typing import Any

import msgspec


class FhirProblem(Exception):  # noqa: N818 - what the client did, not what failed here
    """A request, or an entry of a batch, that is refused: HTTP status, issue code, what a developer reads.

    The sandbox names references and ids in ``diagnostics``, as the servers it stands in for do; it never
    writes them to a log.
    """

    def __init__(self, status: int, code: str, diagnostics: str, *, details: str | None = None) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.diagnostics = diagnostics
        self.details = details

    def outcome(self) -> dict[str, Any]:
        """The OperationOutcome, ready for JSON."""
        issue: dict[str, Any] = {"severity": "error", "code": self.code, "diagnostics": self.diagnostics}
        if self.details is not None:
            issue["details"] = {"text": self.details}
        return {"resourceType": "OperationOutcome", "issue": [issue]}

    def body(self) -> bytes:
        """The OperationOutcome as JSON."""
        return msgspec.json.encode(self.outcome())
