"""The validation step: the service checks every resource of the input; the data are not changed (docs/services.md).

The step completes whatever it finds. The gate decides by its report whether the pipeline goes on. A second validation
step of a pipeline writes to ``validation-<position>/``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tasks.shared.errors import DataError
from tasks.shared.file_work import FileWork, core_first, digest, identities
from tasks.shared.files.data_directory import base_name, data_files, stored_bytes
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ndjson import MIB, lines
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.work import file_by_file
from tasks.validation.chunks import FileItems, ValidationChunk, pack
from tasks.validation.findings import SEVERITIES
from tasks.validation.report import SUFFIX, FileReport, write_summary
from tasks.validation.service import Validator, endpoint, service

REPORTS: Final = "validation"
"""Directory of the reports, below the job directory."""

_SECONDS: Final = 600.0
"""Seconds for a request that the service works on alone. Some services work on one request at a time, so the timeout is
multiplied by the number of requests at once."""

_SPARE: Final = 4
"""Chunks in the window besides those under way, so that one slow answer does not keep the other threads waiting."""


def run(context: StepContext) -> StepReport:
    """Validate every data file of the input that has no report yet, and count the findings of all.

    Raises ``TransientError`` when the service stays away or busy, and ``ServiceError`` when it refuses or answers
    something other than an OperationOutcome, both with file and lines.
    """
    settings = context.config.services.validation
    files = {base_name(path.name): path for path in data_files(context.input_dir)}
    if not files:
        what = "validation: there is nothing to validate"
        raise DataError("validation-no-input", what, context=str(context.input_dir))
    directory, url = context.state(REPORTS), endpoint(settings.url or "")
    work = FileWork(
        context.job_dir, context.position, directory, terms=digest(url), stem=lambda name: name.removesuffix(SUFFIX)
    )
    inputs = identities(files.values(), context.records)
    todo = work.begin(inputs, context.part.files)
    meter, finished = context.meter, files.keys() - set(todo)
    meter.expect(files=len(files), bytes=stored_bytes(files.values()))
    meter.skip(files=len(finished), stored=stored_bytes(files[base] for base in finished))
    items = {base: FileItems(path.name, base) for base, path in files.items()}
    limit, threads = settings.bundle_chunk_size_mb * MIB, settings.max_concurrent_requests
    most = context.config.limits.max_line_mb * MIB

    def chunks(base: str) -> Iterator[ValidationChunk]:
        read = lines(files[base], most, stored=meter.read)
        return pack(items[base].groups(read), file=files[base].name, limit=limit)

    with (
        context.client(replace(service(context.config), timeout=_SECONDS * threads * context.part.at_once)) as client,
        FailedAnswers(directory, context.part.number).begin().saving_answers(),
    ):
        file_by_file(
            context.left_over(work, {base: files[base] for base in todo}),
            chunks,
            Validator(client, url).validate,
            lambda base: FileReport(work, meter, directory, items[base], inputs[base]),
            threads=threads,
            stop=context.stop,
            weigh=lambda chunk: chunk.size,
            budget=(threads + _SPARE) * limit,
        )
    if not context.part.number:
        write_summary(directory, core_first(files))
    return _report(work, files, directory)


def _report(work: FileWork, files: dict[str, Path], directory: Path) -> StepReport:
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
        bytes_in=stored_bytes(files.values()),
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
