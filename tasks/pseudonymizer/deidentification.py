"""Process a chunk in a worker: send it, check the answer, and halve it if it is too large for the service.

``agreement.py`` decides which answers are accepted. Every error names file, line and resource type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tasks.pseudonymizer.affected import Affected
from tasks.pseudonymizer.agreement import Agreement, WrongAnswerError
from tasks.pseudonymizer.answer_check import OutlineError, ResourceSummary, outline_of
from tasks.pseudonymizer.client import OPERATION
from tasks.pseudonymizer.pairing import survivors
from tasks.pseudonymizer.residual_identifiers import PersonNumbers, numbers_in
from tasks.pseudonymizer.splitting import BundlePiece, RequestChunk, piece_of
from tasks.shared.errors import DataError, ServiceError, SluiceError
from tasks.shared.fhir.envelope import open_bundle
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer

_TOO_LARGE: Final = 413
_REFUSED: Final = 400

Counts = Counter[str]
"""Counters of a file. The ledger and the details of the step use the same names."""


@dataclass(frozen=True, slots=True)
class Deidentified:
    """The result of a chunk: the line in ``whole`` if one request contained all of it, otherwise ``pieces``."""

    place: str
    line: int
    first: bool
    last: bool
    counts: Counts
    whole: bytes | None = field(default=None, repr=False)
    pieces: tuple[BundlePiece, ...] = ()


class Deidentification:
    """Pseudonymize chunks with the service. Thread-safe.

    ``agreement`` checks the answers. ``affected`` counts the patients whose identifiers remain in them.
    """

    def __init__(
        self,
        call: Callable[[bytes], Answer],
        failed: FailedAnswers,
        agreement: Agreement | None = None,
        affected: Affected | None = None,
    ) -> None:
        self._call = call
        self._failed = failed
        self._agreement = agreement or Agreement()
        self._affected = affected or Affected()
        self._refused_size = 0

    def __call__(self, chunk: RequestChunk) -> Deidentified:
        """Return the pseudonymized chunk.

        Raises:
            DataError: the chunk is not a FHIR resource.
            ServiceError: the service refuses the request, or its answer cannot be used.
            TransientError: the service is busy or cannot be reached.
            ReconciliationError: entries are missing in the answer.
        """
        given = _sent_outline(chunk.text, chunk.place)
        counts: Counts = Counter(bytes_in=chunk.size, resources_in=given.resources, alone=chunk.alone)
        texts = self._texts(given, chunk, chunk.first_entry, counts, chunk.numbers)
        if len(texts) == 1 and not chunk.split:
            return Deidentified(chunk.place, chunk.line, True, True, counts, whole=texts[0][0])
        counts["split"] = chunk.last
        if chunk.last and chunk.numbers is not None:
            counts["too_many_numbers"] += chunk.numbers.full
        pieces = tuple(piece_of(text, entries) for text, entries in texts)
        return Deidentified(chunk.place, chunk.line, chunk.part == 0, chunk.last, counts, pieces=pieces)

    def _texts(
        self, given: ResourceSummary, chunk: RequestChunk, first: int, counts: Counts, numbers: PersonNumbers | None
    ) -> list[tuple[bytes, int]]:
        """Return the answer for a resource with its number of entries, as several texts if the request was halved."""
        text = given.text
        divisible = given.entries > 1 and given.is_bundle
        place = _place(chunk, given, first)
        if not (divisible and 0 < self._refused_size <= len(text)):
            try:
                answer = self._call(text)
            except SluiceError as error:
                if error.answered != _TOO_LARGE:
                    self._locate(error, place, text)
                    raise
                if not divisible:
                    raise self._indivisible(error, place) from None
                # Requests of this size or more are halved at once from now on, without being sent first.
                self._refused_size = min(self._refused_size or len(text), len(text))
            else:
                return [self._check(given, answer, place, counts, numbers)]
        envelope, pieces = open_bundle(text)
        if numbers is None:
            numbers = numbers_in(pieces)
            counts["too_many_numbers"] += numbers.full
        middle = len(pieces) // 2
        halves = (envelope.close(pieces[:middle]), first), (envelope.close(pieces[middle:]), first + middle)
        del pieces  # the entries are in the halves now
        found: list[tuple[bytes, int]] = []
        for half, start in halves:
            found += self._texts(_sent_outline(half, place), chunk, start, counts, numbers)
        return found

    def _check(
        self, given: ResourceSummary, answer: Answer, place: str, counts: Counts, numbers: PersonNumbers | None
    ) -> tuple[bytes, int]:
        """Return the received resource as one line, with its number of entries."""
        try:
            received, left = self._agreement.check(answer, given, numbers)
        except WrongAnswerError as wrong:
            raise self._unusable(answer, (place, given.text), wrong) from None
        except DataError as error:
            error.context = place
            raise
        body = received.text
        # In JSON text a literal line break is only ever white space between tokens (document 3 §1).
        line = body.translate(None, b"\r\n") if b"\n" in body or b"\r" in body else body
        counts["resources_out"] += received.resources
        counts.update(survivors(given, received))
        if left:
            counts.update({path: len(owners) for path, owners in left.items()})
            self._affected.add(left)
        return line, received.entries

    def _unusable(self, answer: Answer, request: tuple[str, bytes], wrong: WrongAnswerError) -> SluiceError:
        kept = self._failed.save_answer(answer.body, request=request)
        return wrong.kind(
            wrong.reference,
            f"pseudonymizer: the service gave {wrong} (status {answer.status})",
            context=request[0],
            hint=f"{wrong.hint} Its answer is in {kept} in the job directory",
            operation=OPERATION,
            status=answer.status,
        )

    def _indivisible(self, error: SluiceError, place: str) -> SluiceError:
        return ServiceError(
            "pseudonymizer-too-large",
            "pseudonymizer: the service refuses a single resource as too large",
            context=place,
            hint="raise the service's body limit (30,000,000 bytes by default), or leave this resource out of the data",
            operation=OPERATION,
            status=error.status,
        )

    def _locate(self, error: SluiceError, place: str, text: bytes) -> None:
        """Add the location of the resource to the error, and save the answer of the service in the job directory."""
        error.context = f"{place}\n  {error.context}" if error.context else place
        if error.answered == _REFUSED:
            rules = "the service also answers 400 if it cannot use the anonymization file"
            error.hint = f"{error.hint}; {rules}" if error.hint else rules
        self._failed.save_answer_of(error, request=(place, text))


def _sent_outline(text: bytes, place: str) -> ResourceSummary:
    try:
        return outline_of(text, sent=True)
    except OutlineError as problem:
        raise DataError(
            problem.reference,
            f"the line {problem}",
            context=place,
            hint="every line must be one FHIR resource; correct the data and import it again",
        ) from None


def _place(chunk: RequestChunk, given: ResourceSummary, first: int) -> str:
    """Return ``file:line`` and the type of a resource, and the number of its entry if it is an entry of a Bundle."""
    place = f"{chunk.file}:{chunk.line}"
    if given.is_bundle and given.entries == 1:
        return f"{place} entry {first} {given.single_type or 'Bundle'}"
    return f"{place} {given.type}" + (f" from entry {first}" if chunk.split else "")
