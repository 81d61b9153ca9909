"""The step: every line of every input file through ``$de-identify``, in its order, into a file of the same base name.

``core.ndjson`` is done first and alone, then the other files in one window: at most
``services.pseudonymizer.max_concurrent_requests`` requests are under way, also across the borders of small files.
Finished files are not done again; a file that was begun goes on at its last cut (``outputs.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from config import ResidualIdentifiers
from tasks.pseudonymizer.agreement import Agreement
from tasks.pseudonymizer.client import Deidentify, service
from tasks.pseudonymizer.deidentification import (
    Counts,
    Deidentification,
    Deidentified,
    Reassembly,
    RequestChunk,
    chunks,
)
from tasks.pseudonymizer.outputs import OUTPUT, Outputs, OutputSource
from tasks.pseudonymizer.residual_identifiers import Residuals, paths_of, worded
from tasks.pseudonymizer.rules import AnonymizationRules, read_rules
from tasks.pseudonymizer.surviving_ids import PLACES
from tasks.shared.errors import DataError, InputError
from tasks.shared.files.data_directory import CORE, data_files, stored_bytes
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.files.ledger import Ledger
from tasks.shared.files.resumable import CUT_EVERY
from tasks.shared.http.client import ServiceClient
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tasks.shared.stop import SharedStop
from tasks.shared.work import in_order

STATE: Final = "pseudonymizer"
"""Directory of the step's own files, below the job directory: the ledger, answers that were no resources."""

_MIB: Final = 1 << 20
_SPARE: Final = 2
"""Threads beyond the requests under way: they look at answers and make bodies in the meantime."""
_LOGGED: Final = 20

log = logging.getLogger("sluice.pseudonymizer")


@dataclass(frozen=True)
class PseudonymizerBounds:
    """Numbers that are not configuration, in bytes.

    While the chunks under way are less than ``window``, another one is read: three of the default threshold. Each is in
    memory several times (the line, the body, the answer, its parts), so this is what keeps a run below 300 MB.
    ``cut_every`` is what of the output may be lost by a kill.
    """

    window: int = 20 * _MIB
    cut_every: int = CUT_EVERY


def run(
    context: StepContext, *, bounds: PseudonymizerBounds | None = None, sleep: Callable[[float], None] | None = None
) -> StepReport:
    """Pseudonymize the input directory into ``pseudonymized/``.

    ``sleep`` (seconds) is a seam for tests. Raises ``InputError`` for an anonymization file that cannot be used,
    ``ServiceError`` and ``TransientError`` for what the service does, ``DataError`` for lines that are no resources,
    ``ReconciliationError`` for entries that are missing; what is done stays done.
    """
    settings = context.config.services.pseudonymizer
    if settings.url is None:
        raise InputError(
            "pseudonymizer-url", "pseudonymizer: there is no service to send to", context="services.pseudonymizer.url"
        )
    files = data_files(context.input_dir)
    if not files:
        raise DataError(
            "pseudonymizer-no-input", "pseudonymizer: there is nothing to pseudonymize", context=str(context.input_dir)
        )
    rules = read_rules(settings.anonymization_config) if settings.anonymization_config is not None else None
    for warning in rules.warnings if rules is not None else ():
        log.warning("pseudonymizer: %s", warning)
    return _PseudonymizerRun(context, files, rules, bounds or PseudonymizerBounds(), sleep).run()


