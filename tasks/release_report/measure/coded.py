"""Codings and texts of concepts met on the walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tasks.release_report.measure.cells import DataRun
from tasks.release_report.measure.codes import CodeTable
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.trie import Node

Json = dict[str, Any]
Enter = Callable[[Node, Json], None]


def coding(run: DataRun, lookup: Lookup, walk: Enter) -> Enter:  # noqa: C901
    """Return the function that records a coding; ``walk`` handles unknown spellings."""
    touch, collecting = run.touch, lookup.collecting

    def enter(node: Node, value: Json) -> None:  # noqa: C901
        known: CodeTable | None = node.codes
        system, code, display = value.get("system"), value.get("code"), value.get("display")
        try:
            seen = known.seen.get((system, code, display)) if known is not None else None
        except TypeError:  # an object where a text should be
            walk(node, value)
            return
        fresh = seen is None
        if seen is None:
            walk(node, value)
            if known is None:
                return
            leaves = tuple(node.below(key) for key in ("system", "code", "display") if value.get(key) is not None)
            seen = known.add(system, code, display, leaves)
            seen.suspicious = any(map(lookup.suspicious, (system, code, display)))
            if collecting is not None:
                for one in (code, display):
                    if isinstance(one, str):
                        collecting.is_coded(one)
        elif seen.suspicious:
            walk(node, value)
            fresh = True
        number = run.number
        if seen.run != number:
            if number >= 0:
                seen.run = number
            for cell in seen.cells:
                if cell.run != number:
                    touch(cell)
        if fresh:
            return
        if len(value) != seen.size:
            walk(node, value)
            return

    return enter


def concept(run: DataRun, lookup: Lookup, walk: Enter) -> Enter:
    """Return the function that records a concept, with codings or only a text."""
    digest, collecting = lookup.hash, lookup.collecting

    def enter(node: Node, value: Json) -> None:
        walk(node, value)
        if "coding" not in value and "text" in value:
            uncoded = value["text"]
            if collecting is not None and isinstance(uncoded, str):
                lookup.note(digest(uncoded), uncoded, run.owner)
                run.changing = True

    return enter
