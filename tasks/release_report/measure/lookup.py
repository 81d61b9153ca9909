"""Section 7b: texts, numbers, identifiers and names of ``import/`` taken in, or looked up in what leaves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from tasks.release_report.measure.cells import LONGEST, Bounds, Cell, DataRun
from tasks.release_report.measure.kinds import NAMES, is_name, named
from tasks.release_report.measure.originals import (
    DISPLAY,
    IDENTIFIER,
    LEAST,
    LEAST_DIGITS,
    NOBODYS,
    OWN,
    OWN_OR_NOBODYS,
    Originals,
    is_certain,
    is_likely,
    keyed,
    may_be_one,
    parts,
)
from tasks.release_report.measure.spill import Spill
from tasks.release_report.measure.trie import CODED, DATE, Node

_CRITERION: Final = re.compile(r"[=|,]([^=|,&]+)(?=[,&]|\Z)")
"""What a search looks for, without the system."""
_NOBODYS: Final = 100_000
"""Places of resources of nobody that are counted."""
_HARMLESS: Final = 10_000
"""Values in which there is no identifier that are known to be so."""


_Text = Callable[[Node, str], None]
_Said = Callable[[Node, int, str], None]
_Note = Callable[[int, str, int], None]
_Trace = Callable[[str], None]
_Found = Callable[[int, int], None]


class Lookup:
    """``originals`` are taken in with ``collect``, else looked up; ``None``: neither.

    ``text`` is for a text or a number at a leaf, ``number`` for an identifier, ``mark`` for one whose hash is known,
    ``search`` for what a search asks for, ``note`` for a value of ``import/`` wherever it stands, ``trace`` for what
    ends in an id. Identifiers in parts of a value are looked for by ``within``, and by ``repeated`` where the same
    values come often; ``found`` is for one that may be there. ``table`` and ``mask`` say cheaply which hashes may be
    there; those that may wait in ``hits``, and ids in ``id_hits`` with where they stand (0: a resource's own, 1:
    elsewhere), until ``counts`` returns them.
    """

    def __init__(self, run: DataRun, spool: Path, originals: Originals | None, *, collect: bool) -> None:
        self.collecting = originals if collect else None
        self.looking = originals if not collect else None
        self.hash = originals.hash if originals is not None else keyed()
        looking = self.looking
        self.table, self.mask = (looking.table, looking.mask) if looking is not None else (bytearray(1), 0)
        self.hits = Spill(spool, more=2)
        self.id_hits = Spill(spool, more=2)
        self.texts: list[tuple[Node, int, str]] = []
        """Texts of the element that is recorded."""
        self.suspects: list[tuple[int, int]] = []
        """Places and hashes of what may be identifiers in the element that is recorded."""
        self._run = run
        self.noted: set[int] = set()
        """What was taken in of this run: each once."""
        self.within, self.repeated, self.found = _parts(self, run)
        self.text, self.mark, self.search, self.note, self.trace = _functions(self, run)

    def suspicious(self, value: object) -> bool:
        """Return whether a value may contain an identifier of ``import/``."""
        if self.looking is None or not isinstance(value, str):
            return False
        digest, table, mask, lengths = self.hash, self.table, self.mask, self.looking.lengths
        numbers = (digest(f"{part}{IDENTIFIER}") for part in parts(value) if len(part) in lengths)
        # The table lets one in a hundred others pass. A frequent code among these would be walked wherever it stands.
        passed = (number for number in numbers if table[number & mask] and table[(number >> 32) & mask])
        return any(map(self.looking.is_one, passed))

    def identified(self, child: Node, value: str) -> None:
        """Look for identifiers in an id."""
        self.within(child, value)

    def number(self, child: Node, value: str) -> None:
        """Take in, or look up, the value of an identifier."""
        self.text(child, value)
        twin = child.twin
        if self.collecting is not None and twin is not None and len(value) >= LEAST_DIGITS:
            self.collecting.lengths.add(len(value))
            self._twin(twin, self.hash(f"{value}{IDENTIFIER}"), value)

    def name(self, node: Node, child: Node, reference: dict[str, Any], display: str) -> None:
        """Take in, or look up, the display of a reference, which may be a name."""
        twin = child.twin
        if twin is None or named(node.named, reference.get("reference"), reference.get("type")) not in NAMES:
            return
        twin.leaf = True
        if self.looking is not None or is_name(display):
            self._twin(twin, self.hash(f"{display}{DISPLAY}"), display)

    def _twin(self, twin: Node, number: int, value: str) -> None:
        if self._run.number < 0:
            self.texts.append((twin, number, value))
        else:
            self.mark(twin, number, value)

    def birthdays(self, nodes: list[Node], bounds: Bounds) -> dict[str, Cell]:
        """Return patients by path who have their birthday there in a text that is no date (7j)."""
        found: dict[str, Cell] = {}
        texts = {node.place: node.path for node in nodes if node.act != DATE}
        if self.looking is not None:
            for place, owner in self.looking.birthdays(self.hits, texts):
                found.setdefault(texts[place], Cell()).add(owner, bounds)
        return found

    def counts(
        self, nodes: list[Node], bounds: Bounds, is_by_chance: Callable[[str, int], bool], *, in_order: bool
    ) -> tuple[dict[int, Cell], Counter[int]]:
        """Patients by place that have a value of ``import/`` left there, and how many resources of nobody.

        ``in_order`` says that patients stand in the same order, so that it can be told whether a value was a patient's
        own: dates must be, and so must identifiers where there may be others by chance. A date that stayed
        ``is_by_chance`` (by its path and patient) is none.
        """
        patients: dict[int, Cell] = {}
        anybodys: dict[int, Cell] = {}
        nobody: set[tuple[int, int]] = set()
        if self.looking is None:
            return {}, Counter()
        dates = {node.place: node for node in nodes if in_order and node.act == DATE and node.looked_up}
        loose = {node.place for node in nodes if node.loose}
        for place, owner, hers in self.looking.confirmed(self.hits, dates=dates):
            if owner < NOBODYS:
                if not hers and place not in loose:
                    anybodys.setdefault(place, Cell()).add(owner, bounds)
                if hers and not (place in dates and is_by_chance(dates[place].path, owner)):
                    patients.setdefault(place, Cell()).add(owner, bounds)
            elif (hers or place in dates) and len(nobody) < _NOBODYS:
                nobody.add((place, owner))
        for place, cell in anybodys.items():
            if place in patients:
                cell.merge(patients[place], bounds)
            if not in_order or (place in dates and cell.patients == dates[place].patients):
                patients[place] = cell
        return patients, Counter(place for place, _ in nobody)


def _parts(  # noqa: C901 - one room of local names is what makes it fast
    lookup: Lookup, run: DataRun
) -> tuple[Callable[[Node, str], bool], _Text, _Found]:
    digest, table, mask, looking = lookup.hash, lookup.table, lookup.mask, lookup.looking
    hits, suspects = lookup.hits, lookup.suspects
    harmless: set[str] = set()
    lengths = looking.lengths if looking is not None else set()
    shortest = min(lengths, default=0)

    def within(child: Node, value: str) -> bool:
        any_ = False
        if not lengths or len(value) < shortest:
            return any_
        for part in parts(value):
            if len(part) not in lengths:
                continue
            number = digest(part + IDENTIFIER)
            if table[number & mask] and table[(number >> 32) & mask]:
                suspect(child, number, part)
                any_ = True
        return any_

    def repeated(child: Node, value: str) -> None:
        if value in harmless:
            return
        if lookup.suspicious(value):
            within(child, value)
        elif len(value) <= LONGEST:
            if len(harmless) >= _HARMLESS:
                harmless.clear()
            harmless.add(value)

    def suspect(child: Node, number: int, part: str) -> None:
        assert looking is not None  # noqa: S101 - for the type checker
        place = child.place
        if not is_certain(part) or (child.act == CODED and looking.codes(part)):
            place |= OWN if child.loose or not is_likely(part) else OWN_OR_NOBODYS
        if run.number < 0:
            suspects.append((place, number))
        else:
            found(place, number)

    def found(place: int, number: int) -> None:
        hits.hashes.append(number)
        hits.more[0].append(place)
        hits.more[1].append(run.owner)

    return within, repeated, found


def _functions(  # noqa: C901 - one room of local names is what makes it fast
    lookup: Lookup, run: DataRun
) -> tuple[_Text, _Said, _Text, _Note, _Trace]:
    digest, texts, noted = lookup.hash, lookup.texts, lookup.noted
    collecting, table, mask = lookup.collecting, lookup.table, lookup.mask
    id_hits, within, found = lookup.id_hits, lookup.within, lookup.found
    looking = lookup.looking is not None

    def mark(child: Node, number: int, value: str) -> None:
        if table[number & mask] and table[(number >> 32) & mask]:
            found(child.place, number)
        elif collecting is not None and child.collects and number not in noted:
            note(number, value, NOBODYS if child.alone else run.owner)

    def text(child: Node, value: str) -> None:
        if child.cut and looking and not value.isalnum():
            within(child, value)
        if len(value) < LEAST_DIGITS and child.kind == "identifier":
            value = f"{value} identifier"  # too short to be told from other texts: compared with its like alone
        if run.number < 0:
            texts.append((child, digest(value), value))
            return
        number = digest(value)
        if (table[number & mask] and table[(number >> 32) & mask]) or (
            collecting is not None and child.collects and number not in noted
        ):
            mark(child, number, value)

    def search(child: Node, value: str) -> None:
        for one in _CRITERION.findall(unquote(value)):
            text(child, one)

    def note(number: int, value: str, owner: int) -> None:
        assert collecting is not None  # noqa: S101 - for the type checker
        if number not in noted and len(value) >= LEAST and may_be_one(value):
            noted.add(number)
            collecting.values.hashes.append(number)
            collecting.values.more[0].append(owner)

    def trace(target: str) -> None:
        bare = digest(target[max(target.rfind("/"), target.rfind(":")) + 1 :])
        if table[bare & mask] and table[(bare >> 32) & mask]:
            id_hits.hashes.append(bare)
            id_hits.more[0].append(1)
            id_hits.more[1].append(run.owner)

    return text, mark, search, note, trace
