"""The validation step: every resource of the input is checked by the service, and stays where it is (document 3 §6).

The step completes whatever is found: whether the pipeline goes on is decided by the gate, from what the step reports.
Reports and ``summary.csv`` are in ``validation/``; a second validation step of a pipeline writes to
``validation-<position>/``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tasks.shared.errors import DataError, InputError
from tasks.shared.fhir.long_line import lines_with_long
from tasks.shared.files.data_directory import data_files, stored_bytes
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ledger import Ledger
from tasks.shared.report import FINDINGS_TABLE, StepReport
from tasks.shared.step import StepContext
from tasks.shared.units import human_count
from tasks.shared.work import in_order
from tasks.validation.chunks import ItemReader, ValidationChunk, ValidationFacts, pack
from tasks.validation.client import ChunkOutcome, ValidationClient
from tasks.validation.client import service as service_of
from tasks.validation.findings import SEVERITIES
from tasks.validation.report import FileReport, Reports, assemble

REPORTS: Final = "validation"
"""Directory of the reports, below the job directory."""

LEDGER: Final = "ledger.ndjson"

_SHOWN_CODES: Final = 100
_SPARE: Final = 4
"""Chunks in the window beside those that are asked about: one slow answer must not keep the other threads waiting."""

log = logging.getLogger("sluice.validation")


@dataclass(frozen=True)
class ValidationBounds:
    """Numbers that are not configuration.

    ``timeout`` (seconds) is for one request that the service works on alone. Some services take one at a time, so every
    request is given as much again for each one that may be before it in the queue. ``mebibyte`` is the unit of the size
    of chunks.
    """

    timeout: float = 600.0
    mebibyte: int = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _FilePart:
    """A chunk of a file, to be sent."""

    report: FileReport
    chunk: ValidationChunk

    def __len__(self) -> int:
        return len(self.chunk.body)


@dataclass(frozen=True, slots=True)
class _End:
    """A file was read to its end."""

    report: FileReport
    facts: ValidationFacts

    def __len__(self) -> int:
        return 0


_Work = _FilePart | _End


def run(
    context: StepContext, *, bounds: ValidationBounds | None = None, sleep: Callable[[float], None] | None = None
) -> StepReport:
    """Validate every data file of the input that has no report yet, and count the findings of all.

    ``sleep`` (seconds) is a seam for tests. Raises ``TransientError`` when the service stays away or busy, and
    ``ServiceError`` when it refuses or answers something else than an OperationOutcome, both with file and lines.
    """
    config = context.config
    service = config.services.validation
    if service.url is None:
        raise InputError("validation-url", "validation: there is no service to ask", context="services.validation.url")
    files = data_files(context.input_dir)
    if not files:
        raise DataError(
            "validation-no-input", "validation: there is nothing to validate", context=str(context.input_dir)
        )
    bounds = bounds or ValidationBounds()
    with context.client(service_of(config), max_connections=service.max_concurrent_requests, sleep=sleep) as client:
        timeout = bounds.timeout * service.max_concurrent_requests
        return _Validation(context, files, ValidationClient(client, service.url, timeout=timeout), bounds).run()


class _Validation:
    def __init__(
        self, context: StepContext, files: list[Path], validator: ValidationClient, bounds: ValidationBounds
    ) -> None:
        service = context.config.services.validation
        self._context = context
        self._progress = context.meter
        self._files = files
        self._validator = validator
        self._bounds = bounds
        self._threads = service.max_concurrent_requests
        self._limit = service.bundle_chunk_size_mb * bounds.mebibyte
        self._largest = context.config.limits.largest_resource
        self._directory = context.state(REPORTS)
        self._open: list[FileReport] = []
        self._reports: dict[str, FileReport] = {}

    def run(self) -> StepReport:
        places = Reports(self._directory, self._files)
        failed = FailedAnswers(self._directory).begin()
        self._progress.work_on(self._files)
        with failed.saving_answers(), Ledger(places.state / LEDGER) as ledger:
            try:
                for work, outcomes in in_order(
                    self._works(places, ledger),
                    self._validate,
                    threads=self._threads,
                    stop=self._context.stop,
                    weigh=len,
                    budget=(self._threads + _SPARE) * self._limit,
                ):
                    self._record_outcomes(work, outcomes)
            finally:
                for report in self._open:
                    report.close()
        assemble(self._directory / FINDINGS_TABLE, map(places.fragment, self._reports))
        return self._result()

    # Reading

    def _works(self, places: Reports, ledger: Ledger) -> Iterator[_Work]:
        for path in self._files:
            report = self._reports[path.name] = FileReport(places, ledger, path)
            if report.complete:
                facts = ValidationFacts(**report.account.complete or {})
                self._progress.add(files=1, resources=facts.resources)
                self._progress.within(path, facts.bytes, whole=True, earlier=True)
                continue
            self._open.append(report)
            self._progress.add(resources=report.done)
            resumed = report.done > 0
            reader = ItemReader(path.name)
            lines = lines_with_long(path, limit=self._limit, spool=places.state, largest=self._largest)
            for chunk in pack(
                ((items, reader.facts.bytes) for items in reader.groups(lines)),
                file=path.name,
                limit=self._limit,
                skip=report.done,
            ):
                if resumed:
                    self._progress.within(path, chunk.read - len(chunk.body), earlier=True)
                    resumed = False
                yield _FilePart(report, chunk)
                del chunk  # its bytes belong to the window
            yield _End(report, reader.facts)

    # Asking, in threads

    def _validate(self, work: _Work) -> tuple[_Work, list[ChunkOutcome]]:
        return work, list(self._validator.validate(work.chunk)) if isinstance(work, _FilePart) else []

    # Reporting

    def _record_outcomes(self, work: _Work, outcomes: list[ChunkOutcome]) -> None:
        report = work.report
        if isinstance(work, _FilePart):
            chunk = work.chunk
            report.add(chunk, outcomes)
            self._progress.add(resources=len(chunk))
            self._progress.within(report.path, chunk.read)
            return
        report.finish(work.facts)
        report.close()
        self._open.remove(report)
        self._progress.add(files=1)
        self._progress.within(report.path, work.facts.bytes, whole=True)
        findings = report.account.counts["findings"]
        if findings:
            log.info("validation: %s has %s", report.path.name, human_count(findings, "finding"))

    def _result(self) -> StepReport:
        facts = ValidationFacts()
        counts: Counter[str] = Counter()
        for report in self._reports.values():
            known = report.account.complete or {}
            facts.lines += known["lines"]
            facts.resources += known["resources"]
            facts.skipped += known["skipped"]
            counts.update(report.account.counts)
        skipped = f"Bundle entries with nothing to validate (no resource, DELETE, search outcome): {facts.skipped:,}"
        warnings = (skipped,) if facts.skipped else ()
        severities = {severity: counts[f"severity {severity}"] for severity in SEVERITIES}
        return StepReport(
            files=len(self._files),
            resources_in=facts.resources,
            resources_out=facts.resources,
            lines_in=facts.lines,
            bytes_in=stored_bytes(self._files),
            findings=counts["findings"],
            warnings=warnings,
            details={
                "findings": counts["findings"],
                "resources_with_findings": counts["resources"],
                "issues": counts["issues"],
                "severities": {severity: count for severity, count in severities.items() if count},
                "types": dict(_largest(counts, "type ")),
                "codes": dict(_largest(counts, "code ")[:_SHOWN_CODES]),
                "reports": self._directory.name,
                "report_files": len(self._reports),
                "skipped_entries": facts.skipped,
            },
        )


def _largest(counts: Counter[str], prefix: str) -> list[tuple[str, int]]:
    """Return the counts under a prefix, the largest first."""
    found = [(name.removeprefix(prefix), count) for name, count in counts.items() if name.startswith(prefix)]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))
