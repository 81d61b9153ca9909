"""The validation step: every resource of the input is checked by the service, and stays where it is (document 3 §6).

The step completes whatever is found: whether the pipeline goes on is decided by the gate, from what the step reports. A
second validation step of a pipeline writes to ``validation-<position>/``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tasks.shared.errors import DataError
from tasks.shared.file_work import Done, FileWork, core_first, digest, identities
from tasks.shared.files.data_directory import base_name, data_files
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ndjson import MIB, lines
from tasks.shared.log import logger
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.units import human_count
from tasks.shared.work import in_order
from tasks.validation.chunks import FileItems, ValidationChunk, pack
from tasks.validation.findings import SEVERITIES
from tasks.validation.report import SUFFIX, FileReport, write_summary
from tasks.validation.service import ChunkOutcome, Validator, endpoint, service

REPORTS: Final = "validation"
"""Directory of the reports, below the job directory."""

_SECONDS: Final = 600.0
"""For one request that the service works on alone. Some services take one at a time, so every request is given as much
again for each one that may be before it in the queue."""

_SPARE: Final = 4
"""Chunks in the window beside those that are asked about: one slow answer must not keep the other threads waiting."""


@dataclass(frozen=True, slots=True)
class _End:
    """A file was read to its end."""

    items: FileItems


def run(context: StepContext) -> StepReport:
    """Validate every data file of the input that has no report yet, and count the findings of all.

    Raises ``TransientError`` when the service stays away or busy, and ``ServiceError`` when it refuses or answers
    something else than an OperationOutcome, both with file and lines.
    """
    settings = context.config.services.validation
    files = {base_name(path.name): path for path in data_files(context.input_dir)}
    if not files:
        what = "validation: there is nothing to validate"
        raise DataError("validation-no-input", what, context=str(context.input_dir))
    directory = context.state(REPORTS)
    url = endpoint(settings.url or "")
    work = FileWork(
        context.job_dir, context.position, directory, terms=digest(url), stem=lambda name: name.removesuffix(SUFFIX)
    )
    inputs = identities(files.values(), context.records)
    todo = work.begin(inputs)
    context.meter.work_on(files.values())
    for base in files.keys() - set(todo):
        context.meter.add(files=1)
        context.meter.within(files[base], 0, whole=True, earlier=True)
    timeout = _SECONDS * settings.max_concurrent_requests
    with (
        context.client(service(context.config), timeout=timeout) as client,
        _answers(context, directory).saving_answers(),
    ):
        _Validation(context, Validator(client, url, timeout=timeout), work, files, inputs, directory).run(todo)
    write_summary(directory, core_first(files))
    return _report(context, work, files, directory)


def _answers(context: StepContext, directory: Path) -> FailedAnswers:
    return FailedAnswers(directory).begin()


class _Validation:
    def __init__(
        self,
        context: StepContext,
        validator: Validator,
        work: FileWork,
        files: dict[str, Path],
        inputs: dict[str, str],
        directory: Path,
    ) -> None:
        self._context = context
        self._validator = validator
        self._work = work
        self._files = files
        self._inputs = inputs
        self._directory = directory

    def run(self, todo: list[str]) -> None:
        """Validate these files, in their order."""
        settings = self._context.config.services.validation
        limit, threads = settings.bundle_chunk_size_mb * MIB, settings.max_concurrent_requests
        results = in_order(
            self._chunks(todo, limit),
            self._ask,
            threads=threads,
            stop=self._context.stop,
            weigh=lambda item: item.size if isinstance(item, ValidationChunk) else 0,
            budget=(threads + _SPARE) * limit,
        )
        report: FileReport | None = None
        begun = time.monotonic()
        with closing(results):
            try:
                for item, outcomes in results:
                    base = item.items.base if isinstance(item, _End) else base_name(item.file)
                    report = report or FileReport(self._directory, base)
                    if isinstance(item, ValidationChunk):
                        report.add(item.file, outcomes)
                        self._context.meter.add(resources=len(item))
                        continue
                    self._finish(report, item.items, begun)
                    report, begun = None, time.monotonic()
            finally:
                if report is not None:
                    report.close()

    def _chunks(self, todo: list[str], limit: int) -> Iterator[ValidationChunk | _End]:
        most = self._context.config.limits.max_line_mb * MIB
        for base in todo:
            path = self._files[base]
            items = FileItems(path.name, base)
            yield from pack(items.groups(lines(path, most)), file=path.name, limit=limit)
            yield _End(items)

    def _ask(self, item: ValidationChunk | _End) -> tuple[ValidationChunk | _End, list[ChunkOutcome]]:
        return item, self._validator.validate(item) if isinstance(item, ValidationChunk) else []

    def _finish(self, report: FileReport, items: FileItems, begun: float) -> None:
        tally = report.tally
        report.finish_rows()
        counts = {
            "lines": items.lines, "resources": items.resources, "skipped": items.skipped, "content": items.read,
            "issues": tally.issues, "findings": tally.findings, "resources_with_findings": tally.resources,
        }  # fmt: skip
        done = Done(
            file=report.base,
            identity=self._inputs[report.base],
            counts=counts,
            tallies={
                "severities": dict(tally.severities), "types": dict(tally.types),
                "codes": dict(tally.codes.most_common(100)),
            },
            seconds=round(time.monotonic() - begun, 3),
            patients=items.patients,
        )  # fmt: skip
        self._work.finish(done, report.part)
        self._context.meter.add(files=1)
        self._context.meter.within(self._files[report.base], items.read, whole=True)
        if tally.findings:
            logger.info("validation: %s has %s", items.file, human_count(tally.findings, "finding"))


def _report(context: StepContext, work: FileWork, files: dict[str, Path], directory: Path) -> StepReport:
    total: Counter[str] = Counter()
    tallies: dict[str, Counter[str]] = {"severities": Counter(), "types": Counter(), "codes": Counter()}
    for done in work.done():
        total.update(done.counts)
        for kind, tally in done.tallies.items():
            tallies[kind].update(tally)
    warnings = []
    if total["skipped"]:
        skipped = f"{total['skipped']:,}"
        warnings.append(f"Bundle entries with nothing to validate (no resource, DELETE, search outcome): {skipped}")
    if work.again:
        warnings.append(f"{len(work.again)} finished files are validated again: the input or the service has changed")
    severities = {severity: tallies["severities"][severity] for severity in SEVERITIES}
    return StepReport(
        files=len(files),
        resources_in=total["resources"],
        resources_out=total["resources"],
        lines_in=total["lines"],
        bytes_in=sum(path.stat().st_size for path in files.values()),
        findings=total["findings"],
        warnings=tuple(warnings),
        details={
            "findings": total["findings"],
            "resources_with_findings": total["resources_with_findings"],
            "issues": total["issues"],
            "severities": {severity: count for severity, count in severities.items() if count},
            "types": dict(tallies["types"].most_common()),
            "codes": dict(tallies["codes"].most_common(100)),
            "reports": directory.name,
            "report_files": len(files),
            "skipped_entries": total["skipped"],
        },
    )
