"""``<step>/failed/``: what a service answered when it did not give what was asked for.

Services quote data of patients and stack traces in their answers (document 3 §1), so these stay in the job directory,
mode 0600; errors and logs name the file only.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self

from tasks.shared.blanked import blanked
from tasks.shared.errors import storage_errors
from tasks.shared.files.out_file import OutFile

FAILED: Final = "failed"
LARGEST: Final = 1 << 20
"""Bytes of an answer that are kept."""


class FailedAnswers:
    """The answers kept by one run. Thread-safe. Raises ``StorageError``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / FAILED
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> Self:
        """Make the directory, and remove what the run before kept. Call it once for a run."""
        with storage_errors(self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in self._directory.glob("[0-9]*.txt"):
                old.unlink(missing_ok=True)
        return self

    def keep(self, body: bytes) -> str:
        """Keep an answer, without credentials; the name of its file, relative to the job directory."""
        kept = blanked(body)[:LARGEST]
        with self._lock:
            self._count += 1
            path = self._directory / f"{self._count:04}.txt"
        with OutFile(path) as file:
            file.write(kept)
        return f"{self._directory.parent.name}/{FAILED}/{path.name}"
