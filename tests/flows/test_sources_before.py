"""What each step reads, and what leaves, by the declarations of the steps as by the rules that named them before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from config import PipelineConfig, SendMode
from flows.job.sources import Source, Sources
from tasks import STEPS, declared
from tasks.shared.report import Corrections

IMPORTS = ("extractor", "local_import", "http_import")
OUTPUT = dict.fromkeys(IMPORTS, "import") | {"pseudonymizer": "pseudonymized", "flattening": "csv"}


class Before:
    """``flows.job.sources.Sources`` as it was: it knew names."""

    def __init__(self, steps: Sequence[str], send_as: SendMode | None) -> None:
        self._steps = steps
        self._direct = send_as is SendMode.DIRECT_RESOURCE_LOAD
        self.newest: Source | None = None
        self.resources: Source | None = None

    def wrote(self, source: Source) -> None:
        self.newest = source
        self.resources = self.resources if source.tables else source

    def read_by(self, name: str) -> Source | None:
        return self.resources if name == "send" and self._direct else self.newest

    def leaving(self, position: int) -> Source | None:
        for name in self._steps[position:]:
            if name == "send":
                return self.read_by(name)
            if name in OUTPUT:
                return None
        return None

    def readers(self, position: int) -> list[int]:
        found: list[int] = []
        made: set[str] = set()
        for at, name in enumerate(self._steps[position:], start=position + 1):
            if name == "wait" and not made:
                break
            if name != "wait" and (not made or (name == "send" and self._direct and made == {"flattening"})):
                found.append(at)
            if name in OUTPUT:
                made.add(name)
        return found

    def corrections(self, position: int) -> Corrections:
        if self.newest is None or not self.newest.tables:
            return Corrections.NDJSON
        leaving = self.leaving(position)
        return Corrections.NOT_SENT if leaving is not None and leaving is not self.newest else Corrections.TABLES


def lists() -> Iterator[tuple[str, ...]]:
    """Every list of up to five steps that the rules of the configuration allow (document 1, steps)."""
    others = [name for name in STEPS if name not in IMPORTS]
    for length in range(1, 6):
        for first in IMPORTS:
            for rest in itertools.product(others, repeat=length - 1):
                once = [name for name in rest if name not in ("wait", "validation")]
                twice = any(a == b == "wait" for a, b in itertools.pairwise(rest))
                if len(set(once)) == len(once) and not twice:
                    yield (first, *rest)


@pytest.mark.parametrize("send_as", [None, *SendMode])
@pytest.mark.parametrize("corrected", [False, True])
def test_every_step_reads_what_it_read_before(send_as: SendMode | None, corrected: bool) -> None:
    config = PipelineConfig.model_validate({"services": {"send": {"send_as": send_as} if send_as else {}}})
    count = 0
    for steps in lists():
        before, now = Before(steps, send_as), Sources(steps, config)
        for position, name in enumerate(steps, start=1):
            step = declared(name)
            count += 1
            assert now.read_by(step) == (None if name in IMPORTS else before.read_by(name)), (steps, name)
            if step.asks:
                assert now.leaving(position) == before.leaving(position), (steps, position)
                assert now.readers(position) == before.readers(position), (steps, position)
                assert now.corrections(position) is before.corrections(position), (steps, position)
            folder = OUTPUT.get(name) or (f"{now.newest.path.name}_wait" if corrected and step.asks else None)
            assert step.output == OUTPUT.get(name)
            if folder is not None:
                was = name == "flattening" or (name == "wait" and before.newest is not None and before.newest.tables)
                tables = step.tables or (step.asks and now.newest is not None and now.newest.tables)
                before.wrote(Source(Path(folder), position, tables=was))
                now.wrote(Source(Path(folder), position, tables=tables))
    assert count > 4000
