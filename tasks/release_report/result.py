"""What an account holds when the files are read, as ``Measured``."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tasks.release_report import measured as found
from tasks.release_report.cells import Cell
from tasks.release_report.codes import CodeTable
from tasks.release_report.measured import Codes, Dates, Ids, Measured, References, TypeCount
from tasks.release_report.numbers import quartiles
from tasks.release_report.originals import NOBODYS
from tasks.release_report.trie import DATE, Node
from tasks.release_report.walk import QUARTER, Account

_NINETY: Final = 32_871
"""Days that make 90 years."""
_SHIFTS: Final = 1_000


def result_of(account: Account, k: int) -> Measured:
    """All of it, but what is of the files: their names, and what could not be read of them."""
    originals = account.originals
    original, original_nobody = _originals(account)
    nodes = [node for node in account.trie.nodes if node.patients or node.nobody]
    roots = set(map(id, account.trie.roots.values()))
    paths: dict[str, found.Path] = {}
    elements: dict[str, int] = {}
    for node in nodes:
        if id(node) in roots:
            continue
        if not node.leaf:
            elements[node.path] = max(node.patients, elements.get(node.path, 0))
            continue
        patients = node.patients
        one = node.one
        paths[node.path] = found.Path(
            patients, node.kind,
            one_each=one is not None and patients >= k and one.holds(patients),
            original=original[node.place].patients if node.place in original else 0,
            nobody=node.nobody,
            original_nobody=original_nobody[node.place],
        )  # fmt: skip
    if originals is not None and account.collect:
        originals.first, originals.last = account.first, account.last
        originals.close_import()
    return Measured(
        patients=len(account.serials),
        types={
            kind: TypeCount(root.resources, root.patients, root.nobody)
            for kind, root in sorted(account.trie.roots.items())
            if root.resources
        },
        paths=paths,
        elements=elements,
        codes=_codes(nodes),
        numbers={
            node.path: {code: one.result() for code, one in node.numbers.by.items() if one.patients}
            for node in nodes
            if node.numbers is not None
        },
        dates={node.path: _dates(node) for node in nodes if node.dates},
        date_shifts=_shifts(account),
        references=_references(account),
        ids=_ids(account),
        classes=dict(account.classes),
        identifier_systems=account.trie.systems.counts(),
        extensions=account.trie.urls.counts(),
        profiles=account.trie.profiles.counts(),
        statuses={
            key: count
            for node in nodes
            if node.values is not None and len(node.above) == 2 and node.path.endswith(".status")
            for key, count in node.values.counts(f"{node.path}|").items()
        },
        attachments={
            node.path.rpartition(".")[0]: node.values.counts()
            for node in nodes
            if node.values is not None and node.path.endswith(".contentType")
        },
        multiplicity={
            kind: middle
            for kind, column in account.counts.items()
            if (middle := quartiles(sorted(one for one in column if one))) is not None
        },
        above_89=sum(
            1 for born, last in zip(account.births, account.last, strict=True) if born and last - born >= _NINETY
        ),
        others={name: count for name, count in account.bounds.others.items() if count},
    )


def _originals(account: Account) -> tuple[dict[int, Cell], Counter[int]]:
    """Patients by place that have a value of ``import/`` left there, and how many resources of nobody."""
    patients: dict[int, Cell] = {}
    anybodys: dict[int, Cell] = {}
    nobody: set[tuple[int, int]] = set()
    originals = account.originals
    if originals is None or account.collect:
        return {}, Counter()
    dates: dict[int, Node] = {}
    if len(originals.first) == len(account.first):
        dates = {node.place: node for node in account.trie.nodes if node.act == DATE and node.looked_up}
    for place, owner, hers in originals.confirmed(account.hits, dates=dates):
        if owner < NOBODYS:
            if place in dates:
                anybodys.setdefault(place, Cell()).add(owner, account.bounds)
            if hers:
                patients.setdefault(place, Cell()).add(owner, account.bounds)
        elif len(nobody) < 100_000:
            nobody.add((place, owner))
    patients.update({place: cell for place, cell in anybodys.items() if cell.patients == dates[place].patients})
    return patients, Counter(place for place, _ in nobody)


def _codes(nodes: list[Node]) -> dict[str, Codes]:
    result: dict[str, Codes] = {}
    tables: dict[int, None] = {}
    for node in nodes:
        table: CodeTable | None = node.codes
        if table is None or id(table) in tables:
            continue
        tables[id(table)] = None
        displays = {
            code: max(spelled.items(), key=lambda one: one[1].patients) for code, spelled in table.displays.items()
        }
        result[table.path] = Codes(
            patients=node.patients,
            codes={code: cell.patients for code, cell in table.codes.items() if cell.patients},
            displays={code: display for code, (display, _) in displays.items()},
            display_patients={code: cell.patients for code, (_, cell) in displays.items()},
            systems=table.systems.counts(),
            text_only=table.text_only.patients,
            others=table.other.patients,
        )
    return result


def _dates(node: Node) -> Dates:
    precision: Counter[str] = Counter()
    for name, cell in node.precision.items():
        precision[name] = cell.patients
    dates = node.dates or {}
    return Dates(
        patients=node.patients,
        years={month: cell.patients for month, cell in dates.items() if len(month) == 4 and cell.patients},
        quarters={
            quarter.removeprefix(QUARTER): cell.patients
            for quarter, cell in dates.items()
            if quarter.startswith(QUARTER) and cell.patients
        },
        months={month: cell.patients for month, cell in dates.items() if len(month) == 7 and cell.patients},
        precision={name: count for name, count in precision.items() if count},
        future=node.future.patients if node.future is not None else 0,
        before_birth=node.before.patients if node.before is not None else 0,
    )


def _shifts(account: Account) -> dict[int, int]:
    """Patients by days; told by their order, and only where the first and the last day moved alike."""
    originals = account.originals
    if originals is None or account.collect or len(originals.first) != len(account.first):
        return {}
    before, after = (originals.first, originals.last), (account.first, account.last)
    moved: Counter[int] = Counter()
    for first, last, now_first, now_last in zip(*before, *after, strict=True):
        if first and now_first and now_first - first == now_last - last:
            moved[now_first - first] += 1
    account.bounds.others["date_shifts"] += sum(count for _, count in moved.most_common()[_SHIFTS:])
    return dict(moved.most_common(_SHIFTS))


def _references(account: Account) -> References:
    dangling, inside = account.dangling, account.inside
    parts = max(account.keys.parts(), account.references.parts())
    if len(account.references):
        for part in range(parts):
            known = set(account.keys.numbers(part, parts))
            known.update(account.urls.numbers(part, parts))
            for target, owner, times in account.references.rows(part, parts):
                if target in known:
                    account.inside_count += times
                    cell = inside
                else:
                    account.dangling_count += times
                    cell = dangling
                if owner < NOBODYS:
                    cell.add(owner, account.bounds)
    return References(
        account.inside_count, account.dangling_count, inside.patients, dangling.patients, account.hosts.counts(),
        other=account.other_references,
    )  # fmt: skip


def _ids(account: Account) -> Ids:
    duplicates = 0
    patients = Cell()
    parts = account.keys.parts()
    for part in range(parts):
        known: set[int] = set()
        for key, owner in account.keys.rows(part, parts):
            if key in known:
                duplicates += 1
                if owner < NOBODYS:
                    patients.add(owner, account.bounds)
            known.add(key)
    kept, referred = Cell(), Cell()
    if account.originals is not None and not account.collect:
        for place, owner, _ in account.originals.confirmed(account.id_hits, ids=True):
            if owner < NOBODYS:
                (referred if place else kept).add(owner, account.bounds)
    kinds = account.ids.counts()
    if kept.patients:
        kinds["original"] = kept.patients
    return Ids(kinds, duplicates, patients.patients, referred.patients)
