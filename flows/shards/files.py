"""Files that the parent and a child of a divided step exchange, in the directory of the shard.

``order.json`` is what the parent asks of the child, ``progress.json`` what the child has done so far, and
``receipt.json`` appears when it ends. All are 0600, and hold counts, paths of this job and error texts.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tasks.shared import errors
from tasks.shared.errors import InternalError, SluiceError, StorageError, storage_errors
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import NotPrivateError, open_private, read_private

ORDER: Final = "order.json"
PROGRESS: Final = "progress.json"
RECEIPT: Final = "receipt.json"

_LARGEST: Final = 64 << 20

T = TypeVar("T")


class ShardSource(msgspec.Struct, frozen=True):
    """The input of the step: the directory below the job's, and whether it holds tables."""

    path: str
    tables: bool = False


class ShardOrder(msgspec.Struct, frozen=True):
    """One attempt to process a shard.

    ``sha256`` is that of the shard's list of files, ``config`` that of the configuration in force. ``requests`` is how
    many may be under way at once. ``inputs`` are the parameters of the job, ``crtdl`` is its effective CRTDL.
    """

    job: str
    position: int
    shard: int
    attempt: int
    requests: int
    sha256: str
    config: str
    inputs: dict[str, Any]
    source: ShardSource | None = None
    crtdl: str | None = None
    doubts: tuple[str, ...] = ()


class ShardProgress(msgspec.Struct, frozen=True):
    """The work that all attempts of a shard have done: files, resources, and bytes of content and of files as stored.

    ``repeated`` and ``times`` are the requests of this attempt, as ``Meter.requests_made`` returns them.
    """

    attempt: int = 0
    files: int = 0
    resources: int = 0
    content: int = 0
    stored: float = 0.0
    repeated: int = 0
    times: dict[int, int] = {}
    warnings: tuple[str, ...] = ()


class ShardError(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a child reports it: the class, and its fields."""

    kind: str
    reference: str
    message: str
    context: str | None = None
    hint: str | None = None
    operation: str | None = None
    status: int | None = None

    @classmethod
    def of(cls, error: SluiceError) -> ShardError:
        """Return the form of an error that is written down."""
        known = next(base.__name__ for base in type(error).__mro__ if getattr(errors, base.__name__, None) is base)
        return cls(
            known, error.reference, error.message, error.context, error.hint, error.operation, error.status
        )  # fmt: skip

    def error(self) -> SluiceError:
        """Return the error again."""
        kind = getattr(errors, self.kind, InternalError)
        if not (isinstance(kind, type) and issubclass(kind, SluiceError)):
            kind = InternalError
        return kind(
            self.reference, self.message, context=self.context, hint=self.hint, operation=self.operation,
            status=self.status,
        )  # fmt: skip


class ShardOutput(msgspec.Struct, frozen=True):
    """An output file of a shard: its name, bytes as stored, and SHA-256 (hex)."""

    name: str
    size: int
    sha256: str


class ShardReceipt(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of a child: ``report`` as the step returned it, or the ``error`` that ended it.

    ``sha256`` is that of the shard's list of files, ``ledgers`` are those of its ledgers by their paths.
    """

    job: str
    position: int
    shard: int
    attempt: int
    sha256: str
    progress: ShardProgress
    report: dict[str, Any] | None = None
    error: ShardError | None = None
    outputs: tuple[ShardOutput, ...] = ()
    ledgers: dict[str, str] = {}
    version: int = 1


def write_state(path: Path, value: msgspec.Struct) -> None:
    """Write one of the files, which appears by rename. Raises ``StorageError``."""
    with storage_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, msgspec.json.encode(value) + b"\n")


def read_state(path: Path, kind: type[T]) -> T | None:
    """Return the content of one of the files; ``None`` without it.

    Raises:
        StorageError: somebody else wrote it, or it is not what this version writes (``shard-file-damaged``).
    """
    try:
        with storage_errors(path):
            text = read_private(path, most=_LARGEST)
        return None if text is None else msgspec.json.decode(text, type=kind)
    except (NotPrivateError, msgspec.DecodeError, UnicodeDecodeError):
        raise StorageError(
            "shard-file-damaged", "a state file of a shard was changed", context=str(path),
            hint="remove the file and continue the job: the shard goes on where its ledger ends",
        ) from None  # fmt: skip


def ledger_digests(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of every ledger below a shard's directory. Raises ``StorageError``."""
    found = {}
    for path in sorted(directory.rglob("ledger.ndjson")):
        with storage_errors(path), open_private(path) as file:
            found[path.relative_to(directory).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
