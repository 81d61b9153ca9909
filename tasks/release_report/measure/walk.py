"""The walk over a resource to its leaves, element by element (document 5, section 2).

This runs for every leaf of gigabytes (document 5, section 3: a CPU second for 25 MB), so it is functions over local
names and slots, and what is known of a path once is not found out again. What is done with a value at a leaf, or with
an object, is the room's of what it is: the trie knows which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tasks.release_report.measure.cells import Cell, DataRun
from tasks.release_report.measure.coded import Enter, Json, coding, concept
from tasks.release_report.measure.codes import Seen, are_texts
from tasks.release_report.measure.kinds import QUANTITIES
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.trie import CODED, ID, NUMBER, OUTSIDE, STRAY, TEXT, VALUES, Node, Trie

Take = Callable[[Node, Any], None]
Several = Callable[[Node, list[Any]], None]

_SPELLED: Final = 1_000
"""Spellings of a quantity that are known of an element."""


_NUMBERS: Final = (int, bytes)
"""Classes of numbers: those with a point or an exponent are as they are written (``lines.decode``)."""


def _text_of_number(value: Any) -> str:
    """Return how a number is written; of a boolean its name."""
    return value.decode() if value.__class__ is bytes else str(value)


def walking(  # noqa: C901 - one room of local names is what makes it fast
    run: DataRun, trie: Trie, lookup: Lookup
) -> tuple[Enter, Several, Take]:
    """Return the functions that record an object, a list, and any value. The trie gets the first one."""
    touch, texting = run.touch, lookup.text
    looking = lookup.looking is not None

    def walk(node: Node, value: Json) -> None:
        number, kids = run.number, node.kids
        for key, one in value.items():
            child = kids.get(key)
            if child is None:
                child = trie.grow(node, key, one)
            kind = one.__class__
            if kind is str:
                if child.run != number:
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

    def several(child: Node, values: list[Any]) -> None:
        number = run.number
        for one in values:
            kind = one.__class__
            if kind is dict:
                child.enter(child, one)
            elif kind is str:
                if child.run != number:
                    child.leaf = True
                    touch(child)
                if child.do is not None:
                    child.do(child, one)
            elif kind is list:
                several(child, one)
            elif one is not None:
                scalar(child, one)

    def scalar(child: Node, value: Any) -> None:
        if child.run != run.number:
            child.leaf = True
            touch(child)
        # Outside of persons a number is a measured one, and never looked up.
        if (child.person or child.defined == OUTSIDE) and child.act in (TEXT, NUMBER) and value.__class__ is not bool:
            texting(child, _text_of_number(value))

    def enter_value(child: Node, value: Any) -> None:
        """Record the value of a key of a resource."""
        kind = value.__class__
        if kind is str:
            if child.run != run.number:
                child.leaf = True
                touch(child)
            if child.do is not None:
                child.do(child, value)
        elif kind is dict:
            child.enter(child, value)
        elif kind is list:
            several(child, value)
        elif value is not None:
            scalar(child, value)

    def valued(child: Node, value: str) -> None:
        values: Any = child.values
        cell: Cell = values.cells.get(value) or values.of(value)
        if cell.run != run.number:
            touch(cell)
        if looking:
            lookup.repeated(child, value)

    def stray(child: Node, value: str) -> None:
        """Record a text that R4 does not define."""
        touch(child.undefined)
        texting(child, value)

    def undefined(node: Node, value: Json) -> None:
        """Record an object that R4 does not define."""
        touch(node)
        touch(node.undefined)
        walk(node, value)

    def reference(node: Node, value: Json) -> None:
        walk(node, value)
        display = value.get("display")
        if display.__class__ is str:
            lookup.name(node, node.below("display"), value, display)

    def extension(node: Node, value: Json) -> None:
        url = value.pop("url", None)
        child = node.kids.get(url) if url.__class__ is str else None
        if child is None:
            child = trie.extension(node, url)
            child.cut = lookup.suspicious(url)
        if child.cut:
            leaf = trie.url(node)
            touch(leaf)
            lookup.within(leaf, url)
        if child.run != run.number:
            touch(child)
        walk(child, value)

    def contained(node: Node, value: Json) -> None:
        kind = value.pop("resourceType", None)
        child = node.kids.get(f".{kind}")
        if child is None:
            child = trie.inside(node, kind)
        touch(child)
        walk(child, value)

    def quantity(node: Node, value: Json) -> None:
        """Record a quantity; the leaves of quantities with one unit are known."""
        try:
            key = (value["unit"], value["system"], value["code"])
            measured = value["value"]
            seen = node.spelled.get(key)
        except (KeyError, TypeError):
            walk(node, value)
            return
        if seen is None or len(value) != seen.size or seen.suspicious or measured.__class__ not in _NUMBERS:
            walk(node, value)
            known = seen is not None or len(node.spelled) >= _SPELLED
            if not known and len(value) == 4 and None not in key and are_texts(*key):
                seen = node.spelled[key] = Seen(tuple(map(node.below, value)), 4)
                seen.suspicious = any(map(lookup.suspicious, key))
            return
        if seen.run != (number := run.number):
            if number >= 0:
                seen.run = number
            for leaf in seen.cells:
                if leaf.run != number:
                    touch(leaf)

    trie.do.update({TEXT: texting, VALUES: valued, NUMBER: lookup.number, STRAY: stray})
    if looking:
        trie.do.update({CODED: lookup.repeated, ID: lookup.identified})
    trie.enter.update(
        {
            "object": walk,
            "undefined": undefined,
            "Reference": reference,
            "Coding": coding(run, lookup, walk),
            "CodeableConcept": concept(run, lookup, walk),
            "extension": extension,
            "ResourceList": contained,
            **dict.fromkeys(sorted(QUANTITIES), quantity),
        }
    )
    return walk, several, enter_value
