"""Errors in a rule file, a request or a value."""

from __future__ import annotations


class RuleFileError(Exception):
    """A rule file is invalid. The message names the rule and the reason, without its keys."""


class MalformedResourceError(Exception):
    """A document is not a valid FHIR R4 resource. The message names the element, never its content."""


class ProcessingFailureError(Exception):
    """A method cannot handle a value.

    *Quirk of the deployed service, kept:* ``diagnostics``, sent in the answer, quotes the value. The message does not.
    """

    def __init__(self, method: str, element: str, value: str) -> None:
        super().__init__(f"{method} of {element}")
        self.diagnostics = (
            f"An internal error occurred when processing the request: {method}: '{value}' of {element} cannot be "
            f"handled.\nAt: deployments.sandbox.pseudonymization"
        )
