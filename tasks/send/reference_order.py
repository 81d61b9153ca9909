"""The order in which resources that refer to each other can be loaded.

Targets come before what refers to them. Resources that refer to each other in a circle (an encounter names
its diagnosis, the diagnosis its encounter) can only get in together, so they form one group. Groups and order
are the strongly connected components of the graph of references, by Tarjan's algorithm, without recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator


def dependency_order(keys: Iterable[str], targets: Callable[[str], Iterable[str]]) -> Iterator[list[str]]:
    """Groups of ``keys``, each after the groups it refers to. ``targets`` is asked once for every key.

    A group keeps the order in which its members were met. Targets that are not in ``keys`` are ignored.
    """
    known = dict.fromkeys(keys)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    position: dict[str, int] = {}  # in the stack
    waiting: set[str] = set()
    for root in known:
        if root in index:
            continue
        path: list[tuple[str, Iterator[str]]] = []

        def enter(key: str, path: list[tuple[str, Iterator[str]]] = path) -> None:
            index[key] = low[key] = len(index)
            position[key] = len(stack)
            stack.append(key)
            waiting.add(key)
            path.append((key, iter([target for target in targets(key) if target in known])))

        enter(root)
        while path:
            key, left = path[-1]
            target = next(left, None)
            if target is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[key])
                if low[key] == index[key]:
                    at = position[key]
                    group = stack[at:]
                    del stack[at:]
                    waiting.difference_update(group)
                    yield group
            elif target not in index:
                enter(target)
            elif target in waiting:
                low[key] = min(low[key], index[target])
