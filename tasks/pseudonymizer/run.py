"""The step: every line of every file through ``$de-identify``, in its order, into a file of the same base name.

``core.ndjson`` is done first and alone, then the other files in one window: at most
``services.pseudonymizer.max_concurrent_requests`` requests are under way, also across the borders of small files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from config import PipelineConfig
from tasks.pseudonymizer import probe
from tasks.pseudonymizer.answers import Findings, Outline, WrongAnswerError, check, outline_of
from tasks.pseudonymizer.chunks import Chunk, halves_of, joined, opened, parts_of
from tasks.pseudonymizer.leaks import Leak, values_in
from tasks.pseudonymizer.rules import AnonymizationRules, read_rules
from tasks.pseudonymizer.service import OPERATION, Deidentify, endpoint
from tasks.shared.errors import DataError, GateError, ServiceError, SluiceError
from tasks.shared.fhir.bundles import Bundle
from tasks.shared.file_work import Done, FileWork, digest, identities
from tasks.shared.files.data_directory import CORE, base_name, data_file_name, data_files
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ndjson import MIB, lines
from tasks.shared.files.part_file import PartFile
from tasks.shared.http.answer import Answer, issues
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.errors import answer_of
from tasks.shared.log import logger
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.work import in_order

OUTPUT: Final = "pseudonymized"
STATE: Final = "pseudonymizer"
"""Directory for kept answers of the service, below the job directory."""

_WINDOW: Final = 20 * MIB
"""Bytes of chunks under way above which no further one is read. Each is in memory several times."""

_WARNED: Final = {
    "references without type": "references have no type any more, so they lead nowhere",
    "references that resolve no more": "references that led to a resource of the same Bundle do not any more",
    "emptied": "resources came back with nothing but type, id and meta",
    "ids kept": "resources keep their original id",
    "dates that stayed": "dates stayed while others of the same line moved",
}
"""Findings that are warnings of the step, and facts of the release report; leaks are a gate besides."""


@dataclass(frozen=True, repr=False)
class Result:
    """What came back for a chunk: its texts, one unless the service took it in parts only, and what was found."""

    chunk: Chunk
    sent: Outline
    received: list[Outline]
    findings: Findings


@dataclass
class FileState:
    """The file whose results arrive: its output, counts and findings so far."""

    base: str
    part: PartFile
    started: float
    requests: int
    retries: int
    read: int = 0
    """Bytes of content of the input that are done."""
    counts: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    line: Findings = field(default_factory=Findings)
    """Of the line whose parts arrive."""
    parts: list[Bundle] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)


def run(context: StepContext) -> StepReport:
    """Pseudonymize the input directory into ``pseudonymized/``.

    Raises ``InputError`` for an anonymization file that cannot be used, ``WrongServiceError`` and ``ServiceError`` for
    what the service does, ``DataError`` for lines that are no resources, ``GateError`` for identifying values that came
    back. Finished files stay finished.
    """
    settings = context.config.services.pseudonymizer
    files = {base_name(path.name): path for path in data_files(context.input_dir)}
    if not files:
        raise DataError(
            "pseudonymizer-no-input", "pseudonymizer: there is nothing to pseudonymize", context=str(context.input_dir)
        )
    rules = read_rules(settings.anonymization_config) if settings.anonymization_config is not None else None
    warnings = list(rules.warnings if rules is not None else ())
    client = context.client(probe.service(context.config), timeout=settings.timeout.total_seconds())
    with client:
        context.meter.set_status("testing the service with a made-up resource")
        begun = probe.begin(client, context.config, rules, settings.max_concurrent_requests)
        terms = digest(endpoint(context.config), rules.digest if rules else "", begun.digest, str(_threshold(context)))
        work = FileWork(context.job_dir, context.position, context.job_dir / OUTPUT, terms=terms)
        inputs = identities(files.values(), context.records)
        todo = work.begin(inputs)
        if work.again:
            warnings.append(
                f"{len(work.again)} finished files are done again: the input, the service, the rules or the answer to "
                "the made-up resource have changed"
            )
        for done in work.done():
            refuse_leaks(context.config, done.tallies.get("leaks", {}), done.output)
        _Pseudonymization(context, client, rules, work, files, inputs).run(todo)
        if todo and not probe.ends_as(client, context.config, rules, begun):
            work.take_back()  # also where the service gives the first answer again when the job is continued
            raise probe.changed(context.config)
    return _report(context, work.done(), [*files.values()], [*warnings, *begun.warnings])


class _Pseudonymization:
    def __init__(
        self,
        context: StepContext,
        client: ServiceClient,
        rules: AnonymizationRules | None,
        work: FileWork,
        files: dict[str, Path],
        inputs: dict[str, str],
    ) -> None:
        self._context = context
        self._client = client
        self._rules = rules
        self._work = work
        self._files = files
        self._inputs = inputs
        self._deidentify = Deidentify(client, endpoint(context.config), rules)
        self._failed = FailedAnswers(context.state(STATE)).begin()

    def run(self, todo: list[str]) -> None:
        """Do these files, ``core`` alone and first."""
        self._context.meter.work_on(self._files[base] for base in todo)
        core = [base for base in todo if base.lower() == CORE]
        for stage in (core, [base for base in todo if base not in core]):
            self._stage(stage)

    def _stage(self, bases: list[str]) -> None:
        settings = self._context.config.services.pseudonymizer
        results = in_order(
            self._chunks(bases),
            self._send,
            threads=settings.max_concurrent_requests,
            stop=self._context.stop,
            weigh=lambda item: len(item.text) if isinstance(item, Chunk) else 0,
            budget=_WINDOW,
        )
        state: FileState | None = None
        with closing(results):
            try:
                for base, result in results:
                    state = state or self._opened(base)
                    if result is not None:
                        self._take(state, result)
                    else:
                        self._finish(state)
                        state = None
            finally:
                if state is not None:
                    state.part.__exit__()

    def _chunks(self, bases: Iterable[str]) -> Iterator[Chunk | str]:
        """Yield the chunks of the files; behind the last one of each file its base name."""
        most, threshold = self._context.config.limits.max_line_mb * MIB, _threshold(self._context)
        for base in bases:
            path = self._files[base]
            for number, text in lines(path, most):
                if len(text) <= threshold:
                    yield Chunk(path.name, number, text)
                    continue
                bundle = opened(text, f"{path.name}:{number}")
                if bundle is None or len(bundle.entries) < 2:
                    yield Chunk(path.name, number, text, alone=True)
                    continue
                values = values_in(bundle.resources())
                for first, part, last in parts_of(bundle, threshold):
                    alone = len(part) > threshold
                    yield Chunk(path.name, number, part, first, last, alone, values)
            yield base

    def _send(self, item: Chunk | str) -> tuple[str, Result | None]:
        if isinstance(item, str):
            return item, None
        try:
            sent = outline_of(item.text)
        except DataError as error:
            error.context = item.place
            raise
        findings = Findings()
        received = self._received(item, sent, findings)
        return base_name(item.file), Result(item, sent, received, findings)

    def _received(self, chunk: Chunk, sent: Outline, findings: Findings, start: int = 0) -> list[Outline]:
        """Return the answers to a chunk, in halves where the service refuses it as too large (413)."""
        place = f"{chunk.file}:{chunk.line}" + (f" from entry {chunk.first + start}" if chunk.is_part or start else "")
        place += f" {sent.types[0]}" if len(sent.types) == 1 else ""
        try:
            answer = self._deidentify(sent.text)
        except SluiceError as error:
            if error.answered == 413 and sent.bundle is not None and len(sent.bundle.entries) > 1:
                both: list[Outline] = []
                for first, text in halves_of(sent.bundle):
                    both += self._received(chunk, outline_of(text), findings, start + first)
                return both
            raise self._explained(error, place) from None
        removes = self._rules is not None and self._rules.removes
        try:
            outline, found = check(answer, sent, removes=removes, line=chunk.line, values=chunk.values)
        except WrongAnswerError as wrong:
            raise self._wrong(wrong, answer, place) from None
        findings.merge(found)
        return [outline]

    def _take(self, state: FileState, result: Result) -> None:
        """Write what came back for a chunk, and count it."""
        chunk, counts = result.chunk, state.counts
        counts["resources_in"] += len(result.sent.resources)
        state.read += len(chunk.text) + 1
        counts["resources_out"] += sum(len(one.resources) for one in result.received)
        counts["patients"] += sum(one.types.count("Patient") for one in result.received)
        state.line.merge(result.findings)
        if chunk.alone and len(state.alone) < 20:
            state.alone.append(chunk.place)
        single = result.received[0] if len(result.received) == 1 and not chunk.is_part else None
        if single is None or (single.bundle is not None and "type" not in single.bundle.members):
            state.parts += (one.bundle for one in result.received if one.bundle is not None)
        if chunk.last:
            sent_type = result.sent.bundle.members.get("type") if result.sent.bundle is not None else None
            text = joined(state.parts, sent_type) if state.parts else result.received[0].text
            state.part.write(text + b"\n")
            counts["lines"] += 1
            counts["split"] += chunk.is_part
            state.findings.update(state.line)
            state.parts, state.line = [], Findings()
            self._context.meter.add(resources=len(result.sent.resources))
            self._context.meter.within(self._files[state.base], state.read)

    def _opened(self, base: str) -> FileState:
        compression = self._context.config.compression
        final = self._context.job_dir / OUTPUT / data_file_name(base, compressed=compression.enabled)
        part = PartFile(final, compression.level if compression.enabled else None)
        meter = self._context.meter
        return FileState(base, part, time.monotonic(), meter.requests, meter.retries)

    def _finish(self, state: FileState) -> None:
        """Record a file, and end the step if it holds identifying values."""
        tallies = {kind: dict(tally.most_common(200)) for kind, tally in state.findings.tallies.items()}
        tallies["leaks"] = _without_few_birth_dates(tallies.get("leaks", {}), state.counts["lines"])
        if state.findings.emptied and state.findings.emptied == state.counts["resources_in"]:
            raise DataError(
                "everything-removed",
                "pseudonymizer: every resource of the file came back with nothing but type, id and meta",
                context=state.base,
                hint="which rules does the service use? see services.pseudonymizer.anonymization_config",
            )
        meter = self._context.meter
        done = Done(
            file=state.base,
            identity=self._inputs[state.base],
            counts={name: count for name, count in state.counts.items() if name != "patients"}
            | {"content": state.part.content},
            tallies={kind: tally for kind, tally in tallies.items() if tally},
            warnings=tuple(f"{place}: a resource above the threshold travels alone" for place in state.alone),
            requests=meter.requests - state.requests,
            retries=meter.retries - state.retries,
            seconds=round(time.monotonic() - state.started, 3),
            patients=state.counts["patients"],
        )
        done = self._work.finish(done, state.part)
        meter.add(files=1)
        meter.within(self._files[state.base], state.read, whole=True)
        refuse_leaks(self._context.config, done.tallies.get("leaks", {}), done.output)

    def _explained(self, error: SluiceError, place: str) -> SluiceError:
        """Return an error with its place; a refusal that lasts is the resource's fault if the service still works."""
        answer = answer_of(error)
        if answer is not None and answer.status == 413:
            hint = "raise the body limit of the service (30,000,000 bytes by default), or leave the resource out"
            return ServiceError(
                "pseudonymizer-too-large", "pseudonymizer: the service refuses a single resource as too large",
                context=place, hint=hint, operation=OPERATION, status=413,
            )  # fmt: skip
        fatal = answer is not None and any(severity in ("fatal", "error") for severity, _ in issues(answer.body))
        failed = answer is not None and answer.status in (422, 500)
        if failed and fatal and probe.still_works(self._client, self._context.config, self._rules):
            status = answer.status if answer is not None else None
            wrong = ServiceError(
                "pseudonymizer-failed", f"pseudonymizer: the service cannot process this resource (status {status})",
                context=place, operation=OPERATION, status=status,
                hint="other resources work: does each domain in the rules exist in the pseudonym service (Vfps, gPAS)? "
                "see the log of the service",
            )  # fmt: skip
            self._failed.save_answer_of(wrong, answer=answer)
            return wrong
        error.context = f"{place}\n  {error.context}" if error.context else place
        self._failed.save_answer_of(error)
        return error

    def _wrong(self, wrong: WrongAnswerError, answer: Answer, place: str) -> SluiceError:
        kept = self._failed.save_answer(answer.body)
        hint = f"{wrong.hint}; its answer is in {kept}" if wrong.hint else f"its answer is in {kept}"
        return ServiceError(
            wrong.reference, f"pseudonymizer: the service gave {wrong}", context=place, hint=hint, operation=OPERATION,
            status=answer.status,
        )  # fmt: skip


