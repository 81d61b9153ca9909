"""Check that an answer agrees with its request (document 3 §4, "What must agree in every answer").

An answer is taken only when it is JSON, says so, is a resource of the type that was sent without a key that stands
twice, and, for a Bundle, has as many entries, with resources of the same types in the same order; fewer only when the
anonymization file has a ``remove`` rule. Ids and references must agree with those of all answers before
(``identity.py``), and a Bundle with one Patient must not name another one. The made-up resource's answer is checked
the same way.
"""

from __future__ import annotations

import codecs
import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tasks.pseudonymizer.answer_check import OutlineError, ResourceSummary, outline_of
from tasks.pseudonymizer.identity import IdentityMap, IdentityVerdict
from tasks.pseudonymizer.pairing import by_path, by_text, has_foreign_patient, paired_resources, paired_urls
from tasks.pseudonymizer.residual_identifiers import PersonNumbers, Residuals
from tasks.shared.errors import DataError, ReconciliationError, ServiceError, SluiceError
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.fhir.references import FOREIGN
from tasks.shared.fhir.sources import names_foreign_patient
from tasks.shared.http.answer import Answer

_OK: Final = 200
_ANOTHER: Final = "is services.pseudonymizer.url the service itself?"
_FEWER: Final = (
    "only a remove rule of services.pseudonymizer.anonymization_config may make them fewer, and only those of the "
    "types that it names."
)
_EMPTIED: Final = (
    "A rule may remove an entry, but not the resource of an entry alone: check the remove rules of "
    "services.pseudonymizer.anonymization_config, or those that the service itself has."
)
_CORRECT: Final = "correct the data where it comes from, and import it again"
_DIFFERS: Final = (
    "An id must become the same new id in all answers, and references must follow it: do the rules treat ids and "
    "references alike, and do they have a key?"
)


class MixedUpError(ServiceError):
    """Two answers contradict each other: one that was taken before may be the wrong one."""


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
    """The rules that all answers must agree with. Thread-safe.

    ``removes`` says that entries may disappear, ``removed_types`` of which types alone; ``identities`` what the answers
    before made of ids.
    """

    removes: bool = False
    removed_types: frozenset[str] | None = None
    residuals: Residuals = field(default_factory=Residuals)
    identities: IdentityMap = field(default_factory=IdentityMap)

    def check(
        self, answer: Answer, given: ResourceSummary, numbers: PersonNumbers | None = None
    ) -> tuple[ResourceSummary, Mapping[str, set[int]]]:
        """Return what the service made of the resource ``given``, and whose identifiers stay, by path; ``numbers`` are
        those of the Bundle of which it is a part.

        Raises ``WrongAnswerError``, and ``DataError`` without a context where what was sent names a foreign patient.
        """
        if answer.status != _OK:  # 202 is a promise
            raise WrongAnswerError("no result")
        if not answer.says_json:
            raise WrongAnswerError("an answer that is not JSON by its Content-Type")
        try:
            received = outline_of(answer.body.removeprefix(codecs.BOM_UTF8))
            left = self.residuals.owners(given, received, numbers)
        except UNREADABLE:
            raise WrongAnswerError("a value that cannot be read") from None
        except OutlineError as problem:
            raise WrongAnswerError(f"an answer that {problem}") from None
        self._compare_kinds(given, received)
        self._compare_identities(given, received, is_part=numbers is not None)
        return received, left

    def _compare_kinds(self, given: ResourceSummary, received: ResourceSummary) -> None:
        if received.type != given.type:
            outcome = received.type == "OperationOutcome"
            what = "an OperationOutcome" if outcome else "a resource of another type"
            raise WrongAnswerError(f"{what} instead of a {given.type}")
        if received.bundle_type not in (given.bundle_type, None):
            raise WrongAnswerError("a Bundle of another type")
        before, after = given.entries, received.entries
        if after > before or (after < before and not self._may_lack(given, received)):
            what = f"{after:,} entries for the {before:,} that were sent"
            raise WrongAnswerError(what, ReconciliationError, "pseudonymizer-entries", _FEWER)
        if received.entries - received.resources > given.entries - given.resources:
            raise WrongAnswerError("an entry without the resource that was sent in it", hint=_EMPTIED)
        same = received.types == given.types
        if not same and (after == before or Counter(received.types) - Counter(given.types)):
            raise WrongAnswerError("resources of other types, or in another order")

    def _may_lack(self, given: ResourceSummary, received: ResourceSummary) -> bool:
        """Return whether a rule explains the entries that are missing."""
        missing = Counter(given.types) - Counter(received.types)
        return self.removes and (self.removed_types is None or missing.keys() <= self.removed_types)

    def _compare_identities(self, given: ResourceSummary, received: ResourceSummary, *, is_part: bool) -> None:
        """Raise when ids and references are not what the service made of them before, or name a foreign patient."""
        # A Bundle of mother and child may become one of the child alone: by a rule, or in parts.
        foreign = given.types.count("Patient") == 1 and has_foreign_patient(received)
        if foreign and is_part and names_foreign_patient(given.text):
            foreign = False
        resources, urls = paired_resources(given, received), {*paired_urls(given, received)}
        pairs = by_text(given, received, urls) if resources.indexes is None else None
        agree = functools.partial(self.identities.agree, resources.originals, resources.news, enter=not foreign)
        verdict = agree(pairs, by_text=True) if pairs is not None else IdentityVerdict.UNSURE
        if verdict is IdentityVerdict.UNSURE:
            try:
                found = by_path(given, received, resources, urls)
            except UNREADABLE:
                raise WrongAnswerError("references that cannot be read") from None
            except OutlineError as problem:
                raise WrongAnswerError(f"an answer that {problem}") from None
            verdict = agree(found.pairs, [*resources.loose, *found.loose])
        if verdict is not IdentityVerdict.AGREES:
            kind = MixedUpError if verdict in (IdentityVerdict.TAKEN, IdentityVerdict.DIFFERS) else ServiceError
            if verdict in (IdentityVerdict.TAKEN, IdentityVerdict.TAKEN_HERE):
                raise WrongAnswerError(verdict.value, kind)
            raise WrongAnswerError(verdict.value, kind, "references-differ", _DIFFERS)
        if foreign and names_foreign_patient(given.text):
            raise DataError("foreign-patient-in-bundle", FOREIGN, hint=_CORRECT)
        if foreign:
            what = "a Bundle with a resource of a foreign patient"
            raise WrongAnswerError(what, reference="foreign-patient-in-bundle")
