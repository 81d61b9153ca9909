"""Unexpected exceptions as errors of ours: where they happened, but no value that caused them."""

from __future__ import annotations

import traceback
from pathlib import Path

from tasks.shared.errors import InternalError, SluiceError, StorageError
from tasks.shared.log import logger


def translate_defect(error: BaseException) -> SluiceError:
    """An unexpected exception as an error. Its text is left out: it may quote data."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"
    for frame in frames:
        logger.debug("  at %s:%s in %s", frame.filename, frame.lineno, frame.name)
    if isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        named = str(error.filename) if error.filename is not None else place
        return StorageError("storage", f"the file system refused ({reason})", context=named)
    return InternalError(
        "internal", f"unexpected {type(error).__name__} at {place}",
        hint="this is a defect of the program; please report it with this line",
    )  # fmt: skip
