"""Process a chunk in a worker: send it, check the answer, and halve it if it is too large for the service.

``agreement.py`` decides which answers are accepted. Every error names file, line and resource type.

Only Bundles whose line is larger than the threshold are split, greedily and in the order of their entries (document 3
§4, "Split" and "Reassembly"). Every chunk has the whole envelope of the Bundle and with it its ``id``: the service
seeds date shifting with it. Nothing is parsed and dumped: the entries keep the spelling of numbers. The joined line has
the entries in their order, in the envelope of the first answer; of a Bundle whose first chunks lost all their entries
to a ``remove`` rule, in that of the first answer that has some. ``total`` stays only where FHIR allows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tasks.pseudonymizer.agreement import Agreement, WrongAnswerError
from tasks.pseudonymizer.answer_check import OutlineError, ResourceSummary, outline_of
from tasks.pseudonymizer.client import OPERATION
from tasks.pseudonymizer.residual_identifiers import PersonNumbers, numbers_in
from tasks.pseudonymizer.surviving_ids import survivors
from tasks.shared.errors import DataError, ServiceError, SluiceError
from tasks.shared.fhir.envelope import Envelope, open_bundle, open_envelope
from tasks.shared.fhir.long_line import LongLine, lines_with_long
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer

_COUNTED: Final = frozenset({"searchset", "history"})


@dataclass(frozen=True, slots=True)
class RequestChunk:
    """A resource to be sent: a whole line, or ``part`` (from 0) of a Bundle, up to the ``last`` one.

    ``first_entry`` is the index of its first entry in the Bundle of the line. ``size`` is that of the line with its
    line feed, in bytes, and 0 for all parts but the last one. ``alone`` says that it is larger than the threshold, and
    cannot be smaller. ``numbers`` are those of the persons in the whole Bundle when this is a part of it.
    """

    file: str
    line: int
    text: bytes = field(repr=False)
    size: int
    part: int = 0
    last: bool = True
    first_entry: int = 0
    alone: bool = False
    numbers: PersonNumbers | None = field(default=None, repr=False)

    @property
    def split(self) -> bool:
        """Return whether the chunk is only a part of the line."""
        return self.part > 0 or not self.last

    @property
    def place(self) -> str:
        """``file:line``, and which entries of a Bundle that was split."""
        return f"{self.file}:{self.line}" + (f" from entry {self.first_entry}" if self.split else "")


def chunks(
    path: Path, *, threshold: int, spool: Path, after: int = 0, largest: int = LARGEST_RESOURCE
) -> Iterator[RequestChunk]:
    """Yield the lines after line number ``after`` as chunks of at most ``threshold`` bytes.

    Larger are only a resource that is no Bundle, and a single entry. Memory: one chunk; a longer line is kept in a
    file in the directory ``spool``.

    Raises ``DataError`` with ``file:line`` for a long line that cannot be taken apart, and ``resource-too-large`` for a
    resource of more than ``largest`` bytes.
    """
    for number, line in lines_with_long(path, limit=threshold, spool=spool, largest=largest):
        if number <= after:
            continue
        if isinstance(line, bytes):
            yield RequestChunk(path.name, number, line, len(line) + 1)
            continue
        yield from _of_long(path.name, number, line, threshold)


def _of_long(file: str, number: int, line: LongLine, threshold: int) -> Iterator[RequestChunk]:
    if line.resource_type != "Bundle":
        yield RequestChunk(file, number, line.whole(), line.size + 1, alone=True)
        return
    envelope = line.envelope()
    numbers = numbers_in(line.entries())
    part = first = 0
    for group, last in _groups(line.entries(), envelope, threshold):
        count, size = len(group), line.size + 1 if last else 0
        text = envelope.close(group)
        group.clear()  # the entries are in memory once, not twice
        alone = count == 1 and len(text) > threshold
        yield RequestChunk(file, number, text, size, part, last, first, alone, numbers)
        del text
        part += 1
        first += count
    if not part:
        yield RequestChunk(file, number, line.whole(), line.size + 1, alone=True)


def _groups(pieces: Iterable[bytes], envelope: Envelope, threshold: int) -> Iterator[tuple[list[bytes], bool]]:
    """Entries that fit together, and whether they are the last ones."""
    around = sum(map(len, envelope.around()))
    group: list[bytes] = []
    size = around - 1  # every entry counts with a comma, and the first one has none
    for piece in pieces:
        if group and size + len(piece) + 1 > threshold:
            yield group, False
            group, size = [], around - 1
        group.append(piece)
        size += len(piece) + 1
    if group:
        yield group, True


@dataclass(frozen=True, slots=True)
class BundlePiece:
    """A part of a Bundle as it came back: its envelope, and its entries as one text, with their number."""

    envelope: Envelope
    inside: memoryview = field(repr=False)
    entries: int


def piece_of(text: bytes, entries: int) -> BundlePiece:
    """Return a Bundle that was read before, and has so many entries, as a piece."""
    envelope, inside = open_envelope(text)
    return BundlePiece(envelope, memoryview(inside)[1:-1], entries)


class SplitOutput(Protocol):
    """The destination of a joined line."""

    def write(self, data: bytes | memoryview) -> None:
        """Append a piece of a line."""


class Reassembly:
    """The pieces of one Bundle on their way to ``output``, as they come: memory is one piece."""

    def __init__(self, output: SplitOutput) -> None:
        self._output = output
        self._empty: BundlePiece | None = None
        self._after: bytes | None = None
        self._id: str | None = None
        self._begun = False
        self.ids_differ = False
        """Whether the pieces came back with different Bundle ids, so one input id with several pseudonyms."""

    def add(self, piece: BundlePiece) -> None:
        """Write the next piece."""
        if not self._begun:
            self._begun = True
            self._id = piece.envelope.id
        self.ids_differ |= piece.envelope.id != self._id
        if not piece.entries:
            self._empty = self._empty or piece
            return
        if self._after is None:
            before, self._after = _around(piece.envelope)
            self._output.write(before)
        else:
            self._output.write(b",")
        self._output.write(piece.inside)

    def end(self) -> None:
        """Close the Bundle after the last piece."""
        if self._after is not None:
            self._output.write(self._after)
        elif self._empty is not None:
            before, after = _around(self._empty.envelope)
            for part in (before, self._empty.inside, after):
                self._output.write(part)


def _around(envelope: Envelope) -> tuple[bytes, bytes]:
    """Return what is before and after the entries, without a ``total`` that this type of Bundle must not have."""
    return (envelope if envelope.type in _COUNTED else envelope.without("total")).around()


_TOO_LARGE: Final = 413
_REFUSED: Final = 400

Counts = Counter[str]
"""Counters of a file. The ledger and the details of the step use the same names."""


@dataclass(frozen=True, slots=True)
class Deidentified:
    """The result of a chunk: the line in ``whole`` if one request contained all of it, otherwise ``pieces``.

    ``left`` has the paths at which identifiers came back unchanged (``residual_identifiers.py``).
    """

    place: str
    line: int
    first: bool
    last: bool
    counts: Counts
    left: set[str]
    whole: bytes | None = field(default=None, repr=False)
    pieces: tuple[BundlePiece, ...] = ()


class Deidentification:
    """Pseudonymize chunks with the service. Thread-safe. ``agreement`` checks the answers."""

    def __init__(
        self,
        call: Callable[[bytes], Answer],
        failed: FailedAnswers,
        agreement: Agreement | None = None,
    ) -> None:
        self._call = call
        self._failed = failed
        self._agreement = agreement or Agreement()
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
        left: set[str] = set()
        texts = self._texts(given, chunk, chunk.first_entry, counts, left, chunk.numbers)
        if len(texts) == 1 and not chunk.split:
            return Deidentified(chunk.place, chunk.line, True, True, counts, left, whole=texts[0][0])
        counts["split"] = chunk.last
        if chunk.last and chunk.numbers is not None:
            counts["too_many_numbers"] += chunk.numbers.full
        pieces = tuple(piece_of(text, entries) for text, entries in texts)
        return Deidentified(chunk.place, chunk.line, chunk.part == 0, chunk.last, counts, left, pieces=pieces)

    def _texts(
        self,
        given: ResourceSummary,
        chunk: RequestChunk,
        first: int,
        counts: Counts,
        left: set[str],
        numbers: PersonNumbers | None,
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
                return [self._check(given, answer, place, counts, left, numbers)]
        envelope, pieces = open_bundle(text)
        if numbers is None:
            numbers = numbers_in(pieces)
            counts["too_many_numbers"] += numbers.full
        middle = len(pieces) // 2
        halves = (envelope.close(pieces[:middle]), first), (envelope.close(pieces[middle:]), first + middle)
        del pieces  # the entries are in the halves now
        found: list[tuple[bytes, int]] = []
        for half, start in halves:
            found += self._texts(_sent_outline(half, place), chunk, start, counts, left, numbers)
        return found

    def _check(
        self,
        given: ResourceSummary,
        answer: Answer,
        place: str,
        counts: Counts,
        left: set[str],
        numbers: PersonNumbers | None,
    ) -> tuple[bytes, int]:
        """Return the received resource as one line, with its number of entries."""
        try:
            received, paths = self._agreement.check(answer, given, numbers)
        except WrongAnswerError as wrong:
            raise self._unusable(answer, (place, given.text), wrong) from None
        body = received.text
        # In JSON text a literal line break is only ever white space between tokens (document 3 §1).
        line = body.translate(None, b"\r\n") if b"\n" in body or b"\r" in body else body
        counts["resources_out"] += received.resources
        counts.update(survivors(given, received))
        left |= paths
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
            "not-a-resource",
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
