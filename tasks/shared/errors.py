"""The errors of the pipeline. The class tells the exit code, and whether a later attempt can succeed.

Every error has a kebab-case ``reference``, the ``operation`` it happened in, the HTTP ``status`` if any,
and a ``hint`` that says what to do. No message quotes a payload, an identifier of a person or a secret: foreign
exceptions are translated where they are caught, with ``raise … from None`` when their text may quote data.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from tasks.shared.log import logger

TOKEN_OPERATION: Final = "obtain token"  # noqa: S105 - the name of an operation


class SluiceError(Exception):
    """Base of everything this program reports to its user.

    ``reference`` is stable and documented; ``context`` says where (key path, ``file:line``, URL without query).
    """

    transient: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1
    answer: Any = None
    """The ``Answer`` that caused the error. ``str`` and ``repr`` do not show it: it may quote patient data."""

    def __init__(
        self,
        reference: str,
        message: str,
        *,
        context: str | None = None,
        hint: str | None = None,
        operation: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reference = reference
        self.message = message
        self.context = context
        self.hint = hint
        self.operation = operation
        self.status = status

    @property
    def answered(self) -> int | None:
        """Return the status that the service answered, or ``None``. ``status`` may be of an OAuth issuer or a proxy."""
        return self.answer.status if self.answer is not None and self.operation != TOKEN_OPERATION else None

    def made_from(self, answer: Any) -> Self:
        """Set ``answer`` and return the error."""
        self.answer = answer
        return self

    def render(self) -> str:
        """Return the text shown to a person."""
        lines = [f"error[{self.reference}]: {self.message}"]
        if self.context:
            lines.append(f"  {self.context}")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def shown(text: str, most: int = 60) -> str:
    """Return text that a person typed for an error message: printable, on one line, cut after ``most`` characters."""
    return text if text.isprintable() and len(text) <= most else f"{text[:most]!a}" + ("…" if len(text) > most else "")


class TransientError(SluiceError):
    """The same call may succeed later."""

    transient = True
    exit_code = 3


class NetworkError(TransientError):
    """No usable answer arrived: connect, read or write failed, or timed out."""


class ServiceBusyError(TransientError):
    """The service answered that it cannot serve the call now."""

    retry_after: float | None = None
    """Seconds that its ``Retry-After`` header asks for."""


class TerminalError(SluiceError):
    """Trying again changes nothing."""


class ServiceError(TerminalError):
    """The service refused the call, or its answer is not one that its API allows."""


class StalledError(TerminalError):
    """No byte arrived for the stall timeout. Not retried."""


class DataError(TerminalError):
    """The data itself is wrong; ``context`` names ``file:line`` and, where known, the resource type."""


class InputError(TerminalError):
    """An input of the user (a path, a URL, a CRTDL) cannot be used."""

    exit_code = 2


class StorageError(TerminalError):
    """The file system refused: no space, no permission, a file that is gone."""


class DiskFullError(StorageError):
    """No space is left. The job can be continued once there is space again."""

    transient = True
    exit_code = 3


class ReconciliationError(TerminalError):
    """Resources in and resources out do not agree where they must."""


class GateError(TerminalError):
    """A check of the data found something at which the configuration says to stop."""

    exit_code = 5


class InternalError(TerminalError):
    """A defect of this program."""


class Stopped(Exception):  # noqa: N818 - a request, not an error
    """The run was asked to stop: a signal, or a cancel in the Prefect UI."""


def internal_error(error: BaseException) -> SluiceError:
    """Return an error for an unexpected exception, with its place. Its text is left out, since it may quote data."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"
    for frame in frames:
        logger.debug("  at %s:%s in %s", frame.filename, frame.lineno, frame.name)
    if isinstance(error, OSError):
        return storage_error(error, Path(str(error.filename or place)))
    hint = "this is a defect of the program; please report it with this line"
    return InternalError("internal", f"unexpected {type(error).__name__} at {place}", hint=hint)


def storage_error(error: OSError, path: Path) -> StorageError:
    """Return the error for a file system error at ``path`` (a file or directory), with a hint what to do."""
    where = str(path)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        hint = "free some space, or put jobs_dir on a larger volume, then continue the job"
        return DiskFullError("disk-full", "no space is left on the device", context=where, hint=hint)
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        hint = "check the owner and the permissions of this path"
        return StorageError("no-permission", "the file system refuses access", context=where, hint=hint)
    if error.errno in {errno.ENOENT, errno.ESTALE}:
        return StorageError("file-vanished", "the file or its directory is gone", context=where)
    reason = error.strerror or type(error).__name__
    return StorageError("storage-failed", f"the file system reported: {reason}", context=where)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise an ``OSError`` of the block as a ``StorageError`` about ``path``."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from None