class _PseudonymizerRun:
    def __init__(
        self,
        context: StepContext,
        files: list[Path],
        rules: AnonymizationRules | None,
        bounds: PseudonymizerBounds,
        sleep: Callable[[float], None] | None,
    ) -> None:
        self._context = context
        self._settings = context.config.services.pseudonymizer
        self._files = files
        self._rules = rules
        self._sleep = sleep
        self._together = SharedStop(context.stop)
        self._bounds = bounds
        self._state = context.state(STATE)
        self._whole: OutputSource | None = None
        self._bundle: Reassembly | None = None
        self._left: set[str] = set()
        self._logged = 0

    def run(self) -> StepReport:
        rules = self._rules.digest if self._rules is not None else "rules of the service"
        with Ledger(self._state / "ledger.ndjson") as ledger:
            self._outputs = Outputs(
                self._context.job_dir / OUTPUT,
                self._files,
                ledger,
                self._context.config.compression,
                terms=" ".join([str(self._settings.url), rules, *sorted(self._settings.kept_identifiers)]),
                cut_every=self._bounds.cut_every,
            )
            try:
                self._all()
            finally:
                self._outputs.close_early(self._whole)
            return self._result()

    def _all(self) -> None:
        sources = self._outputs.sources
        self._context.meter.work_on(source.path for source in sources)
        for source in sources:
            counts = source.counts
            self._context.meter.add(files=source.finished, resources=counts["resources_in"])
            if source.finished:
                self._refuse_residuals(source)
            if counts["bytes_in"]:
                self._context.meter.within(source.path, counts["bytes_in"], whole=source.finished, earlier=True)
        self._rest([source for source in sources if not source.finished])

    def _rest(self, left: list[OutputSource]) -> None:
        """Process the files that are not finished."""
        if not left:
            return
        core = [source for source in left if source.base.lower() == CORE]
        with self._client() as client:
            service = Deidentify(
                client, str(self._settings.url), self._rules, slots=self._settings.max_concurrent_requests
            )
            agreement = Agreement(
                self._rules is not None and self._rules.removes,
                Residuals(frozenset(self._settings.kept_identifiers)),
            )
            work = Deidentification(service, FailedAnswers(self._state).begin(), agreement)
            for stage in (core, [source for source in left if source not in core]):
                self._stage(stage, work)

    def _client(self) -> ServiceClient:
        return self._context.client(
            service(self._context.config),
            timeout=self._settings.timeout.total_seconds(),
            stop=self._together,
            max_connections=self._settings.max_concurrent_requests,
            sleep=self._sleep,
        )

    def _stage(self, sources: Iterable[OutputSource], work: Deidentification) -> None:
        def one(item: tuple[OutputSource, RequestChunk | None]) -> tuple[OutputSource, Deidentified | None]:
            source, chunk = item
            return source, None if chunk is None else work(chunk)

        done = in_order(
            self._items(sources),
            one,
            threads=self._settings.max_concurrent_requests + _SPARE,
            stop=self._context.stop,
            weigh=lambda item: len(item[1].text) if item[1] is not None else 0,
            budget=self._bounds.window,
            together=self._together,
        )
        with closing(done):
            for source, result in done:
                if result is None:
                    self._end_of(source)
                else:
                    self._write_result(source, result)

    def _items(self, sources: Iterable[OutputSource]) -> Iterator[tuple[OutputSource, RequestChunk | None]]:
        """Yield the chunks of the files, with a ``None`` after the last chunk of each."""
        threshold = self._settings.bundle_split_threshold_mb * _MIB
        for source in sources:
            largest = self._context.config.limits.largest_resource
            for chunk in chunks(
                source.path, threshold=threshold, spool=self._state, after=source.after, largest=largest
            ):
                yield source, chunk
            yield source, None

    def _write_result(self, source: OutputSource, result: Deidentified) -> None:
        """Write what came back, and count it."""
        self._whole = None
        writer = self._outputs.open(source)
        counts = source.counts
        if result.whole is not None:
            writer.write(result.whole)
        else:
            if result.first or self._bundle is None:
                self._bundle = Reassembly(writer)
            for piece in result.pieces:
                self._bundle.add(piece)
            if result.last:
                self._bundle.end()
                counts["ids_differ"] += self._bundle.ids_differ
                self._bundle = None
        counts.update(result.counts)
        self._left |= result.left
        self._context.meter.add(resources=result.counts["resources_in"])
        self._warn_alone(result)
        if result.last:
            counts["number"] = result.line
            counts.update(self._left)
            self._left.clear()
            position = writer.end_line()
            if position is not None:
                self._outputs.record_position(source, position)
            self._context.meter.within(source.path, counts["bytes_in"])
            self._whole = source

    def _end_of(self, source: OutputSource) -> None:
        self._refuse_residuals(source)
        self._whole = None
        self._outputs.finish(source)
        self._context.meter.add(files=1)
        self._context.meter.within(source.path, source.counts["bytes_in"], whole=True)

    def _refuse_residuals(self, source: OutputSource) -> None:
        """End the step at the first file in which somebody can still be recognized, before it has its final name."""
        if not paths_of(source.counts) or self._settings.residual_identifiers is ResidualIdentifiers.WARN:
            return
        self._outputs.forget(source)  # what the next run finds is the rules' doing then, not what they were today
        raise DataError(
            "residual-identifiers",
            f"pseudonymizer: identifying values came back unchanged: {self._listed(source.counts)}",
            context=source.path.name,
            hint="add the missing rules; list identifiers to keep in services.pseudonymizer.kept_identifiers; "
            "with residual_identifiers: warn the job continues with the data unchanged",
        )

    def _listed(self, counts: Counts, *, kept: bool = False) -> str:
        said = worded(counts, kept=kept).items()
        return ", ".join(f"{path} ({lines})" if lines else path for path, lines in said)

    def _warn_alone(self, result: Deidentified) -> None:
        if result.counts["alone"] and self._logged < _LOGGED:
            self._logged += 1
            log.warning(
                "pseudonymizer: %s: a resource larger than %d MiB travels alone",
                result.place,
                self._settings.bundle_split_threshold_mb,
            )

    def _result(self) -> StepReport:
        total = self._outputs.total()
        return StepReport(
            files=len(self._files),
            resources_in=total["resources_in"],
            resources_out=total["resources_out"],
            lines_in=total["lines"],
            lines_out=total["lines"],
            bytes_in=stored_bytes(self._files),
            bytes_out=total["stored"],
            output=OUTPUT,
            identifying=worded(total) or None,
            kept_identifiers=worded(total, kept=True) or None,
            warnings=tuple(self._warnings(total)),
            details={
                "own_rules": self._rules is not None,
                "split_bundles": total["split"],
                "sent_alone": total["alone"],
                "surviving_ids": {place: total[place] for place in PLACES},
                "residual_identifiers": self._listed(total) or "none",
                "kept_identifiers": self._listed(total, kept=True) or "none",
                "content_bytes": total["content"],
                "requests": self._context.meter.requests,
            },
        )

    def _warnings(self, total: Counts) -> Iterator[str]:
        yield from self._rules.warnings if self._rules is not None else ()
        outputs = self._outputs
        if outputs.again:
            yield (
                f"{outputs.again:,} files were pseudonymized again: the input, the service or the anonymization file "
                "is another one than before"
            )
        if outputs.orphans:
            yield f"{outputs.orphans:,} files of an earlier run were removed: the input does not hold them any more"
        if total["alone"]:
            yield (
                f"resources larger than {self._settings.bundle_split_threshold_mb} MiB, which were sent alone: "
                f"{total['alone']:,}; the log names the first ones"
            )
        if total["ids_differ"]:
            yield (
                f"split Bundles that came back with several ids: {total['ids_differ']:,}; the service "
                "uses a key that changes between requests, and pseudonyms do not fit together"
            )
        if residual := self._listed(total):
            yield f"identifying values came back unchanged: {residual}"
        if kept := self._listed(total, kept=True):
            yield f"identifiers are kept on purpose: {kept}"
        if total["too_many_numbers"]:
            yield (
                f"{total['too_many_numbers']:,} Bundles that were split have more numbers of persons than are "
                "held at once: the others were looked for only in the part with their person"
            )
        found = {place: total[place] for place in PLACES if total[place]}
        if found:
            places = ", ".join(f"{place} {count:,}" for place, count in found.items())
            yield f"original ids are still in the result ({places}): check the rules, if that is not meant"
