"""Which element of a lookup table belongs below which (document 3 §5): the checks of ``children`` and ``parent``.

An element belongs below the one whose ``children`` name it. Where none does, its own ``parent`` counts, so that a
context is not lost. Errors: ``lookup-multiple-parents``, ``lookup-child-cycle``. Warnings: ``unresolved-child``,
``parent-mismatch``, ``parent-not-prefix``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tasks.flattening.element_path import WrittenElement

DEEPEST: Final = 16
"""Elements above one another. A FHIR element id has far fewer parts; keeps a view from nesting without end."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What one element's place contradicts. ``reference`` has the word of document 3 §5."""

    element: str
    reference: str
    message: str


class Hierarchy:
    """The elements of one table, each at its place: ``parents`` and ``children`` agree when there is no error."""

    def __init__(self, elements: Mapping[str, WrittenElement]) -> None:
        self.errors: list[Disagreement] = []
        self.warnings: list[Disagreement] = []
        self.parents: dict[str, str] = {}
        self.children: dict[str, list[str]] = {element: [] for element in elements}
        self._place(elements)
        cycles = [min_first(cycle) for cycle in find_cycles(self.children)]
        for cycle in cycles:
            way = " → ".join((*cycle, cycle[0]))
            self.errors.append(Disagreement(cycle[0], "lookup-child-cycle", f"is below itself: {way}"))
        if not self.errors:
            self._measure()

    def _place(self, elements: Mapping[str, WrittenElement]) -> None:
        listed: dict[str, list[str]] = {}
        for element, written in elements.items():
            for child in written.children:
                if child in elements:
                    self.children[element].append(child)
                    listed.setdefault(child, []).append(element)
                else:
                    self._warn(element, "unresolved-child", f"the child {child} has no entry in this table")
        for element, written in elements.items():
            parents = listed.get(element, [])
            if len(parents) > 1:
                self.errors.append(
                    Disagreement(element, "lookup-multiple-parents", f"is listed as a child by {', '.join(parents)}")
                )
            self._compare(element, written.parent, parents, elements)

    def _compare(
        self, element: str, written: str | None, listed: Sequence[str], elements: Mapping[str, WrittenElement]
    ) -> None:
        """Settle an element's parent, and warn where the two ends or the ids disagree."""
        parent = listed[0] if listed else None
        if written is not None and written not in listed:
            if parent is not None:
                message = f"its parent is {written}, but {parent} lists it as a child; the list counts"
            elif written in elements:
                message = f"its parent {written} does not list it as a child; it is taken as one"
                parent = written
                self.children[written].append(element)
            else:
                message = f"its parent {written} has no entry in this table; it is taken as having none"
            self._warn(element, "parent-mismatch", message)
        if parent is None:
            return
        self.parents[element] = parent
        if not is_prefix(parent, element):
            self._warn(element, "parent-not-prefix", f"its id does not continue the id of its parent {parent}")

    def _measure(self) -> None:
        for element in self.children:
            above, level = self.parents.get(element), 1
            while above is not None and level <= DEEPEST:
                above, level = self.parents.get(above), level + 1
            if above is not None:
                message = f"has more than {DEEPEST} elements above it"
                self.errors.append(Disagreement(element, "lookup-schema-violation", message))

    def _warn(self, element: str, reference: str, message: str) -> None:
        self.warnings.append(Disagreement(element, reference, message))


def is_prefix(parent: str, child: str) -> bool:
    """Whether an element id goes on from another one, at the border of a part or of a slice."""
    return child.startswith(parent) and child[len(parent) : len(parent) + 1] in {".", ":", "/"}


def find_cycles(children: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Every cycle that a walk from parent to child closes; without recursion, whatever the depth."""
    done: set[str] = set()
    for root in children:
        path = [root] if root not in done else []
        position = dict.fromkeys(path, 0)
        waiting = [iter(children[root])] if path else []
        while waiting:
            child = next(waiting[-1], None)
            if child is None:
                waiting.pop()
                last = path.pop()
                del position[last]
                done.add(last)
            elif child in position:
                yield path[position[child] :]
            elif child not in done:
                position[child] = len(path)
                path.append(child)
                waiting.append(iter(children[child]))


def min_first(cycle: Sequence[str]) -> list[str]:
    """The same cycle, told from its first element by name."""
    start = cycle.index(min(cycle))
    return [*cycle[start:], *cycle[:start]]
