"""The resources that a direct load could not send: ``send/summary.csv``, and ``send/failed/`` with the answers.

Everything here may hold data of patients: mode 0600, in the job directory, never in logs. ``summary.csv`` names file,
line, entry, resource, status and issue codes; ``<number>.json`` holds the resource and the answer.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from tasks.send.pending import Failure
from tasks.send.transaction import OPERATION
from tasks.shared.errors import TerminalError, storage_errors
from tasks.shared.fhir.resource import UNREADABLE
from tasks.shared.files.kept_answers import FAILED
from tasks.shared.files.part_file import PartFile, publish, write_whole
from tasks.shared.log import logger
from tasks.shared.units import as_text

SUMMARY: Final = "summary.csv"
_SHOWN: Final = 5
_LOGGED: Final = 20
_KEPT: Final = 1000
"""Failures whose resource and answer are kept; all of them are in the summary."""

_COLUMNS: Final = ("number", "file", "line", "entry", "resource", "status", "reason")


class RefusedResourcesError(TerminalError):
    """Resources did not get in. ``details`` counts them by reason, for an artifact: ``{"failed": {reason: count}}``.

    A reason is a status with issue codes, or the reference of what made a resource impossible to send: no data.
    """

    details: dict[str, dict[str, int]]


def remove_failures(state: Path) -> None:
    """Remove what an earlier run listed. Raises ``StorageError``."""
    with storage_errors(state):
        for old in [*(state / FAILED).glob("[0-9]*.json"), state / SUMMARY]:
            old.unlink(missing_ok=True)


def list_failures(state: Path, failed: Iterable[Failure], read: int, waiting: int) -> RefusedResourcesError:
    """List what was refused of the ``read`` resources; return it as one error: how many, the reasons, and the first
    places. ``waiting`` were not tried alone. Raises ``StorageError``."""
    reasons: Counter[str] = Counter()
    places: list[str] = []
    with PartFile(state / SUMMARY) as summary:
        summary.write(_row(_COLUMNS))
        for number, (item, status, reason, answer) in enumerate(failed, 1):
            reasons[reason] += 1
            cells = (number, item.file, item.line, item.entry, item.key or None, status, reason)
            summary.write(_row(as_text(cell) if isinstance(cell, str) else cell for cell in cells))
            if number <= _LOGGED:
                places.append(item.named)
                logger.warning("send: %s did not get in: %s", item.named, reason)
            if number <= _KEPT:
                told = None if answer is None else _json(answer)
                about = {"request": _json(bytes(item.raw)), "answer": told}
                record = dict(zip(_COLUMNS[1:], cells[1:], strict=True)) | about
                write_whole(state / FAILED / f"{number:04}.json", msgspec.json.encode(record) + b"\n")
        summary.sync()
        publish(summary.final)
    count = reasons.total()
    shown = "; ".join(f"{of_reason:,} × {reason}" for reason, of_reason in reasons.most_common(_SHOWN))
    more = ("; …" if len(reasons) > _SHOWN else "") + (f"; {waiting:,} more wait, not tried alone" if waiting else "")
    error = RefusedResourcesError(
        "send-refused",
        f"send: {count:,} of {read:,} resources did not get in: {shown}{more}",
        context=", ".join(places[:_SHOWN]) + (", …" if count > _SHOWN else ""),
        hint=f"send/{SUMMARY} in the job directory lists them, and send/{FAILED}/ has the server's answers; after "
        "a correction, continue the job: what is on the server already is not sent again",
        operation=OPERATION,
    )
    error.details = {"failed": dict(reasons.most_common())}
    return error


def _row(cells: Iterable[object]) -> bytes:
    row = io.StringIO()
    csv.writer(row, lineterminator="\n").writerow(cells)
    return row.getvalue().encode()


def _json(data: bytes) -> msgspec.Raw | str:
    """Return the data unchanged if it is JSON, else as text."""
    try:
        data.decode()  # msgspec does not look into strings that it only passes over
        return msgspec.json.decode(data, type=msgspec.Raw)
    except UNREADABLE:
        return data.decode("utf-8", "backslashreplace")
