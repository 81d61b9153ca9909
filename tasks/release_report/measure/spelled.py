"""Elements of resources as they are spelled, with what they do: the next one that is spelled alike is not walked.

Bound: 16,384 spellings of at most 1,500 bytes, 20 MB; then all are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tasks.release_report.measure.cells import Bounds, DataRun
from tasks.release_report.measure.contents import decode, settle, taken_contents
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.references import Targets
from tasks.release_report.measure.trie import Effect, Node, Slot, Trie
from tasks.release_report.measure.walk import Take

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
        if child.measured or child.dates is not None:
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
        top = slot.node  # its extensions are another slot's, with the same node
        content, top.content = top.content, 0
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
            effect = Effect(tuple(cells), tuple(texts), tuple(suspects), tuple(targets), taken_contents(cells))
            top.content = content
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
            settle(effect)
        elif slot.known is not None and len(raw) <= _MEMO:
            slot.known[raw] = effect
            self._effects += 1
            if self._effects >= _EFFECTS:
                self._effects = 0
                self.spread()
        else:
            settle(effect)
        run.changing = before

    def spread(self) -> None:
        """Forget all that is known; where data are apart the cells get the patients of each spelling."""
        for slot in self._slots:
            self._spread(slot)

    def _spread(self, slot: Slot) -> None:
        run, bounds = self._run, self._bounds
        for effect in (slot.known or {}).values():
            settle(effect)
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
