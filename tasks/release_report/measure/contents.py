"""Section 7k: the contents of each path, as a sum of hashes that does not depend on their order.

The same values at a path have the same sum, in ``import/`` and in what leaves, wherever they stand; a value that
changed, came or went makes another one. A number is what is written: 1.50 is not 1.5. Values that changed places are
not found. A hash has 64 bits and the key of this process, so no sum means anything elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from tasks.release_report.measure.cells import Cell
    from tasks.release_report.measure.trie import Effect, Node

decode: Final = msgspec.json.Decoder(float_hook=str.encode).decode
"""Read JSON; a number with a point or an exponent is ``bytes`` as it is written, and nothing else is."""

_UNSURE: Final = "…"
"""What stands in a path in place of names that were too many."""


def text_of_number(value: Any) -> str:
    """Return how a number is written; of a boolean its name."""
    return value.decode() if value.__class__ is bytes else str(value)


def content_of(value: Any) -> int:
    """Return the hash of a value at a leaf; a number or a boolean is not the text that looks like it."""
    return hash(value) if value.__class__ is str else hash(("", text_of_number(value)))


def taken_contents(cells: Iterable[Cell]) -> tuple[tuple[Node, int], ...]:
    """Return the contents that the nodes among ``cells`` hold, and leave them without."""
    found: list[tuple[Any, int]] = []
    for cell in cells:
        if content := getattr(cell, "content", 0):
            found.append((cell, content))
            cell.content = 0  # type: ignore[attr-defined]
    return tuple(found)


def settle(effect: Effect) -> None:
    """Add the contents of an element to its nodes, as often as it was met since."""
    times, effect.times = effect.times, 0
    for node, content in effect.contents:
        node.settled += times * content


@dataclass(frozen=True)
class Contents:
    """The sums of a directory by path with the patients there, and how many resources of each type it has."""

    sums: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)


def contents_of(nodes: Iterable[Node], resources: Mapping[str, int]) -> Contents:
    """Return what stands at all paths, but for those that pseudonymization changes without a rule: ids, references,
    ``meta``, and what a Bundle has around its resources."""
    sums: Counter[str] = Counter()
    patients: Counter[str] = Counter()
    for node in nodes:
        content = node.content + node.settled
        if not content or _is_technical(node):
            continue
        sums[node.path] += content
        patients[node.path] = max(patients[node.path], node.patients)
    return Contents({path: (content, patients[path]) for path, content in sums.items()}, resources)


def _is_technical(node: Node) -> bool:
    name = node.path.rpartition(".")[2]
    own = name == "id" or (name == "reference" and node.above[-2:][:1] == ("Reference",))
    return own or "Meta" in node.above or node.above[0] == "Bundle" or _UNSURE in node.path


def differing(before: Contents, after: Contents) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the paths whose contents are others, with the patients there, and the types that cannot be compared,
    because they do not have as many resources as before."""
    both = before.resources.keys() | after.resources.keys()
    unlike = {kind for kind in both if before.resources.get(kind) != after.resources.get(kind)}
    changed: dict[str, int] = {}
    for path in sorted(before.sums.keys() | after.sums.keys()):
        then, now = before.sums.get(path, (0, 0)), after.sums.get(path, (0, 0))
        if then[0] != now[0] and path.partition(".")[0] not in unlike:
            changed[path] = max(then[1], now[1])
    return changed, tuple(sorted(unlike & before.resources.keys()))
