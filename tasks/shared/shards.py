"""The division of a step's files among child runs, kept in ``.results/<position>/shards.json`` (``6-scale-out.md``).

A division is made once, before the step begins, and stays when the job is continued with another number of shards. What
a child run does is the step's own function on a part of its files; ``Splits`` in ``step.py`` says how the parts become
a whole again. Nothing here starts a process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from tasks.shared.errors import DataError, StorageError, storage_errors
from tasks.shared.files.out_file import write_file
from tasks.shared.files.private_file import NotPrivateError, read_private
from tasks.shared.report import StepReport
from tasks.shared.step import Splits, Step, StepContext, StepPart

AUTO_BYTES: Final = 2_000_000_000
"""Stored bytes of input for each shard with ``shards: auto``."""

AUTO_MOST: Final = 64
"""Maximum number of shards with ``shards: auto``."""

FEW_BYTES: Final = 100_000_000
"""Stored bytes below which a shard costs more than it gains."""

_SHOWN: Final = 10


class ShardFile(msgspec.Struct, frozen=True):
    """A file of a division: its name, and its size in bytes as stored."""

    name: str
    bytes: int


class Shard(msgspec.Struct, frozen=True):
    """The files of one child run, and the SHA-256 (hex) of their list."""

    index: int
    files: list[ShardFile]
    sha256: str

    @property
    def bytes(self) -> int:
        """Return the stored bytes of its files."""
        return sum(file.bytes for file in self.files)


class Division(msgspec.Struct, frozen=True):
    """Every file of a step's input in exactly one shard."""

    shards: list[Shard]
    version: int = 1

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all divided files."""
        return frozenset(file.name for shard in self.shards for file in shard.files)


def division_path(job_dir: Path, position: int) -> Path:
    """Return the path of the division of the step at ``position``."""
    return job_dir / ".results" / str(position) / "shards.json"


def count_shards(wanted: int | str, stored: int) -> int:
    """Return the number of shards for ``stored`` bytes of input, of the value of ``pipeline.shards``."""
    return wanted if isinstance(wanted, int) else max(1, min(AUTO_MOST, -(-stored // AUTO_BYTES)))


def divide(files: Iterable[tuple[str, int]], count: int, *, in_order: bool = False) -> Division:
    """Return a division of files (names and bytes) into at most ``count`` shards of about the same size.

    The largest file goes first, each to the shard that has the fewest bytes; ``in_order`` the files of a shard are
    neighbours, and the shards follow each other. Equal input gives an equal division.
    """
    found = [ShardFile(name, size) for name, size in files]
    groups = _neighbours(found, count) if in_order else _balanced(found, count)
    return Division([Shard(index, group, _digest(group)) for index, group in enumerate(groups)])


def _balanced(files: Sequence[ShardFile], count: int) -> list[list[ShardFile]]:
    groups: list[list[ShardFile]] = [[] for _ in range(min(count, len(files)))]
    for file in sorted(files, key=lambda file: (-file.bytes, file.name)):
        min(groups, key=lambda one: (sum(each.bytes for each in one), len(one))).append(file)
    return [sorted(group, key=lambda file: file.name) for group in groups]


def _neighbours(files: Sequence[ShardFile], count: int) -> list[list[ShardFile]]:
    groups: list[list[ShardFile]] = []
    at = 0
    for groups_left in range(min(count, len(files)), 0, -1):
        goal = sum(file.bytes for file in files[at:]) / groups_left
        end, size = at + 1, files[at].bytes
        while len(files) - end >= groups_left and size + files[end].bytes / 2 <= goal:
            end, size = end + 1, size + files[end].bytes
        groups.append([*files[at:end]])
        at = end
    return groups


def _digest(files: Sequence[ShardFile]) -> str:
    return hashlib.sha256(b"".join(msgspec.json.encode(file) + b"\n" for file in files)).hexdigest()


def save_division(division: Division, job_dir: Path, position: int) -> None:
    """Write ``shards.json``, which appears by rename. Raises ``StorageError``."""
    path = division_path(job_dir, position)
    with storage_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, msgspec.json.format(msgspec.json.encode(division), indent=1) + b"\n")


def load_division(job_dir: Path, position: int) -> Division | None:
    """Return the division of the step at ``position``; ``None`` if it was not divided.

    Raises:
        StorageError: the file is not the division that was written (``shards-damaged``), or cannot be read.
    """
    path = division_path(job_dir, position)
    try:
        with storage_errors(path):
            text = read_private(path)
        if text is None:
            return None
        found = msgspec.json.decode(text, type=Division)
    except (NotPrivateError, msgspec.DecodeError, UnicodeDecodeError):
        found = Division([])
    names = [file.name for shard in found.shards for file in shard.files]
    whole = found.version == 1 and bool(names) and len(set(names)) == len(names)
    if not whole or any(
        shard.index != at or shard.sha256 != _digest(shard.files) for at, shard in enumerate(found.shards)
    ):
        raise StorageError(
            "shards-damaged", "the division of the step's files was changed", context=str(path),
            hint=f"run the step again: sluice job run JOB --step {position} --force",
        )  # fmt: skip
    return found


def plan_division(splits: Splits, context: StepContext, wanted: int | str) -> Division | None:
    """Return the division of a step that has not begun; ``None`` if one run does all. Raises ``StorageError``."""
    files = splits.files(context)
    first = set(splits.first([name for name, _ in files]))
    divided = [file for file in files if file[0] not in first]
    count = count_shards(wanted, sum(size for _, size in files))
    division = divide(divided, count, in_order=splits.in_order)
    return division if len(division.shards) > 1 else None


def refuse_other_files(splits: Splits, context: StepContext, division: Division) -> None:
    """Check that the input has exactly the files of the division.

    Raises:
        DataError: a file appeared, vanished or has another size (``shards-input-changed``).
        StorageError: the input cannot be read.
    """
    files = dict(splits.files(context))
    first = set(splits.first(list(files)))
    known = {file.name: file.bytes for shard in division.shards for file in shard.files}
    now = {name: size for name, size in files.items() if name not in first}
    if known == now:
        return
    found = [f"added: {name}" for name in sorted(now.keys() - known.keys())]
    found += [f"removed: {name}" for name in sorted(known.keys() - now.keys())]
    found += [f"changed: {name}" for name in sorted(known.keys() & now.keys()) if known[name] != now[name]]
    more = [f"… ({len(found) - _SHOWN} more)"] if len(found) > _SHOWN else []
    raise DataError(
        "shards-input-changed", "the input has other files than when it was divided among the shards",
        context="\n  ".join(found[:_SHOWN] + more),
        hint=f"restore the files and continue the job, or run the step again: {context.again(context.position)}",
    )  # fmt: skip


def shard_context(context: StepContext, shard: Shard, requests: int) -> StepContext:
    """Return the context of a child run, which may have ``requests`` under way at once."""
    names = frozenset(file.name for file in shard.files)
    return replace(context, part=StepPart(names, shard.index, requests))


def begin_divided(step: Step, splits: Splits, context: StepContext, division: Division) -> None:
    """Do, in the parent, what comes before the child runs. May be repeated. Raises the errors of the step."""
    refuse_other_files(splits, context, division)
    splits.prepare(context)
    first = frozenset(splits.first([name for name, _ in splits.files(context)]))
    if first:
        step.run(replace(context, part=StepPart(first)))


def finish_divided(step: Step, splits: Splits, context: StepContext, division: Division) -> StepReport:
    """Take over the states of the child runs, all of which have ended, and return the report of the whole step.

    May be repeated. Raises the errors of the step.
    """
    refuse_other_files(splits, context, division)
    for shard in division.shards:
        splits.adopt(context, shard_context(context, shard, 1))
    content = context.meter.snapshot().content
    context.meter.begin("putting the shards together")  # what they did was counted as they did it
    report = step.run(context)
    return report.model_copy(update={"content": content + context.meter.snapshot().content})