def refuse_leaks(config: PipelineConfig, leaks: dict[str, int], file: str) -> None:
    """Raise ``GateError`` (``residual-identifiers``) if there are leaks that are not kept on purpose."""
    found = stopping(config, leaks)
    if found and config.services.pseudonymizer.residual_identifiers == "stop":
        listed = ", ".join(f"{path} ({count:,} lines)" for path, count in found.items())
        raise GateError(
            "residual-identifiers",
            f"pseudonymizer: identifying values came back unchanged: {listed}",
            context=file,
            hint="add the missing rules; list identifiers to keep in services.pseudonymizer.kept_identifiers; with "
            "residual_identifiers: warn the job goes on with the data as they are",
        )


def stopping(config: PipelineConfig, leaks: dict[str, int], *, kept: bool = False) -> dict[str, int]:
    """Return path → lines of the leaks that are not kept on purpose; with ``kept`` of those that are."""
    allowed = frozenset(config.services.pseudonymizer.kept_identifiers)
    found: Counter[str] = Counter()
    for key, count in leaks.items():
        leak = Leak(*key.split("|", 2))
        if (leak.path in allowed or leak.system in allowed) == kept:
            found[leak.path] += count
    return dict(_by_number(found))


def _by_number(tally: Counter[str]) -> list[tuple[str, int]]:
    return sorted(tally.items(), key=lambda item: (-item[1], item[0]))


