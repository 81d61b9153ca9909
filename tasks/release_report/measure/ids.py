"""Sections 7d and 12: what ids of resources look like, which were those of ``import/``, and which stand twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tasks.release_report.measure.cells import Bounds, Cell, DataRun, Values
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.measured import Ids
from tasks.release_report.measure.originals import NOBODYS
from tasks.release_report.measure.spill import Spill

_LOOK: Final = re.compile(
    r"(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z)"
    r"|(?P<sequential>[A-Za-z]{0,16}[-._]?[0-9]{1,9}\Z)"
    r"|(?P<hashed>[0-9a-fA-F]{32,}\Z|(?=.*[0-9])[A-Za-z0-9]{40,}\Z)"
)


class OwnIds:
    """The ids that resources have. ``take`` is for a type and an id; ``keys`` are hashes of all ``Type/id``."""

    def __init__(self, run: DataRun, spool: Path, lookup: Lookup, bounds: Bounds) -> None:
        self.keys = Spill(spool)
        self._looks = Values(bounds)
        self._lookup = lookup
        self._bounds = bounds
        self.record = self._recorder(run)

    def _recorder(self, run: DataRun) -> Callable[[str, str], None]:
        looks = {name: self._looks.of(name or "other") for name in ("uuid", "hashed", "sequential", None)}
        look = _LOOK.match
        touch, lookup = run.touch, self._lookup
        digest, table, mask, hits = lookup.hash, lookup.table, lookup.mask, lookup.id_hits
        if lookup.collecting is not None:
            add_id = lookup.collecting.ids.hashes.append
            return lambda _, own: add_id(digest(own))
        add_key, add_owner = self.keys.hashes.append, self.keys.more[0].append

        def record(kind: str, own: str) -> None:
            add_key(digest(f"{kind}/{own}"))
            add_owner(run.owner)
            bare = digest(own)
            if table[bare & mask] and table[(bare >> 32) & mask]:
                hits.hashes.append(bare)
                hits.more[0].append(0)
                hits.more[1].append(run.owner)
            match = look(own)
            cell = looks[match.lastgroup if match is not None else None]
            if cell.run != run.number:
                touch(cell)

        return record

    def result(self) -> Ids:
        """Return the counts."""
        duplicates = 0
        patients = Cell()
        parts = self.keys.parts()
        for part in range(parts):
            numbers = list(self.keys.numbers(part, parts))
            if len(set(numbers)) == len(numbers):
                continue  # nearly always
            known: set[int] = set()
            for key, owner in self.keys.rows(part, parts):
                if key in known:
                    duplicates += 1
                    if owner < NOBODYS:
                        patients.add(owner, self._bounds)
                known.add(key)
        kept, referred = Cell(), Cell()
        if (originals := self._lookup.looking) is not None:
            for place, owner, _ in originals.confirmed(self._lookup.id_hits, ids=True):
                if owner < NOBODYS:
                    (referred if place else kept).add(owner, self._bounds)
        kinds = self._looks.counts()
        if kept.patients:
            kinds["original"] = kept.patients
        return Ids(kinds, duplicates, patients.patients, referred.patients)
