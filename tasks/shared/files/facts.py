"""What is known of a finished data file, and the ledger that keeps it over a restart."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

import msgspec

from tasks.shared.errors import storage_error, storage_errors
from tasks.shared.fhir.reading import LARGEST_RESOURCE
from tasks.shared.fhir.sources import SourceNotes
from tasks.shared.files.check import check_file
from tasks.shared.files.out_file import AppendFile
from tasks.shared.files.private_file import NotPrivateError, open_private, read_private
from tasks.shared.log import logger
from tasks.shared.stop import Stop


class FileFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished data file: its name, lines that are resources or Bundles, and sizes in bytes.

    ``content_bytes`` is the size uncompressed, ``stored_bytes`` and ``sha256`` (hex) are those of the file on disk.
    ``resources`` are those in the lines, those of a Bundle one by one; ``None`` in the record of an earlier version.
    ``notes`` say what tells that its source is incomplete.
    ``bytes_in`` is what came in (from a disk or a network). ``source`` names where it came from, for a person, and
    ``source_state`` lets an importer see that the source changed since.
    """

    name: str
    lines: int
    content_bytes: int
    stored_bytes: int
    sha256: str
    bytes_in: int = 0
    resources: int | None = None
    source: str = ""
    source_state: str = ""
    notes: SourceNotes | None = None

    @property
    def counted(self) -> int:
        """The resources, as far as they are known: an earlier version counted lines alone."""
        return self.lines if self.resources is None else self.resources


def facts_of(path: Path, stop: Stop, *, largest: int = LARGEST_RESOURCE) -> FileFacts:
    """The facts of a data file that is already there, by reading (and checking) it once; see ``check_file``."""
    check = check_file(path, stop, source=True, largest=largest)
    with storage_errors(path), open_private(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = os.fstat(file.fileno()).st_size
    return FileFacts(
        name=path.name,
        lines=check.lines,
        resources=check.resources,
        content_bytes=check.bytes,
        stored_bytes=size,
        sha256=digest,
        bytes_in=size,
        notes=check.notes or None,
    )


class FileLedger:
    """Append-only NDJSON with the facts of every finished file of one step instance.

    A file is entered just before its rename: whatever has a final name has an entry, and an entry without the file, or
    for another size than the file has, says nothing. The last entry of a name counts; a torn line is ignored.
    Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, FileFacts] = {}
        self._load()

    def get(self, path: Path) -> FileFacts | None:
        """The facts of this file, if they were recorded and its size still agrees."""
        facts = self._known.get(path.name)
        with storage_errors(path):
            return facts if facts is not None and path.stat().st_size == facts.stored_bytes else None

    def add(self, facts: FileFacts) -> None:
        """Record a finished file."""
        line = msgspec.json.encode(facts) + b"\n"
        with self._lock:
            with storage_errors(self._path):
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with AppendFile(self._path) as file:
                file.append(line)
            self._known[facts.name] = facts

    def _load(self) -> None:
        try:
            data = read_private(self._path)
        except NotPrivateError as problem:
            if self._path.parent.is_symlink():  # what is behind it is not ours to remove
                raise storage_error(OSError(errno.ELOOP, os.strerror(errno.ELOOP)), self._path.parent) from None
            logger.warning("%s is not believed: %s; the files are read once more", self._path.name, problem)
            with storage_errors(self._path):
                self._path.unlink()  # also a link or a pipe, which would be written into
            return
        if data is None:
            return
        for line in data.splitlines():
            try:
                facts = msgspec.json.decode(line, type=FileFacts)
            except msgspec.DecodeError:
                continue  # torn by a kill, before the rename that it was to announce
            self._known[facts.name] = facts
