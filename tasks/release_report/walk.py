"""The walk over a resource: each value at its leaf is counted, looked up, compared (document 5, section 2).

This runs for every leaf of gigabytes (document 5, section 3: a CPU second for 25 MB), so it is functions over local
names and slots, and what is known of a path once is not found out again.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Container
from datetime import date
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from tasks.release_report.cells import Bounds, Cell, Values
from tasks.release_report.codes import CodeTable, Seen
from tasks.release_report.kinds import QUANTITIES
from tasks.release_report.numbers import Measure, Measures, code_of
from tasks.release_report.originals import LEAST, LEAST_DIGITS, NOBODYS, Originals, keyed, may_be_one
from tasks.release_report.spill import HELD, Spill
from tasks.release_report.trie import DATE, REFERENCE, SEARCH, TEXT, VALUES, Effect, Node, Slot, Trie

_MONTH: Final = re.compile(r"[12]\d{3}(-[01]\d)?\Z")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_HASHED: Final = re.compile(r"[0-9a-fA-F]{32,}\Z|(?=.*[0-9])[A-Za-z0-9]{40,}\Z")
_CRITERION: Final = re.compile(r"[=|,]([^=|,&]+)(?=[,&]|\Z)")
"""What a search looks for, without the system."""
_SEQUENTIAL: Final = re.compile(r"[A-Za-z]{0,16}[-._]?[0-9]{1,9}\Z")
_PRECISION: Final = {4: "year", 7: "month", 10: "day"}
_NEW_YEAR: Final = "-01-01"
"""A date that a rule makes of a year."""
QUARTER: Final = "quarter "
"""What stands before a quarter among the years and months of a path: longer than what is looked up of a value."""
QUARTER_OF: Final = {f"{month:02}": f"Q{(month + 2) // 3}" for month in range(1, 13)}
_MONTHS: Final = 2_400
"""Years, quarters and months that are counted of one path."""
_NEVER: Final = "9999"
_COUNTED: Final = 1_000_000
"""Patients of whom resources are counted by type (2 bytes each and type)."""


class Apart(Exception):  # noqa: N818 - a change of plan, not an error
    """The data of a patient do not come together: sets must be kept instead of counters."""


class Account:
    """Everything that one pass counts, and the run of data that it is in: whose they are.

    A run is what stands together of one patient, or one resource of nobody.
    """

    def __init__(
        self, spool: Path, *, today: date, together: bool, originals: Originals | None, collect: bool, region: int
    ) -> None:
        self.together = together
        self.bounds = Bounds()
        self.trie = Trie(self.bounds)
        self.unsettled = 0
        self.today = today.isoformat()
        self.region = region
        self.originals = originals
        self.collect = collect
        self.hash = originals.hash if originals is not None else keyed()
        self.serials: dict[int, int] = {}
        self.patient = -1
        self.run = 0
        self.nobodys = 0
        self.file: Cell = Cell()
        self.births = array("i")
        self.first = array("i")
        self.last = array("i")
        self.counts: dict[str, array[int]] = {}
        self.classes: Counter[tuple[str, str, str]] = Counter()
        self.classed = bytearray()
        self.ids = Values(self.bounds)
        self.hosts = Values(self.bounds)
        self.inside = Cell()
        self.dangling = Cell()
        self.inside_count = 0
        self.dangling_count = 0
        self.other_references = 0
        self.keys = Spill(spool)
        self.urls = Spill(spool, more=0)
        self.references = Spill(spool, more=2)
        self.hits = Spill(spool, more=2)
        self.id_hits = Spill(spool, more=2)
        self.envelope: Node
        functions = _functions(self)
        self.turn, self.resource, self.outside, self.entry, self.end_of_line, self.end, self.row, self.spread = (
            functions
        )

    def close(self) -> None:
        """Give back what is on disk. Safe to call twice."""
        for spill in (self.keys, self.urls, self.references, self.hits, self.id_hits):
            spill.close()

    def settle(self) -> None:
        """Write what is held, if it is much; for every line."""
        self.unsettled += 1
        if self.unsettled < _LINES and len(self.keys.hashes) < 2 * HELD:
            return
        self.unsettled = 0
        for spill in (self.keys, self.urls, self.references, self.hits, self.id_hits):
            spill.settle()
        if self.collect and self.originals is not None:
            self.originals.values.settle()
            self.originals.ids.settle()


Json = dict[str, Any]
Members = dict[str, msgspec.Raw]


decode: Final = msgspec.json.Decoder().decode

_LINES: Final = 256
"""Lines after which it is looked whether much is held."""
_TRIES: Final = 128
_EFFECTS: Final = 16_384
"""Elements that are remembered as they are spelled, with what they do; 20 MB."""
_MEMO: Final = 1_500
"""Bytes of one."""
_ABOUTS: Final = 5_000


def _functions(  # noqa: C901 - one room of local names is what makes it fast
    account: Account,
) -> tuple[
    Callable[[str | None], None],
    Callable[[Members, str, str], None],
    Callable[[Json], None],
    Callable[[str | None, str | None, str], None],
    Callable[[Container[str]], None],
    Callable[[], None],
    Callable[[Node, list[tuple[Node, str, bool]], str, str], None],
    Callable[[], None],
]:
    """The functions of a pass: ``turn`` to the data of a patient (or of nobody), take in a ``resource``, what stands
    ``outside`` of resources in a Bundle and in an ``entry``, resolve the references at the ``end_of_line``, the
    ``end`` of a file, take in a ``row`` of a table, and ``spread_all`` at the end."""
    trie, bounds, originals = account.trie, account.bounds, account.originals
    apart = not account.together
    together, today, digest = account.together, account.today, account.hash
    lookup = originals if originals is not None and not account.collect else None
    table, mask = (lookup.table, lookup.mask) if lookup is not None else (bytearray(1), 0)
    collecting = originals if account.collect else None
    touched: list[Cell] = []
    measured: list[Measure] = []
    pending: list[str] = []
    recording = changing = False
    mark = 0
    saved: list[int] = []
    texts: list[tuple[Node, int, str]] = []
    targets: list[str] = []
    slots: list[Slot] = []
    looks = {look: account.ids.of(look) for look in ("uuid", "hashed", "sequential", "other")}
    effects = 0
    abouts: dict[bytes, str] = {}
    counted: dict[str, int] = {}
    noted: set[int] = set()
    run = 0
    patient = owner = -1
    birth = lowest = highest = ""
    current: Members = {}
    hits, id_hits, keys, references = account.hits, account.id_hits, account.keys, account.references

    def touch(cell: Cell | None) -> None:
        """A cell, and those above and beside it, for the run."""
        while cell is not None and cell.run != run:
            if recording:
                saved.append(cell.run)
            cell.run = run
            touched.append(cell)
            for one in cell.also:
                if one.run != run:
                    if recording:
                        saved.append(one.run)
                    one.run = run
                    touched.append(one)
            cell = cell.up

    def walk(node: Node, value: Json) -> None:
        kids = node.kids
        for key, one in value.items():
            child = kids.get(key)
            if child is None:
                child = trie.grow(node, key, one)
            kind = one.__class__
            if kind is str:
                if child.run != run:
                    child.leaf = True
                    touch(child)
                do = child.do
                if do is not None:
                    do(child, one)
            elif kind is dict:
                child.enter(child, one)
            elif kind is list:
                several(child, one)
            elif one is not None:
                scalar(child, one)
        if node.measures is not None:
            for key, child in node.measures:
                if key in value:
                    measure(child, value[key], code_of(value["code"]) if "code" in value else about())

    def several(child: Node, values: list[Any]) -> None:
        for one in values:
            kind = one.__class__
            if kind is dict:
                child.enter(child, one)
            elif kind is str:
                if child.run != run:
                    child.leaf = True
                    touch(child)
                if child.do is not None:
                    child.do(child, one)
            elif kind is list:
                several(child, one)
            elif one is not None:
                scalar(child, one)

    def text(child: Node, value: str) -> None:
        if child.run != run:
            child.leaf = True
            touch(child)
        if child.do is not None:
            child.do(child, value)

    def scalar(child: Node, value: Any) -> None:
        if child.run != run:
            child.leaf = True
            touch(child)
        # Outside of persons a number is a measured one, and never looked up.
        if child.person and child.act == TEXT and value.__class__ is not bool:
            texting(child, str(value))

    def said(child: Node, number: int, value: str) -> None:
        """A text or number at a leaf, and its hash."""
        if table[number & mask] and table[(number >> 32) & mask]:
            hits.hashes.append(number)
            hits.more[0].append(child.place)
            hits.more[1].append(owner)
        elif collecting is not None and child.collects and number not in noted:
            note(number, value)
        one = child.one
        if one is not None and patient >= 0 and not one.add(patient, number):
            child.one = None
            one.drop()

    def texting(child: Node, value: str) -> None:
        if len(value) < LEAST_DIGITS and child.kind == "identifier":
            value = f"{value} identifier"  # too short to be told from other texts: compared with its like alone
        if recording:
            texts.append((child, digest(value), value))
            return
        number = digest(value)
        if (
            (table[number & mask] and table[(number >> 32) & mask])
            or child.one is not None
            or (collecting is not None and child.collects and number not in noted)
        ):
            said(child, number, value)

    def valued(child: Node, value: str) -> None:
        values: Any = child.values
        cell = values.cells.get(value) or values.of(value)
        if cell.run != run:
            touch(cell)

    def referring(child: Node, value: str) -> None:
        (targets if recording else pending).append(value)
        if "?" in value:
            searching(child, value)

    def searching(child: Node, value: str) -> None:
        """A search instead of an id: what it asks for may be somebody's number."""
        for one in _CRITERION.findall(unquote(value)):
            texting(child, one)

    def dating(child: Node, value: str) -> None:  # noqa: C901
        nonlocal lowest, highest, changing
        changing = True
        dates: Any = child.dates
        size = len(value)
        cell = dates.get(value[:7]) or new_month(value[:7], dates)
        if cell is None:
            texting(child, value)
            return
        if cell.run != run:
            touch(cell)
        cell = child.precise.get(size)
        if cell is None:
            cell = child.precise[size] = child.precision.setdefault(_PRECISION.get(size, "time"), Cell())
        if cell.run != run:
            touch(cell)
        if child.clinical:
            if size > 10:
                value = value[:10]
            if value > highest:
                if value > today:
                    touch(child.future)
                    return
                if size >= 10:
                    highest = value
            if value < lowest and size >= 10:
                lowest = value
            if value < birth and not birth.startswith(value):
                touch(child.before)
        elif child.looked_up and size >= 10 and value[4:10] != _NEW_YEAR:
            texting(child, value)

    def note(number: int, value: str) -> None:
        """Take in a value of ``import/``; of a run each once."""
        assert collecting is not None  # noqa: S101 - for the type checker
        if number not in noted and len(value) >= LEAST and may_be_one(value):
            noted.add(number)
            collecting.values.hashes.append(number)
            collecting.values.more[0].append(owner)

    def new_month(month: str, dates: dict[str, Cell]) -> Cell | None:
        """The cell of a month, or of a year; ``None`` when it is none."""
        if not _MONTH.match(month):
            return None
        if len(dates) >= _MONTHS or bounds.crowded:
            bounds.others["dates"] += 1
            return Cell()
        year = dates.setdefault(month[:4], Cell())
        if len(month) == 4:
            return year
        quarter = QUARTER_OF.get(month[5:])
        up = dates.setdefault(f"{QUARTER}{month[:5]}{quarter}", Cell(year)) if quarter else year
        return dates.setdefault(month, Cell(up))

    def coding(node: Node, value: Json) -> None:
        known: CodeTable | None = node.codes
        system, code, display = value.get("system"), value.get("code"), value.get("display")
        try:
            seen = known.seen.get((system, code, display)) if known is not None else None
        except TypeError:  # an object where a text should be
            walk(node, value)
            return
        if seen is None:
            if known is None:
                walk(node, value)
                return
            walk(node, value)
            leaves = tuple(node.kids[key] for key in ("system", "code", "display") if value.get(key) is not None)
            seen = known.add(system, code, display, leaves)
            if collecting is not None:
                for one in (code, display):
                    if isinstance(one, str):
                        collecting.is_coded(one)
        if seen.run != run:
            if not recording:
                seen.run = run
            for cell in seen.cells:
                if cell.run != run:
                    touch(cell)
        if len(value) != seen.size:
            walk(node, value)

    def concept(node: Node, value: Json) -> None:
        nonlocal changing
        walk(node, value)
        if "coding" not in value and "text" in value:
            uncoded = value["text"]
            if node.codes is not None:
                touch(node.codes.text_only)
            if collecting is not None and isinstance(uncoded, str):
                note(digest(uncoded), uncoded)
                changing = True

    def extension(node: Node, value: Json) -> None:
        url = value.pop("url", None)
        child = node.kids.get(url) if url.__class__ is str else None
        if child is None:
            child = trie.extension(node, url)
        if child.run != run:
            touch(child)
        walk(child, value)

    def contained(node: Node, value: Json) -> None:
        kind = value.pop("resourceType", None)
        child = node.kids.get(f".{kind}")
        if child is None:
            child = trie.inside(node, kind)
        touch(child)
        walk(child, value)

    def measure(node: Node, value: Any, code: str) -> None:
        nonlocal changing
        changing = True
        number = value.get("value") if value.__class__ is dict else None
        if number.__class__ not in _NUMBERS:
            return
        if node.numbers is None:
            node.numbers = Measures(bounds)
        found = node.numbers.of(code)
        if found.run != run:
            touch(found)
        if not found.pending:
            measured.append(found)
        found.pending.append(float(number))
        unit = value.get("code") or value.get("unit")
        if unit.__class__ is str:
            touch(found.units.of(unit))

    def turn(known: str | None) -> None:
        """From here on the data are this patient's, or nobody's. Raises ``Apart``."""
        nonlocal run, patient, owner, birth, lowest, highest
        if known is None:
            serial = -1
        else:
            number = digest(known)
            serial = account.serials.get(number, -2)
            if serial == patient:
                if account.file.run != run:
                    touch(account.file)
                return
            if serial == -2:
                serial = account.serials[number] = len(account.serials)
                for column in (account.births, account.first, account.last):
                    column.append(0)
            elif together:
                raise Apart
        flush()
        run += 1
        patient = serial
        if serial < 0:
            owner = NOBODYS + account.nobodys % NOBODYS
            account.nobodys += 1
            birth = ""
        else:
            owner = serial
            days = account.births[serial]
            birth = date.fromordinal(days).isoformat() if days else ""
            touch(account.file)
        lowest, highest = _NEVER, ""

    def end() -> None:
        """The end of a file: what comes next is a run of its own."""
        nonlocal run, patient
        flush()
        patient = -1
        run += 1

    def flush() -> None:
        if pending:
            end_of_line(())
        if patient < 0:
            for cell in touched:
                cell.nobody += 1
            for one in measured:
                one.pending.clear()
        else:
            if together:
                for cell in touched:
                    cell.n += 1
            else:
                for cell in touched:
                    cell.add(patient, bounds)
            for one in measured:
                one.settle(patient, together=together)
            if patient < _COUNTED:
                count()
            days()
        touched.clear()
        measured.clear()
        counted.clear()
        noted.clear()

    def count() -> None:
        for kind, number in counted.items():
            column = account.counts.get(kind)
            if column is None:
                column = account.counts[kind] = array("H")
            if patient >= len(column):
                column.extend([0] * (patient + 1 - len(column) + len(column) // 8))
            column[patient] = min(column[patient] + number, 65_535)

    def days() -> None:
        low, high = _day(lowest), _day(highest)
        if lowest == _NEVER:
            low = high
        elif not highest:
            high = low
        first, last = account.first, account.last
        if low and (not first[patient] or low < first[patient]):
            first[patient] = low
        if high > last[patient]:
            last[patient] = high

    def take(child: Node, value: Any) -> None:
        """What stands under a key of a resource."""
        kind = value.__class__
        if kind is str:
            text(child, value)
        elif kind is dict:
            child.enter(child, value)
        elif kind is list:
            several(child, value)
        elif value is not None:
            scalar(child, value)

    def apply(effect: Effect) -> None:
        """What is known of an element's text, for another patient."""
        effect.run = run
        # Of nobody resources are counted, each once: there the cells must be met one by one.
        if apart and patient >= 0:
            touched.append(effect)
        else:
            for cell in effect.cells:
                if cell.run != run:
                    cell.run = run
                    touched.append(cell)
        for child, number, value in effect.texts:
            said(child, number, value)

    def record(slot: Slot, raw: bytes, resources: int) -> None:
        """Take in an element, and keep what that did: for the next one that is spelled alike.

        The walk runs with a number of its own, so that every cell is met, and what the cells had is put back.
        """
        nonlocal run, recording, changing, mark, effects
        value = decode(raw)
        real, start, before = run, len(touched), changing
        mark -= 1
        run, recording, changing = mark, True, False
        try:
            take(slot.node, value)
        finally:
            run, recording = real, False
            cells = touched[start:]
            del touched[start:]
            for cell, old in zip(cells, saved, strict=True):
                cell.run = old
            effect = Effect(tuple(cells), tuple(texts), tuple(targets))
            saved.clear()
            texts.clear()
            targets.clear()
        for cell in effect.cells:
            if cell.run != run:
                cell.run = run
                touched.append(cell)
        for child, number, text_ in effect.texts:
            said(child, number, text_)
        effect.run = run
        pending.extend(effect.targets)
        slot.misses += 1
        if changing or (slot.misses >= _TRIES and 2 * slot.misses > resources - slot.since):
            spread(slot)
            slot.known = None
        elif slot.known is not None and len(raw) <= _MEMO:
            slot.known[raw] = effect
            effects += 1
            if effects >= _EFFECTS:
                effects = 0
                for one in slots:
                    spread(one)
        changing = before

    def spread(slot: Slot) -> None:
        """Forget what is known of an element; where data are apart its cells get the patients of each spelling."""
        for effect in (slot.known or {}).values() if apart else ():
            # What was touched in this run is counted when it ends.
            if effect.run == run and patient >= 0:
                effect.add(patient, bounds)
            for cell in effect.cells:
                cell.merge(effect, bounds)
            bounds.bits -= len(effect.bits or b"")
            effect.few = effect.bits = None
            effect.nobody = 0
        if slot.known:
            slot.known = {}

    def spread_all() -> None:
        flush()
        for slot in slots:
            spread(slot)

    def slot_of(root: Node, key: str, raw: msgspec.Raw) -> Slot:
        value = decode(raw)
        child = root.kids.get(key) or trie.grow(root, key, value)
        slot = root.slots[key] = Slot(child, root.resources)
        if child.measured or child.dates is not None:
            slot.known = None
        slots.append(slot)
        return slot

    def about() -> str:
        """What a resource is about: its first code."""
        for name in ("code", "medicationCodeableConcept", "vaccineCode", "type"):
            if name in current:
                raw = bytes(current[name])
                known = abouts.get(raw)
                if known is None:
                    if len(abouts) >= _ABOUTS:
                        abouts.clear()
                    known = abouts[raw] = code_of(decode(raw))
                return known
        return ""

    def resource(members: Members, kind: str, own: str) -> None:  # noqa: C901
        """Take in a resource: its elements as they are spelled, without its type and its id (blank: it has none)."""
        nonlocal current, birth
        root = trie.roots.get(kind)
        if root is None:
            root = trie.root(kind)
        root.resources += 1
        if root.run != run:
            touch(root)
        counted[kind] = counted.get(kind, 0) + 1
        current = members
        if kind == "Patient" and patient >= 0:
            birth = person(members) or birth
        if own:
            leaf = root.kids.get("id") or trie.grow(root, "id", own)
            if leaf.run != run:
                leaf.leaf = True
                touch(leaf)
            identity(kind, own)
        known_slots = root.slots
        for key, raw in members.items():
            slot = known_slots.get(key)
            if slot is None:
                slot = slot_of(root, key, raw)
            known = slot.known
            if known is None:
                value = decode(raw)
                child = slot.node
                form = value.__class__
                if form is dict:
                    child.enter(child, value)
                elif form is list:
                    several(child, value)
                elif form is str:
                    if child.run != run:
                        child.leaf = True
                        touch(child)
                    if child.do is not None:
                        child.do(child, value)
                elif value is not None:
                    scalar(child, value)
                if child.measured:
                    measure(child, value, about())
                continue
            spelled = bytes(raw)
            effect = known.get(spelled)
            if effect is None:
                record(slot, spelled, root.resources)
                continue
            if effect.run != run:
                apply(effect)
            if effect.targets:
                pending.extend(effect.targets)

    def quantity(node: Node, value: Json) -> None:
        """A quantity: of those with one unit the leaves are known."""
        try:
            key = (value["unit"], value["system"], value["code"])
            seen = node.spelled.get(key)
        except (KeyError, TypeError):
            walk(node, value)
            return
        if seen is None or len(value) != seen.size or "value" not in value:
            walk(node, value)
            if len(value) == 4 and "value" in value and len(node.spelled) < 1_000:
                node.spelled[key] = Seen(tuple(node.kids[name] for name in value), 4)
        elif seen.run != run:
            if not recording:
                seen.run = run
            for leaf in seen.cells:
                if leaf.run != run:
                    touch(leaf)

    def person(members: Members) -> str:
        value: Json = {name: decode(members[name]) for name in ("birthDate", "gender", "address") if name in members}
        born = value.get("birthDate")
        born = born if isinstance(born, str) and _MONTH.match(born[:7]) else ""
        day = _day(born)
        if day:
            account.births[patient] = day
        place = patient >> 3
        if place >= len(account.classed):
            account.classed.extend(bytes(place + 64 - len(account.classed)))
        if not account.classed[place] >> (patient & 7) & 1:
            account.classed[place] |= 1 << (patient & 7)
            sex = value.get("gender")
            found = (born[:4], sex if isinstance(sex, str) else "", _region(value, account.region))
            if found in account.classes or len(account.classes) < 50_000:
                account.classes[found] += 1
            else:
                bounds.others["classes"] += 1
        return born

    def identity(kind: str, own: str) -> None:
        """The id of a resource: what it looks like, and whether another one has it."""
        number = digest(f"{kind}/{own}")
        keys.hashes.append(number)
        keys.more[0].append(owner)
        bare = digest(own)
        if collecting is not None:
            collecting.ids.hashes.append(bare)
        if table[bare & mask] and table[(bare >> 32) & mask]:
            id_hits.hashes.append(bare)
            id_hits.more[0].append(0)
            id_hits.more[1].append(owner)
        look = "other"
        if len(own) == 36 and _UUID.match(own):
            look = "uuid"
        elif _SEQUENTIAL.match(own):
            look = "sequential"
        elif len(own) >= 32 and _HASHED.match(own):
            look = "hashed"
        cell = looks[look]
        if cell.run != run:
            touch(cell)

    def outside(value: Json) -> None:
        """What a Bundle has around its resources, apart from what ``entry`` takes; it counts as no resource."""
        walk(account.envelope, value)
        if isinstance(own := value.get("id"), str):
            trace(own)

    def row(root: Node, cells: list[tuple[Node, str, bool]], own: str, whose: str) -> None:
        """Take in a row of a table: its cells that are not empty, whether each is more than a number, the id, and the
        reference to ``whose`` it is."""
        if whose:
            trace(whose)
        root.resources += 1
        if root.run != run:
            touch(root)
        counted[root.path] = counted.get(root.path, 0) + 1
        if own:
            identity(root.path, own)
        for node, value, telling in cells:
            if telling and value.count("/") == 1:
                trace(value)  # a reference, as tables have them
            if telling or node.act == DATE:
                text(node, value)
            elif node.run != run:
                node.leaf = True
                touch(node)

    def entry(full: str | None, url: str | None, own: str) -> None:
        """What a usual entry has beside the resource with this id: its URL, and its request's."""
        if full:
            if full_url.run != run:
                full_url.leaf = True
                touch(full_url)
            # With another id than the resource's own it may be the one that it had.
            if not own or not full.endswith(own):
                trace(full.partition("?")[0])
        if url:
            if request_url.run != run:
                request_url.leaf = request_method.leaf = True
                touch(request_url)
                touch(request_method)
            if not own or not url.endswith(own):
                trace(url.partition("?")[0])
            if "?" in url:
                searching(request_url, url)

    def end_of_line(local: Container[str]) -> None:
        """Resolve the references of the data behind the last call; ``local`` are keys and URLs of the line."""
        for reference, times in Counter(pending).items():
            if reference not in local:
                resolve(reference, times)
                continue
            account.inside_count += times
            inside = account.inside
            if inside.run != run:
                inside.run = run
                if patient >= 0:
                    inside.add(patient, bounds)
            if lookup is not None:
                trace(reference)
        pending.clear()

    def resolve(reference: str, times: int) -> None:
        if reference[:1] == "#":
            return
        if "?" in reference:
            account.other_references += times
            return
        target = reference.partition("/_history/")[0]
        if "://" in target:
            touch(account.hosts.of(target.split("/", 3)[2].rpartition("@")[2]))
        else:
            references.hashes.append(digest(target))
            references.more[0].append(owner)
            references.more[1].append(times)
        trace(target)

    def trace(target: str) -> None:
        """Whether what ends in an id ends in one that a resource of ``import/`` had."""
        bare = digest(target[max(target.rfind("/"), target.rfind(":")) + 1 :])
        if table[bare & mask] and table[(bare >> 32) & mask]:
            id_hits.hashes.append(bare)
            id_hits.more[0].append(1)
            id_hits.more[1].append(owner)

    trie.do = {TEXT: texting, DATE: dating, VALUES: valued, REFERENCE: referring, SEARCH: searching}
    trie.enter = {
        "object": walk, "Coding": coding, "CodeableConcept": concept, "extension": extension, "ResourceList": contained,
        **dict.fromkeys(sorted(QUANTITIES), quantity),
    }  # fmt: skip
    account.envelope = trie.apart("Bundle")
    entries = trie.grow(account.envelope, "entry", [{}])
    full_url, request = trie.grow(entries, "fullUrl", ""), trie.grow(entries, "request", {})
    request_url, request_method = trie.grow(request, "url", ""), trie.grow(request, "method", "")
    return turn, resource, outside, entry, end_of_line, end, row, spread_all


_NUMBERS: Final = (int, float)


def _day(text: str) -> int:
    """The ordinal of a day; 0 of what is no whole date."""
    if len(text) != 10:
        return 0
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        return 0


def _region(patient: Json, size: int) -> str:
    addresses = patient.get("address")
    for one in addresses if isinstance(addresses, list) else [addresses]:
        code = one.get("postalCode") if isinstance(one, dict) else None
        if isinstance(code, str) and code:
            return code[:size]
    return ""
