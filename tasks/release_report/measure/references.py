"""Ids of resources and the targets of references.

Elements are also kept as they are spelled, with their effect, so that the next one that is spelled alike is not walked.
Bound: 16,384 spellings of at most 1,500 bytes, 20 MB; then all are forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from tasks.release_report.measure.cells import Bounds, Cell, DataRun, Values
from tasks.release_report.measure.json_text import decode
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.measured import Ids
from tasks.release_report.measure.originals import NOBODYS
from tasks.release_report.measure.trie import Effect, Node, Slot, Trie
from tasks.release_report.measure.walk import Take


class Targets:
    """The targets of references, which are looked for among the ids of ``import/``.

    ``record`` adds a reference at a leaf. It is ``pending`` until ``resolve``. Those of ``import/`` are not looked for.
    """

    def __init__(self, run: DataRun, lookup: Lookup) -> None:
        self.pending: list[str] = []
        self.recorded: list[str] = []
        """Those of the element that is recorded."""
        self._lookup = lookup
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

    def resolve(self) -> None:
        """Look for those of the data behind the last call."""
        for reference in set(self.pending):
            if reference[:1] != "#" and "?" not in reference:
                self._lookup.trace(reference.partition("/_history/")[0])
        self.pending.clear()


_LOOK: Final = re.compile(
    r"(?P<uuid>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z)"
    r"|(?P<sequential>[A-Za-z]{0,16}[-._]?[0-9]{1,9}\Z)"
    r"|(?P<hashed>[0-9a-fA-F]{32,}\Z|(?=.*[0-9])[A-Za-z0-9]{40,}\Z)"
)


class OwnIds:
    """The ids that resources have."""

    def __init__(self, run: DataRun, lookup: Lookup, bounds: Bounds) -> None:
        self._looks = Values(bounds)
        self._lookup = lookup
        self._bounds = bounds
        self.record = self._recorder(run)

    def _recorder(self, run: DataRun) -> Callable[[str], None]:
        looks = {name: self._looks.of(name or "other") for name in ("uuid", "hashed", "sequential", None)}
        look = _LOOK.match
        touch, lookup = run.touch, self._lookup
        digest, table, mask, hits = lookup.hash, lookup.table, lookup.mask, lookup.id_hits
        if lookup.collecting is not None:
            add_id = lookup.collecting.ids.hashes.append
            return lambda own: add_id(digest(own))

        def record(own: str) -> None:
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
        kept, referred = Cell(), Cell()
        if (originals := self._lookup.looking) is not None:
            for place, owner, _ in originals.confirmed(self._lookup.id_hits, ids=True):
                if owner < NOBODYS:
                    (referred if place else kept).add(owner, self._bounds)
        kinds = self._looks.counts()
        if kept.patients:
            kinds["original"] = kept.patients
        return Ids(kinds, referred.patients)


_TRIES: Final = 128
_EFFECTS: Final = 16_384
_MEMO: Final = 1_500
"""Bytes of one."""


class Spellings:
    """``apply`` does what is known of an element's text. ``record`` takes in one that is not known (``take`` walks it),
    met among so many resources of the type, and remembers it."""

    def __init__(
        self, run: DataRun, trie: Trie, lookup: Lookup, targets: Targets, take: Take, bounds: Bounds, *, together: bool
    ) -> None:
        self._run = run
        self._trie = trie
        self._said, self._texts = lookup.mark, lookup.texts
        self._found, self._suspects = lookup.found, lookup.suspects
        self._targets = targets
        self._take = take
        self._bounds = bounds
        self._apart = not together
        self._slots: list[Slot] = []
        self._effects = 0
        self._mark = 0
        self.apply = self._applying()

    def slot_of(self, root: Node, key: str, raw: msgspec.Raw) -> Slot:
        """Return the slot of an element that is new for a type of resources."""
        child = root.kids.get(key) or self._trie.grow(root, key, decode(raw))
        slot = root.slots[key] = Slot(child, root.resources)
        if child.dates is not None:
            slot.known = None
        self._slots.append(slot)
        return slot

    def _applying(self) -> Callable[[Effect], None]:
        run, touched, said, apart = self._run, self._run.touched, self._said, self._apart
        found = self._found

        def apply(effect: Effect) -> None:
            effect.run = number = run.number
            # Of nobody resources are counted, each once: there the cells must be met one by one.
            if apart and run.patient >= 0:
                touched.append(effect)
            else:
                for cell in effect.cells:
                    if cell.run != number:
                        cell.run = number
                        touched.append(cell)
            for child, hashed, value in effect.texts:
                said(child, hashed, value)
            for place, hashed in effect.suspects:
                found(place, hashed)

        return apply

    def record(self, slot: Slot, raw: bytes, resources: int) -> None:
        """Take in an element, and keep what that did: for the next one that is spelled alike.

        The walk runs with a number of its own, so that every cell is met, and what the cells had is put back.
        """
        run, texts, suspects, targets = self._run, self._texts, self._suspects, self._targets.recorded
        touched, saved = run.touched, run.saved
        value = decode(raw)
        real, start, before = run.number, len(touched), run.changing
        self._mark -= 1
        run.number, run.changing = self._mark, False
        try:
            self._take(slot.node, value)
        finally:
            run.number = real
            cells = touched[start:]
            del touched[start:]
            for cell, old in zip(cells, saved, strict=True):
                cell.run = old
            effect = Effect(tuple(cells), tuple(texts), tuple(suspects), tuple(targets))
            saved.clear()
            texts.clear()
            suspects.clear()
            targets.clear()
        for cell in effect.cells:
            if cell.run != real:
                cell.run = real
                touched.append(cell)
        for child, hashed, text in effect.texts:
            self._said(child, hashed, text)
        for place, hashed in effect.suspects:
            self._found(place, hashed)
        effect.run = real
        self._targets.pending.extend(effect.targets)
        slot.misses += 1
        if run.changing or (slot.misses >= _TRIES and 2 * slot.misses > resources - slot.since):
            self._spread(slot)
            slot.known = None
        elif slot.known is not None and len(raw) <= _MEMO:
            slot.known[raw] = effect
            self._effects += 1
            if self._effects >= _EFFECTS:
                self._effects = 0
                self.spread()
        run.changing = before

    def spread(self) -> None:
        """Forget all that is known; where data are apart the cells get the patients of each spelling."""
        for slot in self._slots:
            self._spread(slot)

    def _spread(self, slot: Slot) -> None:
        run, bounds = self._run, self._bounds
        for effect in (slot.known or {}).values() if self._apart else ():
            # What was touched in this run is counted when it ends.
            if effect.run == run.number and run.patient >= 0:
                effect.add(run.patient, bounds)
            for cell in effect.cells:
                cell.merge(effect, bounds)
            bounds.bits -= len(effect.bits or b"")
            effect.few = effect.bits = None
            effect.nobody = 0
        if slot.known:
            slot.known = {}
