"""Check that an answer agrees with its request (document 3 §4, "What must agree in every answer").

An answer is taken only when it is JSON, says so, is a resource of the type that was sent, and, for a Bundle, has as
many entries, with resources of the same types in the same order; fewer only when the anonymization file has a
``remove`` rule. The made-up resource's answer is checked the same way.
"""

from __future__ import annotations

import codecs
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tasks.pseudonymizer.answer_check import OutlineError, ResourceSummary, outline_of
from tasks.pseudonymizer.residual_identifiers import PersonNumbers, Residuals
from tasks.shared.errors import ReconciliationError, ServiceError, SluiceError
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.http.answer import Answer

_OK: Final = 200
_ANOTHER: Final = "is services.pseudonymizer.url the service itself?"
_FEWER: Final = "only a remove rule of services.pseudonymizer.anonymization_config may make them fewer."
_EMPTIED: Final = (
    "A rule may remove an entry, but not the resource of an entry alone: check the remove rules of "
    "services.pseudonymizer.anonymization_config, or those that the service itself has."
)


class WrongAnswerError(Exception):
    """An answer that does not agree with what was sent. Its text continues "the service gave", and quotes nothing.

    ``kind`` is the error it becomes, ``reference`` and ``hint`` are that error's.
    """

    def __init__(
        self,
        what: str,
        kind: type[SluiceError] = ServiceError,
        reference: str = "pseudonymizer-answer",
        hint: str = _ANOTHER,
    ) -> None:
        super().__init__(what)
        self.kind = kind
        self.reference = reference
        self.hint = hint


@dataclass(frozen=True)
class Agreement:
    """The rules that all answers must agree with. Thread-safe. ``removes`` says that entries may disappear."""

    removes: bool = False
    residuals: Residuals = field(default_factory=Residuals)

    def check(
        self, answer: Answer, given: ResourceSummary, numbers: PersonNumbers | None = None
    ) -> tuple[ResourceSummary, set[str]]:
        """Return what the service made of the resource ``given``, and at which paths identifiers stay; ``numbers`` are
        those of the Bundle of which it is a part. Raises ``WrongAnswerError``.
        """
        if answer.status != _OK:  # 202 is a promise
            raise WrongAnswerError("no result")
        if not answer.says_json:
            raise WrongAnswerError("an answer that is not JSON by its Content-Type")
        try:
            received = outline_of(answer.body.removeprefix(codecs.BOM_UTF8))
            left = self.residuals.paths(given, received, numbers)
        except UNREADABLE:
            raise WrongAnswerError("a value that cannot be read") from None
        except OutlineError as problem:
            raise WrongAnswerError(f"an answer that {problem}") from None
        self._compare_kinds(given, received)
        return received, left

    def _compare_kinds(self, given: ResourceSummary, received: ResourceSummary) -> None:
        if received.type != given.type:
            outcome = received.type == "OperationOutcome"
            what = "an OperationOutcome" if outcome else "a resource of another type"
            raise WrongAnswerError(f"{what} instead of a {given.type}")
        if received.bundle_type not in (given.bundle_type, None):
            raise WrongAnswerError("a Bundle of another type")
        before, after = given.entries, received.entries
        if after > before or (after < before and not self.removes):
            what = f"{after:,} entries for the {before:,} that were sent"
            raise WrongAnswerError(what, ReconciliationError, "pseudonymizer-entries", _FEWER)
        if received.entries - received.resources > given.entries - given.resources:
            raise WrongAnswerError("an entry without the resource that was sent in it", hint=_EMPTIED)
        same = received.types == given.types
        if not same and (after == before or Counter(received.types) - Counter(given.types)):
            raise WrongAnswerError("resources of other types, or in another order")
