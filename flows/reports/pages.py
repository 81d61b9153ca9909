"""The page of a job in the Prefect UI. Counts, sizes, times and names of steps; never data.

It shows the state of every step, then a table for each in order. The title shows the progress of the running step
(``flows/job/watch.py``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from flows.engine.flow_runs import JOB, FormAnswer, Page
from flows.gate.reviewed_files import NEXT
from flows.job.record import JobEnd, JobRecord
from tasks.release_report.page.words import Words
from tasks.shared.errors import SluiceError
from tasks.shared.log import logger
from tasks.shared.report import ON_DEMAND, Corrections, StepReport, Waiting
from tasks.shared.units import human_bytes, human_duration

DATA = ("#", "step", "state", "files", "resources in", "resources out", "in", "out")
FACTS = ("what", "value")
COMPARED = ("#", "step", "lines written before it", "lines it read", "")
FOUND = ("#", "step", "errors in the data", "")
IDENTIFYING = ("#", "path", "in", "")
TIMES = ("#", "step", "time", "rate", "requests", "retries", "p50", "p95")
"""The columns in two tables, because one is wider than the page."""

_PATH = re.compile(r"\S{30,}")
"""A word that is wider than a narrow column."""

_SIGN = re.compile(r"[/.(:](?=\w)")

PageState = Literal["running"] | JobEnd


@contextmanager
def best_effort(what: str) -> Iterator[None]:
    """Log an error while writing a page instead of failing the run."""
    try:
        yield
    except SluiceError as error:
        logger.warning("%s is not written: %s", what, error.message)


def title(state: str) -> str:
    """Return the title of the page of a job in this state."""
    return f"{JOB}: {state}"


def running_title(position: int, step: str, percent: int | None, text: str) -> str:
    """Return the title while a step runs, with its progress."""
    done = "" if percent is None else f", {percent} %"
    return title(f"running step {position}, {literal(step)}{done}: {literal(text)}")


def _step(step: StepReport, counted: Mapping[str, Any]) -> list[str]:
    """Return the table of a step's counts; ``counted`` are those of a failed step's error."""
    facts = [(name, value) for name, value in step.cells().items() if value and name not in ("#", "step", "state")]
    facts += [fact for key, value in {**step.details, **counted}.items() for fact in _facts(key, value)]
    facts += [("warning", text) for text in step.warnings]
    heading = f"## Step {step.position}, {literal(step.name)}"
    return [heading, "", table(FACTS, facts), ""] if facts else []


def _facts(key: str, value: Any) -> list[tuple[str, str]]:
    """Return one row; for a table of counts or lines, one row for each entry."""
    if isinstance(value, dict) and value and not any(isinstance(entry, (dict, list)) for entry in value.values()):
        return [(f"{_words(key)}: {name}", _plain(key, entry)) for name, entry in value.items()]
    if isinstance(value, list) and value and all(isinstance(line, dict) and line for line in value):
        return [(f"{_words(key)}: {next(iter(line.values()))}", _cells(line)) for line in value]
    return [(_words(key), _plain(key, value))]


def _cells(line: dict[str, Any]) -> str:
    """Return the cells of a line after the first, leaving out empty ones."""
    return ", ".join(f"{_words(name)} {_plain(name, value)}" for name, value in [*line.items()][1:] if value != "")


def _words(key: str) -> str:
    return key.replace("_", " ")


def _plain(key: str, value: Any) -> str:
    """Return a detail as text; ``key`` distinguishes bytes and seconds from other numbers."""
    match value:
        case str():
            return value
        case bool():
            return "yes" if value else "no"
        case None | [] | {}:
            return "none"
        case int() | float() if key.endswith("bytes"):
            return human_bytes(value)
        case int() | float() if key.endswith("seconds"):
            return human_duration(value)
        case int() | float():
            return f"{value:,}"
        case [*entries] if not any(isinstance(entry, (dict, list)) for entry in entries):
            return ", ".join(str(entry) for entry in entries)
    return json.dumps(value, ensure_ascii=False)


def job_page(
    page: Page,
    record: JobRecord,
    *,
    state: PageState,
    continued_with: str | None = None,
    counted: Mapping[str, Any] = MappingProxyType({}),
    language: str = "en",
) -> None:
    """Publish the job's page: the state of every step, what the job waits for, what went wrong.

    ``state`` is the next state of the run, which is not in the record yet; ``continued_with`` the command that
    continues the job; ``counted`` the counts of a failed step's error. The wait is described
    as in the form, in the ``language`` of the release report.
    """
    failed = record.error.step if record.error and state == "failed" else None
    lines = [f"# {literal(record.name)}", "", f"The job is **{state}**.", ""]
    lines += _standing(record, state, language)
    if state in {"waiting", "failed", "stopped"} and continued_with:
        lines += [f"{'Decide' if state == 'waiting' else 'Continue'} on its machine with {code(continued_with)}", ""]
    lines += _tables(record.steps)
    for step in record.steps:
        lines += _step(step, counted if step.name == failed and step.state == "failed" else {})
    lines += ["## Decisions", ""] if record.decisions else []
    for position, approval in record.decisions:
        lines += [f"Step {position} (wait) was {approval.describe_decision(literal)}", ""]
    page.publish(title(state), "\n".join([*lines, *_files(record)]) + "\n")


def _standing(record: JobRecord, state: PageState, language: str) -> list[str]:
    """Return lines about what the job waits for, or what went wrong."""
    lines: list[str] = []
    if state == "waiting" and record.waiting:
        lines += ["## Waiting", "", wait_description(record.waiting, record.step_names, language=language), ""]
    if state in {"failed", "cancelled"} and record.error:
        error = record.error
        where = f"step {literal(error.step)}" if error.step else "preparation"
        lines += ["## Error", "", f"{code(error.reference)} in {where}: {literal(error.message)}", ""]
        lines += [f"{literal(text)}\n" for text in (error.context, error.hint) if text]
    return lines


def _tables(steps: Sequence[StepReport]) -> Iterator[str]:
    """Yield the tables with a row for every step, or for the steps that have values there."""
    rows = [step.cells() for step in steps]
    timed = [[cells[name] for name in TIMES] for cells in rows if cells["time"]]
    yield from _section("Steps", DATA, [[cells[name] for name in DATA] for cells in rows])
    yield from _section("Times and requests", TIMES, timed)
    yield from ("p50 and p95: the time that half and 95 % of the requests did not exceed.", "") if timed else ()
    yield from _section("Reconciliation", COMPARED, [*_reconciliation(steps)])
    yield from _section("Findings", FOUND, [_found(step) for step in steps if step.findings])
    yield from _section("Still identifying", IDENTIFYING, [row for step in steps for row in _identifying(step)])


def _section(heading: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"## {heading}", "", table(header, rows), ""] if rows else []


def _files(record: JobRecord) -> Iterator[str]:
    """Yield the job's id and the paths of its files."""
    yield from ("## Files", "", f"- job {code(record.id)}")
    report = str(record.page) if record.page is not None else None
    files = {"configuration": record.config, "CRTDL": record.crtdl, "directory": record.directory}
    for what, path in (files | {"release report": report}).items():
        if path:
            yield f"- {what} {code(path)}"
    if record.shown_at_the_end is not None and record.shown_at_the_end.on_demand:
        yield f"- {ON_DEMAND}"