def _without_few_birth_dates(leaks: dict[str, int], count: int) -> dict[str, int]:
    """Return the leaks without birth dates that few lines keep: a shift can be zero (document 3 §4)."""
    return {
        key: found
        for key, found in leaks.items()
        if Leak(*key.split("|", 2)).kind != "birth date" or found * 20 > count
    }


def _threshold(context: StepContext) -> int:
    return context.config.services.pseudonymizer.bundle_split_threshold_mb * MIB


def _report(context: StepContext, done: list[Done], files: list[Path], warnings: list[str]) -> StepReport:
    total: Counter[str] = Counter()
    tallies: dict[str, Counter[str]] = {}
    for one in done:
        total.update(one.counts | {"stored": one.size, "patients": one.patients})
        for kind, tally in one.tallies.items():
            tallies.setdefault(kind, Counter()).update(tally)
        warnings += one.warnings
    leaks = dict(tallies.get("leaks", {}))
    for kind, what in _WARNED.items():
        if tallies.get(kind):
            listed = ", ".join(f"{name} ({count:,} lines)" for name, count in _by_number(tallies[kind])[:10])
            warnings.append(f"{what}: {listed}")
    for line in warnings:
        logger.warning("pseudonymizer: %s", line)
    return StepReport(
        files=len(files),
        resources_in=total["resources_in"],
        resources_out=total["resources_out"],
        lines_in=total["lines"],
        lines_out=total["lines"],
        bytes_in=sum(path.stat().st_size for path in files),
        bytes_out=total["stored"],
        output=OUTPUT,
        identifying=_worded(stopping(context.config, leaks)),
        kept_identifiers=_worded(stopping(context.config, leaks, kept=True)),
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
