"""What a job waits for, in a person's words: the form in the Prefect UI, and the lines on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flows.job.record import JobRecord
from flows.job.waiting import Waiting
from flows.reports.status import wait_lines
from tasks.release_report.report import lines_of
from tasks.shared.files.data_directory import as_shown, base_name, finished_files
from tasks.shared.markdown import code, literal
from tasks.shared.report import Corrections
from tasks.shared.units import human_bytes


def terminal_text(record: JobRecord, waiting: Waiting) -> str:
    """Return what a job waits for: as ``status`` shows it, with the findings, the files that are read next, and the
    destination.
    """
    lines = wait_lines(record, waiting, lines_of(waiting.job_dir))
    lines += [
        f"  files that the next step reads, in {waiting.reads}:",
        *(f"    {file}" for file in _files_read(waiting)),
    ]
    lines += [f"  not corrected, so not read: {name}" for name in _left_out(waiting)]
    where = _destination(record, waiting)
    return "\n".join([*lines, *([f"  destination: {where}"] if where else [])])


def form_text(record: JobRecord, waiting: Waiting, by_hand: str | None) -> str:
    """Return the text of the form; ``by_hand`` is the command to run after the decision, where no worker goes on."""
    steps = record.step_names
    after = f"the job goes on with {code(steps[waiting.position])}" if steps[waiting.position :] else "the job ends"
    lines = [f"The job waits at step {waiting.position} of {len(steps)} for your decision.", ""]
    if waiting.reason is not None:
        lines += [f"**It waits again**: {literal(waiting.reason)}", ""]
    lines += _report(record, waiting)
    lines += [f"- **Destination**: {code(where)}"] if (where := _destination(record, waiting)) else []
    lines += [f"- **Decide**: *release*: {after}; *reject*: the job is cancelled"]
    lines += ["- **The decision is for these files and this destination**: if they change, the job waits again"]
    lines += [f"- **Look at** the files in {code(waiting.looked_at)}"]
    lines += (
        [f"- **The next step reads** the files in {code(waiting.reads)}"] if waiting.reads != waiting.looked_at else []
    )
    lines += [f"  - {code(file)}" for file in _files_read(waiting)]
    lines += [f"- **Not corrected, so not read**: {code(name)}" for name in _left_out(waiting)]
    lines += [f"- **To change something**, {_how_to_correct(waiting)}"]
    if by_hand is not None:
        lines += [f"- **After the decision**, continue the job on its machine: {code(by_hand)}"]
    return "\n".join(lines) + "\n"


def _report(record: JobRecord, waiting: Waiting) -> Iterator[str]:
    """Yield the short form of the release report."""
    shown = record.shown.get(waiting.position)
    if shown is not None and shown.failed is not None:
        yield f"- **The release report could not be made**: {literal(shown.failed)}"
    elif shown is not None and shown.page is not None:
        first, *others = lines_of(waiting.job_dir) or ["made"]
        yield f"- **Release report**: {literal(first)}"
        yield from (f"  - {literal(line.strip())}" for line in others)
        yield f"  - Its page on the machine of the job: {code(str(waiting.job_dir / shown.page))}"
    if shown is not None and shown.needs_comment:
        yield "- **A release needs a comment** that says why"


def _how_to_correct(waiting: Waiting) -> str:
    place = code(waiting.directory)
    if waiting.corrections is Corrections.NOT_SENT:
        return f"use a wait before {code('flattening')}: tables in {place} would not be sent"
    kind = "tables" if waiting.corrections is Corrections.TABLES else "files"
    return f"put all corrected {kind} into {place} and resume: they are read instead, and the job waits again"


def _files_read(waiting: Waiting) -> list[str]:
    """Return the first files that are read next, each with its size, and the number of the others."""
    place = Path(waiting.reads)
    found = ((path.relative_to(place).as_posix(), path.stat().st_size) for path in finished_files(place))
    return as_shown(f"{name}, {human_bytes(size)}" for name, size in found)


def _left_out(waiting: Waiting) -> list[str]:
    """Return the first files that are not read because corrected files take the place of all."""
    if waiting.reads != waiting.directory:
        return []
    corrected = {base_name(path.name) for path in finished_files(Path(waiting.reads))}
    before = finished_files(Path(waiting.looked_at))
    return as_shown(path.name for path in before if base_name(path.name) not in corrected)


def _destination(record: JobRecord, waiting: Waiting) -> str:
    """Return where the data go, in one line; empty if no step sends them."""
    shown = record.shown.get(waiting.position)
    return ", ".join(f"{name} {value}" for name, value in shown.destination.items()) if shown is not None else ""