def _reconciliation(steps: Sequence[StepReport]) -> Iterator[tuple[str, ...]]:
    """Yield a row of lines written by the step before and read by the step, for each step that compared them."""
    for step in steps:
        written, read = step.lines_expected, step.lines_in
        if written is not None and read is not None:
            verdict = "agrees" if written == read else "differs"
            yield str(step.position), step.name, f"{written:,}", f"{read:,}", verdict


def _found(step: StepReport) -> tuple[str, str, str, str]:
    """Return the findings of a validation and, last, whether they stop the job."""
    place = f"each is listed in {step.details['reports']}/summary.csv" if "reports" in step.details else ""
    return str(step.position), step.name, f"{step.findings or 0:,}", place


def _identifying(step: StepReport) -> Iterator[tuple[str, str, str, str]]:
    """Yield the identifying elements still in the output of a step, by path, and whether they are intended."""
    for paths, meant in ((step.identifying, "came back unchanged"), (step.kept_identifiers, "kept on purpose")):
        for path, lines in (paths or {}).items():
            yield str(step.position), path, lines, meant


def wait_description(
    waiting: Waiting, step_names: Sequence[str], by_hand: str | None = None, *, language: str = "en"
) -> str:
    """Return the text of the resume form, in the ``language`` of the release report.

    ``by_hand`` is the command that continues the job, if no worker does after the decision.
    """
    words = Words(language, k=0)
    after = step_names[waiting.position : waiting.position + 1]
    further = words("form_further", step=code(after[0])) if after else words("form_complete")
    lines = [words("form_waits", step=waiting.position, steps=len(step_names)), ""]
    if waiting.again:
        lines += [words("form_changed"), "", *_items(map(words.again, waiting.again)), ""]
    if waiting.refused:
        lines += [words("form_refused"), "", *_items(map(words.again, waiting.refused)), ""]
    lines += _release(waiting, words)
    lines += [f"- {words('form_look', path=code(waiting.looked_at))}"]
    if waiting.reads:
        files = words("form_corrected" if waiting.reads == waiting.directory else "form_these")
        reader = words("form_next") if waiting.reader == NEXT else code(waiting.reader)
        what = "form_leaves" if waiting.leaves else "form_goes_on"
        lines += [f"- {words(what, reader=reader, files=files, path=code(waiting.reads))}"]
        lines += [f"  {line}" for line in _items(waiting.files)]
    lines += [f"- {_change(waiting, words)}", f"- {words('form_for_now')}"]
    lines += [f"- {words('form_decide', further=further)}"]
    if by_hand is not None:
        lines += [f"- {words('form_by_hand', command=code(by_hand))}"]
    return "\n".join(lines) + "\n"


