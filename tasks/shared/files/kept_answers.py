"""``<step>/failed/``: answers of a service to failed requests.

Services quote data of patients and stack traces in their answers (document 3 §1), so these stay in the job directory,
mode 0600; errors and logs name the file only.

No request is kept next to its answer if both would form a table of original values and pseudonyms. Then
``<number>.request.json`` identifies the request by its place in the input and its SHA-256. This reveals nothing more:
the job directory has the input and the output line by line, and is deleted with the answer.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec

from tasks.shared.blanked import blanked
from tasks.shared.errors import SluiceError, StorageError, storage_errors
from tasks.shared.files.out_file import OutFile
from tasks.shared.http.answer import Answer
from tasks.shared.http.errors import answer_of

log = logging.getLogger("sluice.step")

FAILED: Final = "failed"
LARGEST: Final = 1 << 20
"""Bytes of an answer that are kept."""


class FailedAnswers:
    """The answers kept by one run. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / FAILED
        self._lock = threading.Lock()
        self._count = 0

    def begin(self) -> Self:
        """Make the directory, and remove answers of the run before. Call it once for a run. Raises ``StorageError``."""
        with storage_errors(self._directory):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in (*self._directory.glob("[0-9]*.txt"), *self._directory.glob("[0-9]*.request.json")):
                old.unlink(missing_ok=True)
        return self

    def save_answer_of(
        self, error: SluiceError, *, answer: Answer | None = None, request: tuple[str, bytes] | None = None
    ) -> None:
        """Save the answer that caused ``error``, if any, and name the file in its hint. ``answer`` is for an error that
        has none, ``request``: see ``save_answer``.

        A failure to save it is only logged, because ``error`` happened first.
        """
        answer = answer or answer_of(error)
        if answer is None or not answer.body:
            return
        try:
            name = self.save_answer(answer.body, request=request)
        except StorageError as problem:
            log.warning("an answer cannot be kept: %s", problem.message)
            return
        kept = f"the answer is in {name} in the job directory; it may quote data"
        error.hint = f"{error.hint}; {kept}" if error.hint else kept

    @contextmanager
    def saving_answers(self) -> Iterator[None]:
        """Save the answer of an error raised in the block, as ``save_answer_of`` does."""
        try:
            yield
        except SluiceError as error:
            self.save_answer_of(error)
            raise

    def save_answer(self, body: bytes, *, request: tuple[str, bytes] | None = None) -> str:
        """Save an answer without credentials; return the name of its file, relative to the job directory.

        ``request`` has its place in the input, and its bytes, of which only the hash is kept. Raises ``StorageError``.
        """
        kept = blanked(body)[:LARGEST]
        with self._lock:
            self._count += 1
            path = self._directory / f"{self._count:04}.txt"
        with OutFile(path) as file:
            file.write(kept)
        if request is not None:
            about = {"place": request[0], "sha256": hashlib.sha256(request[1]).hexdigest()}
            with OutFile(path.with_suffix(".request.json")) as file:
                file.write(msgspec.json.encode(about) + b"\n")
        return f"{self._directory.parent.name}/{FAILED}/{path.name}"
