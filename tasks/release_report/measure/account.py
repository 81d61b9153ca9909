"""The account of one pass: what counts each thing, and resources, entries and rows that are taken in.

Each room counts what it is about; here they are put together, and the run of data begins and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec

from tasks.release_report.measure.cells import Bounds, Cell, DataRun
from tasks.release_report.measure.dates import Days, dating
from tasks.release_report.measure.json_text import decode
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.originals import NOBODYS, Originals
from tasks.release_report.measure.references import OwnIds, Spellings, Targets
from tasks.release_report.measure.spill import Spill
from tasks.release_report.measure.trie import DATE, REFERENCE, SEARCH, Node, Trie
from tasks.release_report.measure.walk import Several, Take, walking

Members = dict[str, msgspec.Raw]

_MOST_CLASSES: Final = 50_000
"""Classes of patients (``classes``)."""
_LINES: Final = 256
"""Lines after which it is looked whether much is held."""


class Apart(Exception):  # noqa: N818 - a change of plan, not an error
    """The data of a patient do not come together: sets must be kept instead of counters."""


class Classes:
    """Section 8: patients by birth year, sex and region, each in the class of the first resource that says something of
    her. ``region`` is how many signs of a postal code make one."""

    def __init__(self, bounds: Bounds, region: int) -> None:
        self.patients: Counter[tuple[str, str, str]] = Counter()
        self._classed = bytearray()
        self._bounds = bounds
        self._region = region

    def record(self, patient: int, birth: str, said: dict[str, Any]) -> None:
        """Record the demographic data in a resource of a patient."""
        place = patient >> 3
        if place >= len(self._classed):
            self._classed.extend(bytes(place + 64 - len(self._classed)))
        if self._classed[place] >> (patient & 7) & 1:
            return
        self._classed[place] |= 1 << (patient & 7)
        sex = said.get("gender")
        found = (birth[:4], sex if isinstance(sex, str) else "", _region(said, self._region))
        if found in self.patients or len(self.patients) < _MOST_CLASSES:
            self.patients[found] += 1
        else:
            self._bounds.others["classes"] += 1


def _region(patient: dict[str, Any], size: int) -> str:
    addresses = patient.get("address")
    for one in addresses if isinstance(addresses, list) else [addresses]:
        code = one.get("postalCode") if isinstance(one, dict) else None
        if isinstance(code, str) and code:
            return code[:size]
    return ""


class Account:
    """Everything that one pass counts; with ``collect`` what the report compares with what leaves, and no more.

    ``resource`` takes in the elements of a resource as they are spelled, without its type and its id (blank: it has
    none), ``entry`` what a usual entry has beside the resource with this id: its URL, and its request's. ``serials``
    are the patients by the hash of their id, ``file`` is the cell of the file that is read.
    """

    def __init__(
        self,
        spool: Path,
        *,
        today: date,
        together: bool,
        originals: Originals | None,
        collect: bool,
        region: int,
        tables: bool = False,
    ) -> None:
        self.together = together
        self.bounds = Bounds()
        self.trie = Trie(self.bounds)
        self.run = DataRun()
        self.serials: dict[int, int] = {}
        self.file: Cell = Cell()
        self.noted = Spill(spool, more=2) if originals is not None and not tables else None
        self.days = Days(self.noted)
        self.classes = Classes(self.bounds, region)
        self.lookup = Lookup(self.run, spool, originals, collect=collect)
        self.targets = Targets(self.run, self.lookup)
        self.ids = OwnIds(self.run, self.lookup, self.bounds)
        self._walk, several, take = walking(self.run, self.trie, self.lookup)
        date_taken = dating(self.run, self.days, self.lookup, self.bounds, today=today.isoformat())
        self.trie.do.update({DATE: date_taken, REFERENCE: self.targets.record, SEARCH: self.lookup.search})
        self._spellings = Spellings(
            self.run, self.trie, self.lookup, self.targets, take, self.bounds, together=together
        )
        self.harmless = ""
        """The id of the last resource, if there is no identifier in it."""
        self._nobodys = 0
        self._unsettled = 0
        noted = (self.noted,) if self.noted is not None else ()
        self._spills = [self.lookup.hits, self.lookup.id_hits, *noted]
        self._envelope = self.trie.apart("Bundle")
        entries = self.trie.grow(self._envelope, "entry", [{}])
        full_url, request = self.trie.grow(entries, "fullUrl", ""), self.trie.grow(entries, "request", {})
        url, method = self.trie.grow(request, "url", ""), self.trie.grow(request, "method", "")
        self.entry = _entry(self, full_url, url, method)
        self.resource = _resource(self, self._spellings, several, take)

    def turn(self, known: str | None) -> None:
        """From here on the data are this patient's, or nobody's. Raises ``Apart``."""
        run = self.run
        serial = -1
        if known is not None:
            number = self.lookup.hash(known)
            found = self.serials.get(number)
            if found is None:
                serial = self.serials[number] = len(self.serials)
            elif found == run.patient:
                if self.file.run != run.number:
                    run.touch(self.file)
                return
            elif self.together:
                raise Apart
            else:
                serial = found
        self._flush()
        run.number += 1
        run.patient = serial
        self.days.begin(serial)
        if serial < 0:
            run.owner = NOBODYS + self._nobodys % NOBODYS
            self._nobodys += 1
        else:
            run.owner = serial
            run.touch(self.file)

    def end(self) -> None:
        """End a file; the next data are a new run."""
        self._flush()
        self.run.patient = -1
        self.run.number += 1

    def spread(self) -> None:
        """End the pass; add the counts kept per spelling to the cells."""
        self._flush()
        self._spellings.spread()

    def _flush(self) -> None:
        if self.targets.pending:
            self.targets.resolve()
        run, together = self.run, self.together
        patient, touched = run.patient, run.touched
        if patient < 0:
            for cell in touched:
                cell.nobody += 1
        elif together:
            for cell in touched:
                cell.n += 1
        else:
            bounds = self.bounds
            for cell in touched:
                cell.add(patient, bounds)
        touched.clear()
        if patient >= 0:
            self.days.end(patient)
        self.lookup.noted.clear()

    def outside(self, value: dict[str, Any]) -> None:
        """Record the elements of a Bundle around its resources that ``entry`` does not record."""
        self._walk(self._envelope, value)
        if isinstance(own := value.get("id"), str):
            self.lookup.trace(own)

    def row(self, root: Node, cells: list[tuple[Node, str, bool]], own: str, whose: str) -> None:
        """Take in a row of a table: its cells that are not empty, whether each is more than a number, the id, and the
        reference to ``whose`` it is."""
        run, touch, trace = self.run, self.run.touch, self.lookup.trace
        if whose:
            trace(whose)
        root.resources += 1
        if root.run != run.number:
            touch(root)
        if own:
            self.ids.record(own)
        for node, value, telling in cells:
            if telling and value.count("/") == 1:
                trace(value)  # a reference, as tables have them
            if node.run != run.number:
                node.leaf = True
                touch(node)
            if (telling or node.act == DATE) and node.do is not None:
                node.do(node, value)

    def settle(self) -> None:
        """Write what is held, if it is much; for every line."""
        self._unsettled += 1
        if self._unsettled < _LINES:
            return
        self._unsettled = 0
        for spill in self._spills:
            spill.settle()
        if (originals := self.lookup.collecting) is not None:
            originals.values.settle()
            originals.ids.settle()

    def hand_over(self, noted: Spill) -> Spill:
        """Return the days that were noted; from here on ``close`` leaves them to others."""
        self._spills.remove(noted)
        return noted

    def close(self) -> None:
        """Give back what is on disk. Safe to call twice."""
        for spill in self._spills:
            spill.close()


def _entry(
    account: Account, full_url: Node, request_url: Node, request_method: Node
) -> Callable[[str, str, str], None]:
    run, touch, trace, search = account.run, account.run.touch, account.lookup.trace, account.lookup.search
    within, repeated, looking = account.lookup.within, account.lookup.repeated, account.lookup.looking is not None

    def search_entry(node: Node, value: str, own: str) -> None:
        """Look for ids of ``import/`` in a URL. Where it ends with the resource's own there are none but in front."""
        if not looking:
            return
        if own and value.endswith(own) and value[-len(own) - 1 : -len(own)] in "/:":
            if account.harmless == own:
                repeated(node, value[: -len(own)])
                return
        else:
            trace(value.partition("?")[0])
        within(node, value)

    def entry(full: str, url: str, own: str) -> None:
        number = run.number
        if full:
            if full_url.run != number:
                full_url.leaf = True
                touch(full_url)
            search_entry(full_url, full, own)
        if url:
            if request_url.run != number:
                request_url.leaf = request_method.leaf = True
                touch(request_url)
                touch(request_method)
            search_entry(request_url, url, own)
            if "?" in url:
                search(request_url, url)

    return entry


