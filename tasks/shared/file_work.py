"""Work on files: the file is the unit of work and of resumption (docs/decisions/06-file-is-the-unit.md).

A file is finished in this order: its output is on disk as ``.part``, the record ``.done/<position>/<base name>.json``
is written, the output gets its final name (after a kill, from the next run). So after a kill at any moment, files with
a matching record are not processed again, and all others are processed from their beginning. A record matches if the
input (``identity``) and everything else that the result depends on (``terms``) are unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tasks.shared.errors import storage_errors
from tasks.shared.files.data_directory import CORE, base_name
from tasks.shared.files.part_file import PART, PartFile, part_of, publish, write_whole

DONE: Final = ".done"
"""Directory of the records, below the job directory."""


class Done(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Record of a finished file. Each step has its own ``counts`` and ``tallies`` (counts by path, system, …); its
    report is the sum of its records. ``output`` names the written file; ``size`` (bytes) and ``sha256`` are as stored.
    """

    file: str
    identity: str
    terms: str = ""
    counts: dict[str, int] = {}
    tallies: dict[str, dict[str, int]] = {}
    warnings: tuple[str, ...] = ()
    requests: int = 0
    retries: int = 0
    seconds: float = 0.0
    patients: int = 0
    output: str = ""
    size: int = 0
    sha256: str = ""


def digest(*parts: str) -> str:
    """Return a short digest of texts, for ``identity`` and ``terms``: the texts themselves are not kept."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def core_first(bases: Iterable[str]) -> list[str]:
    """Return base names in the order of work: ``core`` (any case) before all others."""
    return sorted(bases, key=lambda base: (base.lower() != CORE, base))


class FileWork:
    """The finished and unfinished files of one step of a job. ``finish`` is safe to call from several threads.

    ``output`` is the directory that the step writes to; ``None`` if it writes only records. ``stem`` turns the name of
    an output file into the base name of its input.
    """

    def __init__(
        self,
        job_dir: Path,
        position: int,
        output: Path | None,
        *,
        terms: str = "",
        stem: Callable[[str], str] = base_name,
    ) -> None:
        self._records = records_of(job_dir, position)
        self._output = output
        self._terms = terms
        self._stem = stem
        self._known: dict[str, Done] = {}
        self.again: list[str] = []
        """Base names of finished files that must be processed again, because their input or the terms have changed."""

    def begin(self, inputs: Mapping[str, str], only: Collection[str] | None = None) -> list[str]:
        """Return the base names of unfinished files, ``core`` first; ``inputs`` is base name → identity.

        With ``only`` (base names), other files are left alone: other processes work on them. Without it, outputs, parts
        and records that belong to no input are removed. Raises ``StorageError``.
        """
        with storage_errors(self._records):
            self._records.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._records.mkdir(mode=0o700, exist_ok=True)
            known = {done.file: done for done in read_records(self._records)}
            stored = self._stored()
            if only is None:
                for base in (known.keys() | stored.keys()) - inputs.keys():
                    self._discard(base, stored)
            mine = core_first(inputs if only is None else inputs.keys() & set(only))
            return [base for base in mine if not self._settle(base, inputs[base], known.get(base), stored)]

    def finish(self, done: Done, part: PartFile | None = None) -> Done:
        """Record a finished file under this work's terms, and publish its output. Raises ``StorageError``."""
        if part is not None:
            part.sync()
            done = msgspec.structs.replace(done, output=part.final.name, size=part.size, sha256=part.sha256)
        done = msgspec.structs.replace(done, terms=self._terms)
        write_whole(self._records / f"{done.file}.json", msgspec.json.encode(done))
        if part is not None:
            publish(part.final)
        self._known[done.file] = done
        return done

    def take_over(self, bases: Collection[str]) -> list[str]:
        """Take over the records of files that other processes finished; return the files without a usable record."""
        known, stored = {done.file: done for done in read_records(self._records)}, self._stored()
        for base in bases:
            done = known.get(base)
            if done is not None and done.terms == self._terms and base in stored and self._is_whole(done):
                self._known[base] = done
        return [base for base in bases if base not in self._known]

    def take_back(self) -> None:
        """Mark the finished files as unfinished, so that the next run does them again. Raises ``StorageError``."""
        for done in self._known.values():
            taken = msgspec.structs.replace(done, terms="")
            write_whole(self._records / f"{done.file}.json", msgspec.json.encode(taken))

    def done(self) -> list[Done]:
        """Return the records of the finished files of this work, ``core`` first."""
        return [self._known[base] for base in core_first(self._known)]

    def _settle(self, base: str, identity: str, known: Done | None, stored: Mapping[str, list[Path]]) -> bool:
        """Return whether a file is finished; remove the remains of an unfinished one."""
        if known is not None:
            if (known.identity, known.terms) != (identity, self._terms):
                self.again.append(base)
            elif self._is_whole(known):
                self._known[base] = known
                return True
        self._discard(base, stored)
        return False

    def _is_whole(self, done: Done) -> bool:
        if self._output is None or not done.output:
            return True
        final = self._output / done.output
        if final.is_file():
            return final.stat().st_size == done.size
        part = part_of(final)
        if not part.is_file() or part.stat().st_size != done.size:
            return False
        with part.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != done.sha256:
                return False
        publish(final)
        return True

    def _discard(self, base: str, stored: Mapping[str, list[Path]]) -> None:
        (self._records / f"{base}.json").unlink(missing_ok=True)
        for path in stored.get(base, ()):
            path.unlink()

    def _stored(self) -> dict[str, list[Path]]:
        """Return the files and parts in the output directory by base name."""
        found: dict[str, list[Path]] = {}
        if self._output is not None and self._output.is_dir():
            for path in self._output.iterdir():
                if path.is_file():
                    found.setdefault(self._stem(path.name.removesuffix(PART)), []).append(path)
        return found


def records_of(job_dir: Path, position: int) -> Path:
    """Return the directory of the records of the step at a position."""
    return job_dir / DONE / str(position)


def read_records(directory: Path, known: Collection[str] = ()) -> list[Done]:
    """Return the records in a directory, except those of ``known`` files; none if the directory is missing. A damaged
    record is removed, so its file counts as unfinished."""
    found = []
    for path in sorted(path for path in directory.glob("*.json") if path.stem not in known):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=Done))
        except msgspec.DecodeError:
            path.unlink()
    return found


def identities(files: Iterable[Path], records: Path | None) -> dict[str, str]:
    """Return base name → identity of input files. It is the SHA-256 in ``records``, those of the step that wrote the
    files; for corrected files of a ``wait`` it is ``stat_identity``. Raises ``StorageError``."""
    written = {done.output: done.sha256 for done in read_records(records)} if records is not None else {}
    return {base_name(path.name): written.get(path.name) or stat_identity(path) for path in files}


def stat_identity(path: Path) -> str:
    """Return a digest of path, size and modification time of a file. Raises ``StorageError``."""
    with storage_errors(path):
        facts = path.stat()
    return digest(str(path), str(facts.st_size), str(facts.st_mtime_ns))
