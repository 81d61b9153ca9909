"""Judge an answer at a wait (docs/review.md), without reading files or the record."""

from __future__ import annotations

from collections.abc import Sequence

from flows.job.waiting import Answer, Reviewed, Shown

NOBODY_DECIDED = "the job was continued without a decision"


def judge(
    answer: Answer, shown: Shown, now: Reviewed, changes: Sequence[str] = (), obstacle: str | None = None
) -> str | None:
    """Return why the answer is not accepted, so the job waits again; ``None`` if it is. A rejection always is.

    ``shown`` is what the reviewer saw; ``now`` has the present files and destination. ``changes`` lists the differences
    of the files. ``obstacle`` is the reason why nobody can approve the present files, if there is one.
    """
    if not answer.approved:
        return None
    return difference(shown, now, changes) or obstacle or _without_comment(answer, shown)


def difference(before: Reviewed, now: Reviewed, changes: Sequence[str] = ()) -> str | None:
    """Return how the files or the destination have changed since ``before``; ``None`` if they have not."""
    if before.files != now.files:
        return "the files are not those that were shown" + (f": {', '.join(changes)}" if changes else "")
    if before.destination != now.destination:
        return f"the destination is not the one that was shown: {_moved(before.destination, now.destination)}"
    return None


def _moved(before: dict[str, str], now: dict[str, str]) -> str:
    names = [name for name in before | now if before.get(name) != now.get(name)]
    return ", ".join(f"{name} {before.get(name, 'none')} → {now.get(name, 'none')}" for name in names)


def _without_comment(answer: Answer, shown: Shown) -> str | None:
    if not shown.needs_comment or answer.comment.strip():
        return None
    what = "could not be made" if shown.failed is not None else f"has stops ({shown.stops})"
    return f"the release report {what}, and the approval has no comment"
