"""The files in ``pseudonymized/``: which are finished, which go on where, what was counted of each.

The ledger ``pseudonymizer/ledger.ndjson`` holds, for every cut of a file, its ``Position`` and the counts up to there.
They are good under the same *terms*: the same input file, the same service, the same anonymization file. Under other
terms a file is begun anew, and one that was finished is made again: the files of a job belong together, and a pseudonym
must not depend on which attempt made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from config import CompressionConfig
from tasks.pseudonymizer.deidentification import Counts
from tasks.shared.errors import DataError, storage_errors
from tasks.shared.files.data_directory import base_name, data_file_name, data_files, existing_file
from tasks.shared.files.ledger import Ledger
from tasks.shared.files.out_file import PART, part_of, publish, size_of
from tasks.shared.files.resumable import BEGIN, Position, ResumableWriter

OUTPUT: Final = "pseudonymized"

_VOID: Final = "void"


@dataclass
class OutputSource:
    """An input file: ``base`` is the name of its output, ``stored`` its size on disk in bytes.

    ``after`` is the number of the last input line that is done. ``counts`` are up to date, ``kept`` is what of them the
    ledger has.
    """

    path: Path
    base: str
    stored: int
    terms: str
    after: int = 0
    finished: bool = False
    counts: Counts = field(default_factory=Counter)
    kept: Counts = field(default_factory=Counter)
    writer: ResumableWriter | None = None


class Outputs:
    """Opens, continues and finishes the outputs of a step. For one thread.

    ``again`` counts finished files that have to be made again, ``orphans`` those without an input, which are removed.
    Raises ``StorageError``, and ``DataError`` (``pseudonymizer-name-clash``).
    """

    def __init__(
        self, directory: Path, files: Iterable[Path], ledger: Ledger, compression: CompressionConfig, *,
        terms: str, cut_every: int,
    ) -> None:  # fmt: skip
        self._directory = directory
        self._ledger = ledger
        self._compression = compression
        self._cut_every = cut_every
        self.again = 0
        self.sources = [_source(path, terms) for path in files]
        _refuse_clashes(self.sources)
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.orphans = self._remove_orphans()
            for source in self.sources:
                self._look_up(source)

    def open(self, source: OutputSource) -> ResumableWriter:
        """Return the writer for a file at its current position."""
        if source.writer is None:
            source.writer = ResumableWriter(
                self._directory, source.base, self._compression, every=self._cut_every, resume=_position(source.kept)
            )
        return source.writer

    def record_position(self, source: OutputSource, position: Position) -> None:
        """Record that the file is good up to here: everything that was counted belongs to it."""
        _set_position(source.counts, position)
        self._ledger.done(source.base, (), **(source.counts - source.kept))
        source.kept = source.counts.copy()

    def finish(self, source: OutputSource) -> None:
        """Record a file as complete and give it its final name."""
        writer = self.open(source)
        _set_position(source.counts, writer.finish())
        # Recorded before the rename: what has its final name under these terms is known to be finished.
        self._ledger.complete(source.base, {"name": writer.path.name, "counts": dict(source.counts)})
        writer.publish()
        source.writer = None
        source.finished = True

    def forget(self, source: OutputSource) -> None:
        """Nothing of the file is good: it begins anew in the next run."""
        self._ledger.account(source.base, _VOID)
        if source.writer is not None:
            writer, source.writer = source.writer, None
            with writer:
                pass
        source.kept = Counter()

    def close_early(self, current: OutputSource | None) -> None:
        """Close all files before the end of the step. ``current`` is the file whose last line is complete, so that it
        continues there."""
        for source in self.sources:
            if source.writer is not None:
                writer, source.writer = source.writer, None
                with writer:
                    position = writer.suspend() if source is current else None
                    if position is not None and position.lines > source.kept["lines"]:
                        self.record_position(source, position)

    def total(self) -> Counts:
        """Return the counts of all files."""
        total: Counts = Counter()
        for source in self.sources:
            total.update(source.counts)
        return total

    def _look_up(self, source: OutputSource) -> None:
        """Find out how far a file is, and put away what is not good any more."""
        account = self._ledger.account(source.base, source.terms)
        if account.complete is not None and self._is_finished(account.complete):
            source.counts, source.finished = Counter(account.complete["counts"]), True
            return
        if existing_file(self._directory, source.base) is not None:
            self.again += 1
        for compressed in (True, False):
            final = self._directory / data_file_name(source.base, compressed=compressed)
            final.unlink(missing_ok=True)
            if compressed != self._compression.enabled:
                part_of(final).unlink(missing_ok=True)
        source.kept = Counter(account.counts)
        if account.complete is not None or (source.kept["lines"] and self.open(source).resumed == BEGIN):
            self._ledger.account(source.base, _VOID)
            self._ledger.account(source.base, source.terms)
            source.kept = Counter()
        source.counts = source.kept.copy()
        source.after = source.counts["number"]

    def _is_finished(self, facts: dict[str, Any]) -> bool:
        """Return whether a file exists as recorded; complete the rename of a run that was killed just before it."""
        final = self._directory / str(facts["name"])
        stored = int(facts["counts"]["stored"])
        if final.is_file():
            return final.stat().st_size == stored
        if size_of(part_of(final)) != stored:
            return False
        publish((part_of(final), final))
        return True

    def _remove_orphans(self) -> int:
        """Remove what has no input (any more): the next step reads everything that is here."""
        bases = {source.base for source in self.sources}
        orphans = [path for path in data_files(self._directory) if base_name(path.name) not in bases]
        parts = self._directory.glob(f"*{PART}")
        for path in orphans + [part for part in parts if base_name(part.name.removesuffix(PART)) not in bases]:
            path.unlink()
        return len(orphans)


def _source(path: Path, terms: str) -> OutputSource:
    with storage_errors(path):
        facts = path.stat()
    # A data file appears by rename and is not written afterwards; whoever corrects one changes its time.
    identity = f"{path.name} {facts.st_size} {facts.st_mtime_ns} {terms}"
    return OutputSource(path, base_name(path.name), facts.st_size, identity)


def _refuse_clashes(sources: Iterable[OutputSource]) -> None:
    seen: dict[str, OutputSource] = {}
    for source in sources:
        other = seen.setdefault(source.base, source)
        if other is not source:
            raise DataError(
                "pseudonymizer-name-clash",
                "pseudonymizer: two input files would get one name",
                context=f"{other.path.name}, {source.path.name}",
                hint="keep one of them: they differ only in how they are stored",
            )


def _set_position(counts: Counts, position: Position) -> None:
    counts["lines"], counts["content"], counts["stored"] = position.lines, position.content, position.stored


def _position(counts: Counts) -> Position:
    return Position(counts["lines"], counts["content"], counts["stored"])
