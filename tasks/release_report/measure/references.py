"""Section 12: references into the files, to other hosts, and dangling ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path

from tasks.release_report.measure.cells import Bounds, Cell, DataRun, Values
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.measured import References
from tasks.release_report.measure.originals import NOBODYS
from tasks.release_report.measure.spill import Spill
from tasks.release_report.measure.trie import Node


class Targets:
    """The targets of references.

    ``record`` adds a reference at a leaf. It is ``pending`` until ``resolve``, which has the keys and URLs of the same
    line. Other references wait on disk for the ``result``, when all keys are known, and so do the ``urls`` of entries.
    References of ``import/`` are not counted.
    """

    def __init__(self, run: DataRun, spool: Path, lookup: Lookup, bounds: Bounds) -> None:
        self.urls = Spill(spool, more=0)
        self.rows = Spill(spool, more=2)
        self.pending: list[str] = []
        self.recorded: list[str] = []
        """Those of the element that is recorded."""
        self._lookup = lookup
        self._bounds = bounds
        self._inside = Cell()
        self._dangling = Cell()
        self._inside_count = 0
        self._other = 0
        self._hosts = Values(bounds)
        self._run = run
        self.record = self._recorder()

    def _recorder(self) -> Callable[[Node, str], None]:
        run, pending, recorded, search = self._run, self.pending, self.recorded, self._lookup.search
        within, looking = self._lookup.within, self._lookup.looking is not None
        collecting = self._lookup.collecting is not None

        def record(child: Node, value: str) -> None:
            if not collecting:
                (recorded if run.number < 0 else pending).append(value)
            if "?" in value:
                search(child, value)
            if looking:
                within(child, value)

        return record

    def resolve(self, local: Container[str]) -> None:
        """Resolve those of the data behind the last call; ``local`` are keys and URLs of the line."""
        run, inside = self._run, self._inside
        for reference, times in Counter(self.pending).items():
            if reference not in local:
                self._resolve(reference, times)
                continue
            self._inside_count += times
            if inside.run != run.number:
                inside.run = run.number
                if run.patient >= 0:
                    inside.add(run.patient, self._bounds)
            if self._lookup.looking is not None:
                self._lookup.trace(reference)
        self.pending.clear()

    def _resolve(self, reference: str, times: int) -> None:
        if reference[:1] == "#":
            return
        if "?" in reference:
            self._other += times
            return
        target = reference.partition("/_history/")[0]
        if "://" in target:
            self._run.touch(self._hosts.of(target.split("/", 3)[2].rpartition("@")[2]))
        else:
            rows = self.rows
            rows.hashes.append(self._lookup.hash(target))
            rows.more[0].append(self._run.owner)
            rows.more[1].append(times)
        self._lookup.trace(target)

    def result(self, keys: Spill) -> References:
        """Return the counts; ``keys`` are those of all resources."""
        inside_count, dangling_count = self._inside_count, 0
        if len(self.rows):
            parts = max(keys.parts(), self.rows.parts())
            for part in range(parts):
                known = set(keys.numbers(part, parts))
                known.update(self.urls.numbers(part, parts))
                for target, owner, times in self.rows.rows(part, parts):
                    if target in known:
                        inside_count += times
                        cell = self._inside
                    else:
                        dangling_count += times
                        cell = self._dangling
                    if owner < NOBODYS:
                        cell.add(owner, self._bounds)
        return References(
            inside_count, dangling_count, self._inside.patients, self._dangling.patients, self._hosts.counts(),
            other=self._other,
        )  # fmt: skip