def _resource(  # noqa: C901 - one room of local names is what makes it fast
    account: Account, spellings: Spellings, several: Several, take: Take
) -> Callable[[Members, str, str], None]:
    run, trie, days, classes = account.run, account.trie, account.days, account.classes
    touch, own_id = run.touch, account.ids.record
    pending = account.targets.pending
    slot_of, record, apply = spellings.slot_of, spellings.record, spellings.apply
    within, looking = account.lookup.within, account.lookup.looking is not None

    def person(members: Members) -> None:
        said: dict[str, Any] = {
            name: decode(members[name]) for name in ("birthDate", "gender", "address") if name in members
        }
        classes.record(run.patient, days.born(run.patient, said.get("birthDate")), said)

    def resource(members: Members, kind: str, own: str) -> None:  # noqa: C901
        root = trie.roots.get(kind) or trie.root(kind)
        root.resources += 1
        if root.run != run.number:
            touch(root)
        if kind == "Patient" and run.patient >= 0:
            person(members)
        if own:
            leaf = root.kids.get("id") or trie.grow(root, "id", own)
            if leaf.run != run.number:
                leaf.leaf = True
                touch(leaf)
            own_id(own)
            if looking:
                account.harmless = "" if within(leaf, own) else own
        number, known_slots = run.number, root.slots
        for key, raw in members.items():
            try:
                slot = known_slots[key]
            except KeyError:
                slot = slot_of(root, key, raw)
            known = slot.known
            if known is None:
                value = decode(raw)
                child = slot.node
                form = value.__class__
                if form is dict:
                    child.enter(child, value)
                elif form is str:
                    if child.run != number:
                        child.leaf = True
                        touch(child)
                    if child.do is not None:
                        child.do(child, value)
                elif form is list:
                    several(child, value)
                else:
                    take(child, value)
                continue
            spelled = b"" + raw  # a fifth of the time of ``bytes(raw)``
            effect = known.get(spelled)
            if effect is None:
                record(slot, spelled, root.resources)
                continue
            if effect.run != number:
                apply(effect)
            if effect.targets:
                pending.extend(effect.targets)

    return resource
