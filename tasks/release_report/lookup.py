"""Section 7b: texts and numbers of ``import/`` taken in, or looked up in what leaves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tasks.release_report.cells import Bounds, Cell
from tasks.release_report.originals import LEAST, LEAST_DIGITS, NOBODYS, Originals, keyed, may_be_one
from tasks.release_report.runs import Run
from tasks.release_report.spill import Spill
from tasks.release_report.trie import DATE, Node

_CRITERION: Final = re.compile(r"[=|,]([^=|,&]+)(?=[,&]|\Z)")
"""What a search looks for, without the system."""
_NOBODYS: Final = 100_000
"""Places of resources of nobody that are counted."""


_Text = Callable[[Node, str], None]
_Said = Callable[[Node, int, str], None]
_Note = Callable[[int, str], None]
_Trace = Callable[[str], None]


class Lookup:
    """``originals`` are taken in with ``collect``, else looked up; ``None``: neither.

    ``text`` is for a text or a number at a leaf, ``said`` for one whose hash is known, ``search`` for what a search
    asks for, ``note`` for a value of ``import/`` wherever it stands, ``trace`` for what ends in an id. ``table`` and
    ``mask`` say cheaply which hashes may be there; those that may wait in ``hits``, and ids in ``id_hits`` with where
    they stand (0: a resource's own, 1: elsewhere), until they are ``left``.
    """

    def __init__(self, run: Run, spool: Path, originals: Originals | None, *, collect: bool) -> None:
        self.collecting = originals if collect else None
        self.looking = originals if not collect else None
        self.hash = originals.hash if originals is not None else keyed()
        looking = self.looking
        self.table, self.mask = (looking.table, looking.mask) if looking is not None else (bytearray(1), 0)
        self.hits = Spill(spool, more=2)
        self.id_hits = Spill(spool, more=2)
        self.texts: list[tuple[Node, int, str]] = []
        """Texts of the element that is recorded."""
        self.noted: set[int] = set()
        """What was taken in of this run: each once."""
        self.text, self.said, self.search, self.note, self.trace = _functions(self, run)

    def left(self, nodes: Iterable[Node], bounds: Bounds) -> tuple[dict[int, Cell], Counter[int]]:
        """Patients by place that have a value of ``import/`` left there, and how many resources of nobody.

        ``nodes`` are those of which dates must be the patient's own: all, where patients stand in the same order.
        """
        patients: dict[int, Cell] = {}
        anybodys: dict[int, Cell] = {}
        nobody: set[tuple[int, int]] = set()
        if self.looking is None:
            return {}, Counter()
        dates = {node.place: node for node in nodes if node.act == DATE and node.looked_up}
        for place, owner, hers in self.looking.confirmed(self.hits, dates=dates):
            if owner < NOBODYS:
                if place in dates:
                    anybodys.setdefault(place, Cell()).add(owner, bounds)
                if hers:
                    patients.setdefault(place, Cell()).add(owner, bounds)
            elif len(nobody) < _NOBODYS:
                nobody.add((place, owner))
        patients.update({place: cell for place, cell in anybodys.items() if cell.patients == dates[place].patients})
        return patients, Counter(place for place, _ in nobody)


def _functions(  # noqa: C901 - one room of local names is what makes it fast
    lookup: Lookup, run: Run
) -> tuple[_Text, _Said, _Text, _Note, _Trace]:
    digest, texts, noted = lookup.hash, lookup.texts, lookup.noted
    collecting, table, mask = lookup.collecting, lookup.table, lookup.mask
    hits, id_hits = lookup.hits, lookup.id_hits

    def said(child: Node, number: int, value: str) -> None:
        if table[number & mask] and table[(number >> 32) & mask]:
            hits.hashes.append(number)
            hits.more[0].append(child.place)
            hits.more[1].append(run.owner)
        elif collecting is not None and child.collects and number not in noted:
            note(number, value)
        one = child.one
        if one is not None and run.patient >= 0 and not one.add(run.patient, number):
            child.one = None
            one.drop()

    def text(child: Node, value: str) -> None:
        if len(value) < LEAST_DIGITS and child.kind == "identifier":
            value = f"{value} identifier"  # too short to be told from other texts: compared with its like alone
        if run.number < 0:
            texts.append((child, digest(value), value))
            return
        number = digest(value)
        if (
            (table[number & mask] and table[(number >> 32) & mask])
            or child.one is not None
            or (collecting is not None and child.collects and number not in noted)
        ):
            said(child, number, value)

    def search(child: Node, value: str) -> None:
        for one in _CRITERION.findall(unquote(value)):
            text(child, one)

    def note(number: int, value: str) -> None:
        assert collecting is not None  # noqa: S101 - for the type checker
        if number not in noted and len(value) >= LEAST and may_be_one(value):
            noted.add(number)
            collecting.values.hashes.append(number)
            collecting.values.more[0].append(run.owner)

    def trace(target: str) -> None:
        bare = digest(target[max(target.rfind("/"), target.rfind(":")) + 1 :])
        if table[bare & mask] and table[(bare >> 32) & mask]:
            id_hits.hashes.append(bare)
            id_hits.more[0].append(1)
            id_hits.more[1].append(run.owner)

    return text, said, search, note, trace
