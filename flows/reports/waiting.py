"""Describe for a person what a job waits for: in the form in the Prefect UI, and on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flows.job.record import JobRecord
from flows.job.waiting import Shown, Waiting
from tasks.shared.files.data_directory import as_shown, base_name, finished_files
from tasks.shared.markdown import code, literal, visible
from tasks.shared.units import human_bytes


class Style(NamedTuple):
    """Functions that format a sentence, a name, a path (given with the job's directory), and the first words."""

    text: Callable[[str], str]
    name: Callable[[str], str]
    path: Callable[[Path, Path], str]
    label: Callable[[str], str]


PLAIN = Style(visible, visible, lambda path, _: visible(str(path)), str)
MARKDOWN = Style(
    lambda text: literal(text.strip()),
    code,
    lambda path, job_dir: code(str(path.relative_to(job_dir)) if path.is_relative_to(job_dir) else str(path)),
    lambda words: f"**{words[0].upper()}{words[1:]}**",
)


def short_text(record: JobRecord, waiting: Waiting) -> str:
    """Return what a job waits for, from its record alone: findings of the release report are only counted."""
    return _indented(waiting, _points(record, waiting, PLAIN))


def terminal_text(record: JobRecord, waiting: Waiting) -> str:
    """Return what a job waits for, with the findings of the report and the files that the next step reads."""
    return _indented(waiting, _all_points(record, waiting, PLAIN))


def form_text(record: JobRecord, waiting: Waiting, by_hand: str | None) -> str:
    """Return the text of the form. ``by_hand`` is the command to run after the decision if no worker goes on."""
    steps = record.step_names
    after = f"the job goes on with {code(steps[waiting.position])}" if steps[waiting.position :] else "the job ends"
    after += " when it is continued on its machine" if by_hand is not None else ""
    points = [
        *_all_points(record, waiting, MARKDOWN),
        f"**Files** are on the machine of the job, in {code(str(waiting.job_dir))}",
        f"**Decide**: *release*: {after}; *reject*: the job is cancelled for good",
        "**If better rules can repair the data**, do not decide: leave the job waiting, and ask the engineer",
        "**The decision is for these files and this destination**: if they change, the job waits again",
    ]
    if by_hand is not None:
        points.append(f"**After the decision**, continue the job on its machine: {code(by_hand)}")
    lines = [f"{'  ' if point.startswith(' ') else ''}- {point.lstrip()}" for point in points]
    return "\n".join([f"The job waits at step {waiting.position} of {len(steps)} for your decision.", "", *lines, ""])


def _indented(waiting: Waiting, points: Iterable[str]) -> str:
    return "\n".join([f"step {waiting.position} waits for a decision", *(f"  {point}" for point in points)])


def _all_points(record: JobRecord, waiting: Waiting, style: Style) -> list[str]:
    from tasks.release_report.report import lines_of  # here, because ``status`` must be fast and does not need it

    return [*_points(record, waiting, style, lines_of(waiting.job_dir)), *_files(waiting, style)]


def _points(record: JobRecord, waiting: Waiting, style: Style, findings: Sequence[str] = ()) -> Iterator[str]:
    """Yield why the job waits again, the release report, the destination, and where the files are."""
    text, name, path, label = style
    job_dir = waiting.job_dir
    shown = record.shown.get(waiting.position) or Shown()
    if waiting.reason is not None:
        yield f"{label('it waits again')}: {text(waiting.reason)}"
    if shown.failed is not None:
        yield f"{label('the release report could not be made')}: {text(shown.failed)}"
        found = [f"{step.name}: {warning}" for step in record.steps for warning in step.warnings]
        yield f"  warnings of the steps: {len(found) or 'none'}"
        yield from (f"    {text(line)}" for line in as_shown(found))
    elif shown.page is not None:
        first, *others = findings or [f"stops {shown.stops}, looks {shown.looks}"]
        yield f"{label('release report')}: {text(first)}"
        yield from (f"  {text(line)}" for line in others)
        yield f"  its page: {path(job_dir / shown.page, job_dir)}"
    if shown.needs_comment:
        yield f"{label('an approval needs a comment')} that says why"
    if shown.destination:
        yield f"{label('destination')}: {name(', '.join(f'{key} {value}' for key, value in shown.destination.items()))}"
    yield f"{label('the data are in')} {path(Path(waiting.looked_at), job_dir)}"
    kind, place = "tables" if waiting.tables else "files", path(Path(waiting.directory), job_dir)
    how = f"put a complete set of {kind} into {place}, the unchanged ones too, and approve"
    yield f"{label('to correct the data')}, {how}: the job then waits again, with a report about these"


def _files(waiting: Waiting, style: Style) -> Iterator[str]:
    """Yield the first files that the next step reads, and original files that the corrected ones do not replace."""
    _, name, path_of, label = style
    place = Path(waiting.reads)
    files = list(finished_files(place))
    elsewhere = f", in {path_of(place, waiting.job_dir)}" if waiting.reads != waiting.looked_at else ""
    yield f"{label('files that the next step reads')}{elsewhere}:"
    shown = as_shown(f"{path.relative_to(place).as_posix()}, {human_bytes(path.stat().st_size)}" for path in files)
    yield from (f"  {name(file)}" for file in shown)
    if waiting.reads == waiting.directory:
        corrected = {base_name(path.name) for path in files}
        before = finished_files(Path(waiting.looked_at))
        left = as_shown(path.name for path in before if base_name(path.name) not in corrected)
        yield from (f"{label('missing among the corrected files, so left out')}: {name(file)}" for file in left)
