"""Find the job that a person means: by its id, a unique beginning of it, or ``latest`` (``4-product.md`` §2).

Also a step of it, by its name or position.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from flows.shell import about
from tasks.shared.errors import InputError, shown, storage_errors

if TYPE_CHECKING:
    from flows.job.record import JobRecord

LATEST = "latest"

SHORTEST = 4
"""Characters of an id that name a job."""

SHOWN = 5
"""Ids that an error shows."""


def exact(text: str) -> str | None:
    """Return ``text`` as a normalised id; ``None`` if it is not a UUID."""
    try:
        return str(UUID(text))
    except ValueError:
        return None


def begun(text: str, reference: str, hint: str) -> str:
    """Return ``text`` as the normalised beginning of an id.

    Raises:
        InputError: it cannot begin an id, or is too short; with this ``reference``.
    """
    start = text.lower()
    if len(start) < SHORTEST or not is_beginning(start):
        raise InputError(
            reference, f"not an id: give the id, or at least its first {SHORTEST} characters",
            context=shown(text), hint=hint,
        )  # fmt: skip
    return start


def one_of(start: str, known: Iterable[str]) -> str | None:
    """Return the id that begins with ``start``; ``None`` if none does.

    Raises:
        InputError: several do.
    """
    found = sorted({one for one in known if one.startswith(start)})
    if len(found) > 1:
        raise InputError(
            "id-ambiguous", f"{len(found)} ids begin with {start}", context=_listed(found), hint="give more characters"
        )
    return found[0] if found else None


def is_beginning(text: str) -> bool:
    """Return whether an id may begin with ``text``."""
    return len(text) <= 36 and all(
        sign == "-" if at in {8, 13, 18, 23} else sign in "0123456789abcdef" for at, sign in enumerate(text)
    )


def nearest(text: str, known: Iterable[str]) -> str:
    """Return a hint with similar ids, or an empty text."""
    ids = sorted(known)
    like = difflib.get_close_matches(text, {one[: len(text)] for one in ids}, n=SHOWN)
    found = [one for beginning in like for one in ids if one.startswith(beginning)]
    return f"did you mean {_listed(found)}? " if found else ""


def _listed(ids: list[str]) -> str:
    return ", ".join(ids[:SHOWN]) + (f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else "")


def directories(jobs_dir: Path) -> Iterator[Path]:
    """Yield the job directories below ``jobs_dir``, ordered by id. Raises ``OSError``."""
    try:
        entries = sorted(jobs_dir.iterdir())
    except FileNotFoundError:
        return
    for path in entries:
        if exact(path.name) == path.name and path.is_dir():
            yield path


def by_directory(jobs_dir: Path, text: str) -> str | None:
    """Return the id of a job found by its directory; ``None`` for ``latest``, and for a job without a directory.

    Raises:
        InputError: ``job-id``: no id can begin with it; ``id-ambiguous``: several do.
        StorageError: the jobs directory cannot be read.
    """
    if text == LATEST:
        return None
    if (found := exact(text)) is not None:
        return found
    start = begun(text, reference="job-id", hint=f"see: {about('job list')}; {LATEST} is the newest one")
    with storage_errors(jobs_dir):
        return one_of(start, (path.name for path in directories(jobs_dir)))


def in_record(
    jobs_dir: Path, text: str, *, ids: Callable[[], Iterable[str]], to_begin: Callable[[], Iterable[str]],
    latest: Callable[[], str | None],
) -> str:  # fmt: skip
    """Return the id of the selected job; the record is read only if the directories do not decide.

    ``ids`` are all jobs, ``to_begin`` those that have no directory yet, ``latest`` is the newest requested one.

    Raises:
        InputError: as ``by_directory``; ``job-unknown``: the job does not exist.
        StorageError: the jobs directory cannot be read.
    """
    if text == LATEST:
        if (newest := latest()) is None:
            raise InputError("job-unknown", "there is no job yet", context=str(jobs_dir), hint="start one")
        return newest
    found = by_directory(jobs_dir, text)
    if exact(text) is not None and found is not None:
        return found
    start = text.lower()
    if found is not None:
        return one_of(start, [found, *to_begin()]) or found
    known = list(ids())
    if (found := one_of(start, known)) is None:
        raise InputError(
            "job-unknown", f"no job's id begins with {start}", context=str(jobs_dir),
            hint=f"{nearest(start, known)}see: {about('job list')}",
        )  # fmt: skip
    return found


def step_to_repeat(record: JobRecord, step: str) -> int:
    """Return the position of the step from which a job is to go on again.

    Raises:
        InputError: a step before it is not complete, or ``find_step``.
    """
    position = find_step(record, step)
    before = [earlier.name for earlier in record.steps[: position - 1] if earlier.state != "completed"]
    if before:
        raise InputError(
            "step-order", f"steps before {step} are not complete: {', '.join(before)}", context=record.id,
            hint=f"this runs them in order: {about('pipeline continue', record.id)}",
        )  # fmt: skip
    return position


def find_step(record: JobRecord, step: str) -> int:
    """Return the position of a step given by name or position.

    Raises:
        InputError: there is no such step, or its name occurs more than once.
    """
    from config.types import nearest as nearest_name

    if step.isdigit() and 1 <= int(step) <= len(record.steps):
        return int(step)
    found = [candidate.position for candidate in record.steps if candidate.name == step]
    known = ", ".join(f"{candidate.position} {candidate.name}" for candidate in record.steps)
    if not found:
        near = nearest_name(step, [candidate.name for candidate in record.steps])
        raise InputError(
            "step-unknown", f"the job has no step {shown(step)}", context=known,
            hint=f"did you mean {near}?" if near else "give its name or its position",
        )  # fmt: skip
    if len(found) > 1:
        raise InputError(
            "step-ambiguous", f"the job has {step} more than once", context=known, hint="give the position"
        )
    return found[0]
