"""``<step>/failed/``: answers of a service to failed requests.

Services quote data of patients and stack traces in their answers, so these stay in the job directory, mode 0600; errors
and logs name the file only. The requests are not kept: with their answers they would be a table of original values and
pseudonyms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from tasks.shared.blanked import blanked
from tasks.shared.errors import SluiceError, StorageError, storage_errors
from tasks.shared.files.part_file import write_whole
from tasks.shared.http.answer import Answer
from tasks.shared.log import logger

FAILED: Final = "failed"
LARGEST: Final = 1 << 20
"""Bytes of an answer that are kept."""


class FailedAnswers:
    """The answers kept by one run, or by a ``part`` of it. Thread-safe."""

    def __init__(self, directory: Path, part: int = 0) -> None:
        self._directory = directory / FAILED
        self._numbers = itertools.count(1000 * part + 1)
        self._part = part

    def begin(self) -> Self:
        """Remove the answers of the previous run (a part: none). Call it once per run. Raises ``StorageError``."""
        with storage_errors(self._directory):
            for old in self._directory.glob("[0-9]*.txt") if not self._part else ():
                old.unlink(missing_ok=True)
        return self

    def save_answer_of(self, error: SluiceError, *, answer: Answer | None = None) -> None:
        """Save ``answer``, by default the one that caused ``error``, and name the file in the hint of ``error``.

        Does nothing without an answer. A failure to save it is only logged, because ``error`` happened first.
        """
        answer = answer or error.answer
        if answer is None or not answer.body:
            return
        try:
            name = self.save_answer(answer.body)
        except StorageError as problem:
            logger.warning("an answer cannot be kept: %s", problem.message)
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

    def save_answer(self, body: bytes) -> str:
        """Save an answer without credentials; return the name of its file, relative to the job directory.

        Raises ``StorageError``.
        """
        path = self._directory / f"{next(self._numbers):04}.txt"
        write_whole(path, blanked(body)[:LARGEST])
        return f"{self._directory.parent.name}/{FAILED}/{path.name}"
