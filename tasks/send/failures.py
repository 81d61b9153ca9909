"""The resources that a direct load could not send: ``send/summary.csv``, and ``send/failed/refused.ndjson``.

Both may hold data of patients: mode 0600, never in logs. The second file has resource and answer as well.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tasks.send.transaction import OPERATION, Item, Refusal
from tasks.shared.blanked import blanked
from tasks.shared.errors import TerminalError, storage_errors
from tasks.shared.files.kept_answers import FAILED
from tasks.shared.files.part_file import PartFile, publish
from tasks.shared.units import as_text

SUMMARY: Final = "summary.csv"
REFUSED: Final = f"{FAILED}/refused.ndjson"
_SHOWN: Final = 5
_COLUMNS: Final = ("file", "line", "entry", "resource", "status", "reason")

Failure = tuple[Item, str, Refusal | None]
"""A resource that was not accepted, the reason without data, and the refusal (``None``: it was not sent)."""


def remove_failures(state: Path) -> None:
    """Remove the files of an earlier run. Raises ``StorageError``."""
    with storage_errors(state):
        for name in (SUMMARY, REFUSED):
            (state / name).unlink(missing_ok=True)


def list_failures(state: Path, failed: Iterable[Failure], read: int, waiting: int) -> TerminalError:
    """List what was refused of the ``read`` resources; return one error with the reasons and the first places.

    ``waiting`` is the number of resources that were not tried alone. No reason holds data.
    """
    reasons: Counter[str] = Counter()
    places: list[str] = []
    with PartFile(state / SUMMARY) as summary, PartFile(state / REFUSED) as kept:
        summary.write(_row(_COLUMNS))
        for item, reason, refusal in failed:
            reasons[reason] += 1
            status = None if refusal is None else refusal.answer.status
            cells = (item.file, item.line, item.entry, item.key or None, status, reason)
            summary.write(_row(as_text(cell) if isinstance(cell, str) else cell for cell in cells))
            answer = None if refusal is None else _text(blanked(refusal.answer.body))
            about = {"request": _text(bytes(item.raw)), "answer": answer}
            kept.write(msgspec.json.encode(dict(zip(_COLUMNS, cells, strict=True)) | about) + b"\n")
            if len(places) < _SHOWN:
                places.append(item.named)
        for file in (summary, kept):
            file.sync()
            publish(file.final)
    count = reasons.total()
    shown = "; ".join(f"{of_reason:,} × {reason}" for reason, of_reason in reasons.most_common(_SHOWN))
    more = ("; …" if len(reasons) > _SHOWN else "") + (f"; {waiting:,} more wait, not tried alone" if waiting else "")
    return TerminalError(
        "send-refused",
        f"send: {count:,} of {read:,} resources were not accepted: {shown}{more}",
        context=", ".join(places) + (", …" if count > _SHOWN else ""),
        hint=f"send/{SUMMARY} in the job directory lists them, and send/{REFUSED} has the server's answers; after "
        "a correction, continue the job: what is on the server already is not sent again",
        operation=OPERATION,
    )


def _row(cells: Iterable[object]) -> bytes:
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow(cells)
    return row.getvalue().encode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
