"""``send/failed/``: the resources that did not get in, and what the server said about them.

Everything here may hold data of patients: mode 0600, in the job directory, never in logs. ``summary.csv``
names file, line, entry, resource, status and codes; ``<number>.json`` holds the entry and the answer.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from tasks.send.verdict import Verdict
from tasks.shared.blanked import blanked
from tasks.shared.errors import TerminalError, storage_errors
from tasks.shared.fhir.bundle import RejectedResource, Resource
from tasks.shared.files.out_file import AppendFile, OutFile
from tasks.shared.files.spreadsheet import as_text
from tasks.shared.publication import people

SUMMARY: Final = "summary.csv"
MAX_ANSWER: Final = 1024 * 1024
"""Bytes of a server's answer that are kept."""

_SHOWN = 5
_COLUMNS = ("number", "file", "line", "entry", "resource", "status", "reason")


class RefusedResourcesError(TerminalError):
    """Resources did not get in. ``details`` counts them by reason, for an artifact: ``{"failed": {reason: count}}``.

    A reason is a status with issue codes, or the reference of what made a resource impossible to send: no data.
    """

    details: dict[str, dict[str, int]]


class Failures:
    """The failures of one run. What an earlier run left is removed: those resources are sent again now.

    Raises ``StorageError``.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: list[str] = []
        self.count = 0
        """How many there are."""
        self._by_reason: Counter[str] = Counter()
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in [*directory.glob("[0-9]*.json"), directory / SUMMARY]:
                old.unlink(missing_ok=True)

    def refused(self, resource: Resource, verdict: Verdict) -> str:
        """Keep a resource that the server refused; the reason as logs may show it: status and issue codes."""
        codes = ", ".join(verdict.codes)
        reason = f"{verdict.status} ({codes})" if codes else str(verdict.status)
        answer = _json(blanked(verdict.body)[:MAX_ANSWER])
        self._write_failure(resource, resource.type, reason, resource.key, verdict.status, answer)
        return reason

    def rejected(self, rejected: RejectedResource) -> None:
        """Keep a resource, or a line, that could not even be sent."""
        self._write_failure(rejected, rejected.type or "", rejected.reference, rejected.type)

    def error(self, read: int, *, complete: bool, k: int) -> RefusedResourcesError:
        """Return all failures as one error: their number of the ``read`` resources, the reasons, and the first places.
        Each may belong to another patient, so the number follows the rules of publication with ``k``.

        ``complete`` is False when the step gave up before it had tried everything.
        """
        reasons = "; ".join(f"{people(count, k)} × {reason}" for reason, count in self._by_reason.most_common(_SHOWN))
        if len(self._by_reason) > _SHOWN:
            reasons += "; …"
        more = ", …" if self.count > _SHOWN else ""
        gave_up = "" if complete else "; the step gave up, not everything was tried"
        error = RefusedResourcesError(
            "send-refused",
            f"send: {people(self.count, k)} of {read:,} resources did not get in: {reasons}{gave_up}",
            context=", ".join(self._places) + more,
            hint=f"send/{self._directory.name}/{SUMMARY} in the job directory lists them, with the server's answers "
            "beside it; after a correction, continue the job: what is on the server already is not sent again",
            operation="send transaction",
        )
        error.details = {"failed": dict(self._by_reason.most_common())}
        return error

    def _write_failure(
        self,
        what: Resource | RejectedResource,
        kind: str,
        reason: str,
        resource: str | None,
        status: int | None = None,
        answer: msgspec.Raw | str | None = None,
    ) -> None:
        self.count += 1
        self._by_reason[reason] += 1
        if len(self._places) < _SHOWN:
            self._places.append(f"{what.file}:{what.line} {kind}".rstrip())
        row = io.StringIO()
        writer = csv.writer(row, lineterminator="\n")
        if self.count == 1:
            writer.writerow(_COLUMNS)
        cells = (self.count, what.file, what.line, what.entry, resource, status, reason)
        writer.writerow(as_text(cell) if isinstance(cell, str) else cell for cell in cells)
        request = _json(bytes(what.raw))
        record = dict(zip(_COLUMNS[1:], cells[1:], strict=True)) | {"request": request, "answer": answer}
        with OutFile(self._directory / f"{self.count:04}.json") as file:
            file.write(msgspec.json.encode(record) + b"\n")
        with AppendFile(self._directory / SUMMARY) as summary:
            summary.append(row.getvalue().encode())


def _json(data: bytes) -> msgspec.Raw | str:
    """Return the data unchanged if it is JSON, else as text."""
    try:
        data.decode()  # msgspec does not look into strings that it only passes over
        return msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode("utf-8", "backslashreplace")
