"""What a rule file, a request or a value can do wrong."""

from __future__ import annotations


class RuleFileError(Exception):
    """A rule file that cannot be applied as it stands; the message says which rule and why, without its keys."""


class MalformedResourceError(Exception):
    """A document that is not a FHIR R4 resource; the message names the element, never its content."""


class ProcessingFailureError(Exception):
    """A value that a method cannot handle.

    *Quirk of the deployed service, kept:* ``diagnostics``, which the answer carries, quotes the value. The message
    does not.
    """

    def __init__(self, method: str, element: str, value: str) -> None:
        super().__init__(f"{method} of {element}")
        self.diagnostics = (
            f"An internal error occurred when processing the request: {method}: '{value}' of {element} cannot be "
            f"handled.\nAt: deployments.sandbox.pseudonymization"
        )