def field_words(language: str) -> dict[str, tuple[str, str]]:
    """Return label and description of each field of the form."""
    words = Words(language, k=0)
    return {name: (words(f"field_{name}"), words(f"field_{name}_help")) for name in FormAnswer.model_fields}


def _release(waiting: Waiting, words: Words) -> list[str]:
    """Return the short release report and its path."""
    shown, lines = waiting.report, []
    if shown is not None and shown.missing is not None:
        lines += [words("form_missing", why=literal(shown.missing)), ""]
    elif shown is not None:
        first, *found = [_breakable(literal(line.strip())) for line in shown.lines] or [""]
        lines += [f"- {words('form_report')}: {first}"]
        lines += [f"- {line}" for line in found]
        place = Path(waiting.directory).parent / shown.page if shown.page else None
        lines += [f"- {words('form_page', path=code(str(place)))}"] if place else []
        lines += [""]
    if shown is not None and shown.inside:
        lines += [words("form_inside"), ""]
    if shown is not None and shown.needs_comment:
        lines += [words("form_comment"), ""]
    return lines


def _breakable(text: str) -> str:
    """Return Markdown whose long paths may break after their separators in a narrow column."""
    return _PATH.sub(lambda path: _SIGN.sub(r"\g<0><wbr>", path[0]), text)


def _items(lines: Iterable[str]) -> list[str]:
    return [f"- {code(line)}" for line in lines]


def _change(waiting: Waiting, words: Words) -> str:
    """Return where corrected files go, and which can be corrected."""
    place = code(waiting.directory)
    if waiting.corrections is Corrections.NOT_SENT:
        return words("form_no_change", path=place)
    kind = "tables" if waiting.corrections is Corrections.TABLES else "files"
    return words("form_change", files=words(f"form_change_{kind}"), path=place)


_SPECIAL = re.compile(
    r"[\\`*\[\]<>|!~@]"  # wherever they stand
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; not within a word
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<=\w):(?=//)"  # a URL becomes no link
    r"|(?m:^)[ \t]*(?:[#+=-](?=[\s#+=-]|$)|\d+(?=[.)](?:\s|$)))"  # heading, list, rule
)


def literal(text: str) -> str:
    """Return Markdown that is shown as ``text``."""
    return _SPECIAL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    piece = found.group()
    # A number at the beginning of a line makes a list of it through the character behind.
    return f"{piece}\\" if piece[-1].isdigit() else f"{piece[:-1]}\\{piece[-1]}"


def code(text: str) -> str:
    """Return a path or a name as code."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of literal texts; columns without any value are left out, except the first two."""
    keep = [n for n in range(len(header)) if n < 2 or any(cells[n] for cells in rows)]
    lines = ["| " + " | ".join(header[n] for n in keep) + " |", "|" + "---|" * len(keep)]
    lines += ["| " + " | ".join(literal(cells[n]).replace("\n", " ") for n in keep) + " |" for cells in rows]
    return "\n".join(lines)
