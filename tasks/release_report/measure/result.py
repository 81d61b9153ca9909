"""Build ``Measured`` from an account after all files are read."""

from __future__ import annotations

from typing import Final

from tasks.release_report.measure import measured as found
from tasks.release_report.measure.account import Account
from tasks.release_report.measure.coded import codes_of
from tasks.release_report.measure.contents import contents_of, differing
from tasks.release_report.measure.dates import dates_of
from tasks.release_report.measure.measured import Measured, TypeCount
from tasks.release_report.measure.occurrences import Comparison, Imported, Moved, compared
from tasks.release_report.measure.trie import DATE, NUMBER, TEXT, Node

_LOOKED_UP: Final = (TEXT, NUMBER, DATE)
"""Where any value of ``import/`` is looked for; elsewhere identifiers are."""


def _is_compared(node: Node) -> bool:
    """Return whether the values at a leaf were compared and differ from those of ``import/``."""
    if node.kind == "display":
        return node.collects or (node.twin is not None and node.twin.leaf)
    return node.kind != "concept-text"


def result_of(account: Account, k: int) -> Measured:
    """Return everything except the names of the files and their errors."""
    bounds, days, lookup, trie = account.bounds, account.days, account.lookup, account.trie
    imported = lookup.looking
    before = imported.imported if imported is not None else None
    in_order = before is not None and len(before.births) == len(days.births)
    places = [node.path for node in trie.nodes]
    comparison = Comparison()
    if before is not None and account.noted is not None and in_order:
        comparison = compared(before, account.noted, places, bounds, together=account.together)
        comparison.add_births(lookup.birthdays(trie.nodes, bounds), bounds)
    original, original_nobody = lookup.counts(trie.nodes, bounds, comparison.is_by_chance, in_order=in_order)
    nodes = [node for node in trie.nodes if node.patients or node.nobody]
    roots = set(map(id, trie.roots.values()))
    paths: dict[str, found.Path] = {}
    elements: dict[str, int] = {}
    undefined: dict[str, found.Path] = {}
    for node in nodes:
        if (odd := node.undefined) is not None and (odd.patients or odd.nobody):
            undefined[node.path] = found.Path(odd.patients, "undefined", nobody=odd.nobody)
        if id(node) in roots:
            continue
        if not node.leaf:
            elements[node.path] = max(node.patients, elements.get(node.path, 0))
            continue
        patients = node.patients
        one = node.one
        number = node.act not in _LOOKED_UP and (node.place in original or node.place in original_nobody)
        paths[node.path] = found.Path(
            patients, node.kind or ("number" if number else ""),
            one_each=one is not None and patients >= k and one.holds(patients),
            original=original[node.place].patients if node.place in original else 0,
            nobody=node.nobody,
            original_nobody=original_nobody[node.place],
            compared=_is_compared(node),
        )  # fmt: skip
    contents = contents_of(trie.nodes, {kind: root.resources for kind, root in trie.roots.items() if root.resources})
    changed: dict[str, int] = {}
    uncompared: tuple[str, ...] = ()
    if (noted := account.noted) is None:
        pass
    elif lookup.collecting is not None:
        births = days.birthdays()
        days_in_import = account.hand_over(noted)
        lookup.collecting.close_import(Imported(days_in_import, places, births, contents, together=account.together))
    elif before is not None:
        changed, uncompared = differing(before.contents, contents)
    return Measured(
        patients=len(account.serials),
        types={
            kind: TypeCount(root.resources, root.patients, root.nobody)
            for kind, root in sorted(trie.roots.items())
            if root.resources
        },
        paths=paths,
        elements=elements,
        undefined=undefined,
        codes=codes_of(nodes),
        numbers={
            node.path: {code: one.result() for code, one in node.numbers.by.items() if one.patients}
            for node in nodes
            if node.numbers is not None
        },
        dates={node.path: dates_of(node, comparison.paths.get(node.path, Moved())) for node in nodes if node.dates},
        date_shifts=comparison.shifts,
        births={path: cell.patients for path, cell in comparison.births.items()},
        birth_events={path: cell.patients for path, cell in comparison.events.items()},
        changed=changed,
        uncompared=uncompared,
        references=account.targets.result(account.ids.keys),
        ids=account.ids.result(),
        classes=dict(account.classes.patients),
        identifier_systems=trie.systems.counts(),
        extensions=trie.urls.counts(),
        profiles=trie.profiles.counts(),
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
        multiplicity=account.multiplicity.result(),
        above_89=days.above_89(),
        others={name: count for name, count in bounds.others.items() if count},
    )
