"""Check the hierarchy of the elements of a lookup table: ``children`` and ``parent`` (document 3 §5).

An element belongs below the one whose ``children`` name it. Where none does, its own ``parent`` counts, so that a
context is not lost. Errors: ``lookup-multiple-parents``, ``lookup-child-cycle``. Warnings: ``unresolved-child``,
``parent-mismatch``, ``parent-not-prefix``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final

DEEPEST: Final = 16
"""Elements above one another. A FHIR element id has far fewer parts; keeps a view from nesting without end."""

Relations = Mapping[str, tuple[Sequence[str], str | None]]
"""What each element of a table says: its children, and its parent."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A contradiction about the place of an element; ``reference`` is the word of document 3 §5."""

    element: str
    reference: str
    message: str


class Hierarchy:
    """The elements of one table, each at its place: ``parents`` and ``children`` agree when there is no error."""

    def __init__(self, written: Relations) -> None:
        self.errors: list[Disagreement] = []
        self.warnings: list[Disagreement] = []
        self.parents: dict[str, str] = {}
        self.children: dict[str, list[str]] = {element: [] for element in written}
        self._place(written)
        for cycle in find_cycles(self.children):
            way = " → ".join((*cycle, cycle[0]))
            self.errors.append(Disagreement(cycle[0], "lookup-child-cycle", f"is below itself: {way}"))
        if not self.errors:
            self._measure()

    def above(self, element: str) -> Iterator[str]:
        """Yield the elements above one, the nearest first."""
        while (parent := self.parents.get(element)) is not None:
            yield parent
            element = parent

    def _place(self, written: Relations) -> None:
        listed: dict[str, list[str]] = {}
        for element, (children, _) in written.items():
            for child in children:
                if child in written:
                    self.children[element].append(child)
                    listed.setdefault(child, []).append(element)
                else:
                    self._warn(element, "unresolved-child", f"the child {child} has no entry in this table")
        for element, (_, parent) in written.items():
            parents = listed.get(element, [])
            if len(parents) > 1:
                self.errors.append(
                    Disagreement(element, "lookup-multiple-parents", f"is listed as a child by {', '.join(parents)}")
                )
            self._compare(element, parent, parents)

    def _compare(self, element: str, written: str | None, listed: Sequence[str]) -> None:
        """Settle an element's parent, and warn where the two ends or the ids disagree."""
        parent = listed[0] if listed else None
        if written is not None and written not in listed:
            if parent is not None:
                message = f"its parent is {written}, but {parent} lists it as a child; the list counts"
            elif written in self.children:
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
            if sum(1 for _ in zip(self.above(element), range(DEEPEST + 1), strict=False)) > DEEPEST:
                message = f"has more than {DEEPEST} elements above it"
                self.errors.append(Disagreement(element, "lookup-schema-violation", message))

    def _warn(self, element: str, reference: str, message: str) -> None:
        self.warnings.append(Disagreement(element, reference, message))


def is_prefix(parent: str, child: str) -> bool:
    """Return whether an element id continues another one at the border of a part or a slice."""
    return child.startswith(parent) and child[len(parent) : len(parent) + 1] in {".", ":", "/"}


def find_cycles(children: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield cycles from parent to child, each from its first element by name, until each cycle shares an element with
    one of them.
    """
    left = {element: list(below) for element, below in children.items()}
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            cycle = error.args[1][:0:-1]  # told from child to parent, its first element twice
        else:
            return
        start = cycle.index(min(cycle))
        yield [*cycle[start:], *cycle[:start]]
        for element in cycle:
            left[element] = []
