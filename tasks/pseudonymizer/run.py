"""The step: send each line to ``$de-identify``, and write the answers in order to a file of the same base name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tasks.pseudonymizer import probe
from tasks.pseudonymizer.answers import Findings, Outline, WrongAnswerError, check, outline_of
from tasks.pseudonymizer.chunks import Chunk, halves_of, parts_of
from tasks.pseudonymizer.output import OUTPUT, FileOutput, Result, by_number, leaks_by_path, refuse_leaks
from tasks.pseudonymizer.rules import AnonymizationRules, read_rules
from tasks.pseudonymizer.service import OPERATION, Deidentify, endpoint
from tasks.shared.errors import DataError, ServiceError, SluiceError
from tasks.shared.file_work import Done, FileWork, digest, identities
from tasks.shared.files.data_directory import base_name, data_files, stored_bytes
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ndjson import MIB, lines
from tasks.shared.http.answer import Answer, issues
from tasks.shared.log import logger
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.units import human_count
from tasks.shared.work import file_by_file

STATE: Final = "pseudonymizer"
"""Directory for kept answers of the service, below the job directory."""

_WINDOW: Final = 20 * MIB
"""Bytes of chunks under way above which no further chunk is read. Each is in memory several times."""

_SPARE: Final = 2
"""Threads besides those with a request under way: they check an answer, or prepare the next request."""

_WARNED: Final = {
    "references without type": "references have lost their type, so they lead nowhere",
    "references that no longer resolve": "references no longer lead to a resource of the same Bundle",
    "emptied": "resources came back with nothing but type, id and meta",
    "ids kept": "resources keep their original id",
    "dates that stayed": "dates stayed while others of the same line moved",
}
"""Kind of a finding → text of its warning. The release report lists them, too. The gate judges leaks."""


def run(context: StepContext) -> StepReport:
    """Pseudonymize the input directory into ``pseudonymized/``.

    Raises ``InputError`` for an anonymization file that cannot be used, ``WrongServiceError`` and ``ServiceError`` for
    wrong answers and refusals, ``DataError`` for lines that are no resources, ``GateError`` for identifying values that
    came back. Finished files stay finished.
    """
    config, settings, part = context.config, context.config.services.pseudonymizer, context.part
    files = {base_name(path.name): path for path in data_files(context.input_dir)}
    if not files:
        what = "pseudonymizer: there is nothing to pseudonymize"
        raise DataError("pseudonymizer-no-input", what, context=str(context.input_dir))
    rules = read_rules(settings.anonymization_config) if settings.anonymization_config is not None else None
    warnings = list(rules.warnings if rules is not None else ())
    with context.client(probe.service(config)) as client:
        call = Deidentify(client, config, rules)
        context.meter.set_status("testing the service with a synthetic resource")
        failed = FailedAnswers(context.state(STATE), part.number).begin()
        with failed.saving_answers():
            begun = probe.MadeUp(part.proof) if part.number else probe.begin(call)
        context.meter.set_status("")
        threshold = settings.bundle_split_threshold_mb * MIB
        terms = digest(endpoint(config), rules.digest if rules else "", begun.digest, str(threshold))
        work = FileWork(context.job_dir, context.position, context.job_dir / OUTPUT, terms=terms)
        inputs = identities(files.values(), context.records)
        todo = work.begin(inputs, part.files)
        if work.again:
            warnings.append(
                f"{len(work.again)} finished files are done again: the input, the service, the rules or the answer to "
                "the synthetic resource have changed"
            )
        for done in work.done():
            refuse_leaks(config, done.tallies.get("leaks", {}), done.output)
        context.meter.expect(files=len(files), bytes=stored_bytes(files.values()))
        context.meter.skip(
            files=len(files) - len(todo), stored=stored_bytes(files[one] for one in files.keys() - set(todo))
        )
        lines_of = _Lines(context, rules, call, failed)
        file_by_file(
            context.left_over(work, {base: files[base] for base in todo}, begun.digest),
            lambda base: lines_of.chunks(files[base]),
            lines_of.send,
            lambda base: FileOutput(context, work, base, inputs[base]),
            threads=settings.max_concurrent_requests + _SPARE,
            stop=context.stop,
            weigh=lambda chunk: len(chunk.text),
            budget=_WINDOW,
        )
        if todo and not part.number and probe.ask(call, begun.text).digest != begun.digest:
            work.take_back()  # even if the next run gets the same answer as this one got first
            raise probe.changed(config)
    return _report(context, work.done(), [*files.values()], [*warnings, *begun.warnings])


class _Lines:
    """Reads the lines of files as chunks, and sends chunks to the service."""

    def __init__(
        self, context: StepContext, rules: AnonymizationRules | None, call: Deidentify, failed: FailedAnswers
    ) -> None:
        self._context = context
        self._removes = rules is not None and rules.removes
        self._call = call
        self._failed = failed

    def chunks(self, path: Path) -> Iterator[Chunk]:
        """Yield the lines of a file; a Bundle above the threshold in parts."""
        config = self._context.config
        threshold = config.services.pseudonymizer.bundle_split_threshold_mb * MIB
        for number, text in lines(path, config.limits.max_line_mb * MIB, stored=self._context.meter.read):
            if len(text) <= threshold:
                yield Chunk(path.name, number, text)
                continue
            whole = _outlined(text, f"{path.name}:{number}")
            if not whole.is_bundle or len(whole.types) < 2:
                yield Chunk(path.name, number, text, alone=True)
                continue
            values = whole.values()
            for first, part, last in parts_of(whole.opened(), threshold):
                yield Chunk(path.name, number, part, first, last, len(part) > threshold, values)

    def send(self, chunk: Chunk) -> Result:
        """Send a chunk; return the result. Errors name the place of the chunk."""
        sent = _outlined(chunk.text, chunk.place)
        findings = Findings()
        return chunk, sent, self._received(chunk, sent, findings), findings

    def _received(self, chunk: Chunk, sent: Outline, findings: Findings, start: int = 0) -> list[Outline]:
        """Return the answers to a chunk; halve it as often as the service refuses it as too large (413)."""
        try:
            answer = self._call(sent.text)
        except SluiceError as error:
            if error.answered != 413 or not sent.is_bundle or len(sent.types) < 2:
                raise self._explained(error, _place(chunk, sent, start)) from None
            both: list[Outline] = []
            for first, text in halves_of(sent.opened()):
                both += self._received(chunk, outline_of(text), findings, start + first)
            return both
        try:
            outline, found = check(answer, sent, removes=self._removes, line=chunk.line, values=chunk.values)
        except WrongAnswerError as wrong:
            raise self._wrong(wrong, answer, _place(chunk, sent, start)) from None
        findings.merge(found)
        return [outline]

    def _explained(self, error: SluiceError, place: str) -> SluiceError:
        """Return an error with its place; if the service still works otherwise, it is an error about the resource."""
        answer = error.answer
        refused = partial(ServiceError, context=place, operation=OPERATION, status=error.status)
        fatal = answer is not None and any(severity in ("fatal", "error") for severity, _ in issues(answer.body))
        if error.answered == 413:
            hint = "raise the body limit of the service (30,000,000 bytes by default), or leave the resource out"
            what = "pseudonymizer: the service refuses a single resource as too large"
            return refused("pseudonymizer-too-large", what, hint=hint)
        if error.answered in (422, 500) and fatal and probe.still_works(self._call):
            hint = "does each domain in the rules exist in the pseudonym service (Vfps, gPAS)? see the service's log"
            what = f"pseudonymizer: the service cannot process this resource (status {error.status})"
            error = refused("pseudonymizer-failed", what, hint=f"other resources work: {hint}")
        else:
            error.context = f"{place}\n  {error.context}" if error.context else place
        self._failed.save_answer_of(error, answer=answer)
        return error

    def _wrong(self, wrong: WrongAnswerError, answer: Answer, place: str) -> SluiceError:
        kept = f"its answer is in {self._failed.save_answer(answer.body)}"
        return ServiceError(
            wrong.reference, f"pseudonymizer: the service gave {wrong}", context=place, operation=OPERATION,
            hint=f"{wrong.hint}; {kept}" if wrong.hint else kept, status=answer.status,
        )  # fmt: skip


def _outlined(text: bytes, place: str) -> Outline:
    try:
        return outline_of(text)
    except DataError as error:
        error.context = place
        raise


def _place(chunk: Chunk, sent: Outline, start: int) -> str:
    """Return file and line, the first entry of a part, and the type of a single resource."""
    entry = f" from entry {chunk.first + start}" if chunk.is_part or start else ""
    return f"{chunk.file}:{chunk.line}{entry}" + (f" {sent.types[0]}" if len(sent.types) == 1 else "")


def _report(context: StepContext, done: list[Done], files: list[Path], warnings: list[str]) -> StepReport:
    total: Counter[str] = Counter()
    tallies: dict[str, Counter[str]] = {}
    for one in done:
        total.update(one.counts | {"stored": one.size, "patients": one.patients})
        for kind, tally in one.tallies.items():
            tallies.setdefault(kind, Counter()).update(tally)
        warnings += one.warnings
    for kind, what in _WARNED.items():
        if tallies.get(kind):
            listed = ", ".join(
                f"{name} ({human_count(count, 'line')})" for name, count in by_number(tallies[kind])[:10]
            )
            warnings.append(f"{what}: {listed}")
    for line in warnings:
        logger.warning("pseudonymizer: %s", line)
    leaks = dict(tallies.get("leaks", {}))
    return StepReport(
        files=len(files),
        resources_in=total["resources_in"],
        resources_out=total["resources_out"],
        lines_in=total["lines"],
        lines_out=total["lines"],
        bytes_in=stored_bytes(files),
        bytes_out=total["stored"],
        output=OUTPUT,
        identifying=_worded(leaks_by_path(context.config, leaks)),
        kept_identifiers=_worded(leaks_by_path(context.config, leaks, kept=True)),
        warnings=tuple(dict.fromkeys(warnings)),
        details={
            "split_bundles": total["split"],
            "content_bytes": total["content"],
            "patients": total["patients"],
            "tallies": {kind: dict(tally) for kind, tally in tallies.items()},
        },
    )


def _worded(leaks: dict[str, int]) -> dict[str, str] | None:
    return {path: f"{count:,} lines" for path, count in leaks.items()} or None
