"""Write the results of one file in their order, and record the file with its findings (``file_work.py``)."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from config import PipelineConfig
from tasks.pseudonymizer.answers import Findings, Outline
from tasks.pseudonymizer.chunks import Chunk, joined
from tasks.pseudonymizer.leaks import Leak
from tasks.shared.errors import DataError, GateError
from tasks.shared.fhir.bundles import Bundle
from tasks.shared.file_work import Done, FileWork
from tasks.shared.files.data_directory import data_file_name
from tasks.shared.files.part_file import PartFile
from tasks.shared.step import StepContext
from tasks.shared.units import human_count

OUTPUT: Final = "pseudonymized"

_NAMED: Final = 20
"""How many resources above the threshold a file's warnings name."""

Result = tuple[Chunk, Outline, list[Outline], Findings]
"""A chunk, its outline, the outlines of the answers (several if the chunk was halved), and the findings in them."""


class FileOutput:
    """Writes one file from the results of its chunks, in their order."""

    def __init__(self, context: StepContext, work: FileWork, base: str, identity: str) -> None:
        self._context = context
        self._work = work
        self._base = base
        self._identity = identity
        compression = context.config.compression
        final = context.job_dir / OUTPUT / data_file_name(base, compressed=compression.enabled)
        self._part = PartFile(final, compression.level if compression.enabled else None)
        self._started = time.monotonic()
        self._before = context.meter.requests, context.meter.retries
        self._counts: Counter[str] = Counter()
        self._findings = Findings()
        self._alone: list[str] = []
        # Of the line whose parts arrive:
        self._line = Findings()
        self._parts: list[Bundle] = []

    def take(self, result: Result) -> None:
        """Write and count the result of a chunk."""
        chunk, sent, received, findings = result
        self._counts["resources_in"] += len(sent.types)
        self._counts["resources_out"] += sum(len(one.types) for one in received)
        self._counts["patients"] += sum(one.types.count("Patient") for one in received)
        self._line.merge(findings)
        if chunk.alone and len(self._alone) < _NAMED:
            self._alone.append(chunk.place)
        first = received[0]
        if chunk.is_part or len(received) > 1 or (first.is_bundle and first.bundle_type is None):
            self._parts += (one.opened() for one in received if one.is_bundle)
        if chunk.last:
            self._part.write((joined(self._parts, sent.bundle_type) if self._parts else first.text) + b"\n")
            self._counts["lines"] += 1
            self._counts["split"] += chunk.is_part
            self._findings.update(self._line)
            self._parts, self._line = [], Findings()
        self._context.meter.add(resources=len(sent.types), bytes=len(chunk.text), stored=0)

    def finish(self) -> None:
        """Record the file, and end the step if it holds identifying values."""
        counts, meter = self._counts, self._context.meter
        if self._findings.emptied and self._findings.emptied == counts["resources_in"]:
            raise DataError(
                "everything-removed",
                "pseudonymizer: every resource of the file came back with nothing but type, id and meta",
                context=self._part.final.name,
                hint="which rules does the service use? see services.pseudonymizer.anonymization_config",
            )
        tallies = {kind: dict(tally.most_common(200)) for kind, tally in self._findings.tallies.items()}
        tallies["leaks"] = _without_few_birth_dates(tallies.get("leaks", {}), counts["lines"])
        requests, retries = self._before
        done = Done(
            file=self._base,
            identity=self._identity,
            patients=counts.pop("patients"),
            counts={**counts, "content": self._part.content},
            tallies={kind: tally for kind, tally in tallies.items() if tally},
            warnings=tuple(f"{place}: a resource above the threshold is sent alone" for place in self._alone),
            requests=meter.requests - requests,
            retries=meter.retries - retries,
            seconds=round(time.monotonic() - self._started, 3),
        )
        done = self._work.finish(done, self._part)
        meter.add(files=1)
        refuse_leaks(self._context.config, done.tallies.get("leaks", {}), done.output)

    def close(self) -> None:
        """Remove an unfinished file."""
        self._part.__exit__()


def refuse_leaks(config: PipelineConfig, leaks: dict[str, int], file: str) -> None:
    """Raise ``GateError`` (``residual-identifiers``) if there are leaks that are not kept on purpose."""
    found = leaks_by_path(config, leaks)
    if found and config.services.pseudonymizer.residual_identifiers == "stop":
        listed = ", ".join(f"{path} ({human_count(count, 'line')})" for path, count in found.items())
        raise GateError(
            "residual-identifiers",
            f"pseudonymizer: identifying values came back unchanged: {listed}",
            context=file,
            hint="add the missing rules; list identifiers to keep in services.pseudonymizer.kept_identifiers; with "
            "residual_identifiers: warn the job goes on with the data as they are",
        )


def leaks_by_path(config: PipelineConfig, leaks: dict[str, int], *, kept: bool = False) -> dict[str, int]:
    """Return path → lines of the leaks that are not kept on purpose; with ``kept`` of those that are."""
    allowed = frozenset(config.services.pseudonymizer.kept_identifiers)
    found: Counter[str] = Counter()
    for key, count in leaks.items():
        leak = Leak(*key.split("|", 2))
        if (leak.path in allowed or leak.system in allowed) == kept:
            found[leak.path] += count
    return dict(by_number(found))


def by_number(tally: Counter[str]) -> list[tuple[str, int]]:
    """Return the items of a tally, the most frequent first."""
    return sorted(tally.items(), key=lambda item: (-item[1], item[0]))


def _without_few_birth_dates(leaks: dict[str, int], lines: int) -> dict[str, int]:
    """Return the leaks without birth dates that few lines keep: a shift can be zero."""
    return {
        key: found
        for key, found in leaks.items()
        if Leak(*key.split("|", 2)).kind != "birth date" or found * 20 > lines
    }
