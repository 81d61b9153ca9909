"""A short way through simple paths: the library takes some 10 µs a step, and most columns are plain navigation.

Taken are names, ``ofType()`` of a choice, ``where()`` with comparisons to a text or Boolean, ``extension('…')``,
``first()``, ``[n]``, ``$this``, ``getResourceKey()`` and ``getReferenceKey()``. The result is the library's, on a
resource without ids and extensions of primitives; those are not looked at here. A test compares both ways on random
resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.sandbox.flattening.elements import Choice, child, is_a, is_resource_type
from deployments.sandbox.flattening.fhirpath import Node, evaluate, function, is_primitive, name_of, variable
from deployments.sandbox.flattening.jsontext import JsonValue
from deployments.sandbox.flattening.keys import reference_key, resource_key

Step = Callable[[list[JsonValue]], list[JsonValue]]
_WRAPPERS = frozenset({"TermExpression", "InvocationTerm", "ParenthesizedTerm", "LiteralTerm"})


class _NotSimple(Exception):  # noqa: N818 - no error: the expression goes the long way
    pass


@dataclass(frozen=True)
class _Narrowed:
    """One of several types: ``ofType(string)`` takes a ``code`` too."""

    base: str


_Place = str | Choice | _Narrowed
"""Where a path has come to: a type, or one that is still open."""


@dataclass(frozen=True)
class Route:
    """A path, compiled for elements of one type."""

    steps: tuple[Step, ...]
    path: str | None
    """Type or path of what it gives; None when that depends on the data."""

    def follow(self, start: JsonValue) -> list[JsonValue]:
        """The values at the end of the path."""
        items = [start]
        for step in self.steps:
            items = step(items)
        return items


def compile_route(tree: Node, path: str, constants: Mapping[str, Any]) -> Route | None:
    """The short way for elements of the type ``path``; None when there is none."""
    try:
        return _route(tree, path, constants, at_start=True)
    except _NotSimple:
        return None


def _route(tree: Node, path: str, constants: Mapping[str, Any], *, at_start: bool = False) -> Route:
    steps: list[Step] = []
    at: _Place = path
    for number, node in enumerate(_chain(tree)):
        if number == 0 and (node["type"] == "ThisInvocation" or (at_start and _names_root(node, path))):
            continue
        step, at = _step(node, at, constants)
        if step is not None:
            steps.append(step)
    if isinstance(at, tuple):
        return Route((*steps, _any_of(tuple(name for name, _ in at))), None)
    return Route(tuple(steps), None if isinstance(at, _Narrowed) else at)


def _names_root(node: Node, path: str) -> bool:
    """Whether a path begins with the type of its resource, as ``Patient.name``."""
    return node["type"] == "MemberInvocation" and name_of(node["children"][0]) == path and is_resource_type(path)


def _chain(node: Node) -> list[Node]:
    """``a.b[0].f()`` as a list of its invocations and indexes."""
    kind, children = node["type"], node.get("children", [])
    if kind in _WRAPPERS:
        return _chain(children[0])
    if kind == "InvocationExpression":
        return _chain(children[0]) + _chain(children[1])
    if kind == "IndexerExpression":
        return [*_chain(children[0]), {"type": "Index", "children": [children[1]]}]
    if kind in ("MemberInvocation", "FunctionInvocation", "ThisInvocation"):
        return [node]
    raise _NotSimple


def _step(node: Node, at: _Place, constants: Mapping[str, Any]) -> tuple[Step | None, _Place]:
    """One invocation: what it does, and the type behind it. A choice does nothing until its type is named."""
    if node["type"] == "FunctionInvocation":
        return _call(*function(node), at, constants)
    if isinstance(at, _Narrowed) and node["type"] == "MemberInvocation":
        at = at.base
    if not isinstance(at, str):
        raise _NotSimple
    if node["type"] == "Index":
        return _index(_literal(node["children"][0], {})), at
    if node["type"] != "MemberInvocation":
        raise _NotSimple
    name = name_of(node["children"][0])
    if not name[:1].islower() or name == "length" or is_primitive(at) or at == "Resource":
        raise _NotSimple
    below = child(at, name)
    return (None if isinstance(below, tuple) else _member(name)), below


def _call(name: str, arguments: list[Node], at: _Place, constants: Mapping[str, Any]) -> tuple[Step, _Place]:
    if isinstance(at, tuple):
        if name != "ofType":
            raise _NotSimple
        return _of_type(at, arguments[0]["text"])
    if isinstance(at, _Narrowed):
        raise _NotSimple
    match name:
        case "where":
            conditions = tuple(_conditions(arguments[0], at, constants))
            return (lambda items: [item for item in items if _holds(conditions, item)]), at
        case "extension" if not is_primitive(at):
            url = _literal(arguments[0], constants)
            return _extension(url), "Extension"
        case "first":
            return (lambda items: items[:1]), at
        case "getResourceKey":
            return _keys(resource_key), "System.String"
        case "getReferenceKey":
            wanted = arguments[0]["text"].rpartition(".")[2] if arguments else None
            return _keys(lambda item: reference_key(item, wanted)), "System.String"
    raise _NotSimple


def _member(name: str) -> Step:
    def step(items: list[JsonValue]) -> list[JsonValue]:
        found: list[JsonValue] = []
        for item in items:
            value = item.get(name) if type(item) is dict else None
            if type(value) is list:
                found.extend(each for each in value if each is not None)
            elif value is not None:
                found.append(value)
        return found

    return step


def _any_of(names: tuple[str, ...]) -> Step:
    """The value of a choice, whichever type it has."""
    members = [(name, _member(name)) for name in names]

    def step(items: list[JsonValue]) -> list[JsonValue]:
        found: list[JsonValue] = []
        for item in items:
            for name, member in members:
                if type(item) is dict and item.get(name) is not None:
                    found += member([item])
                    break
        return found

    return step


def _of_type(choice: Choice, specifier: str) -> tuple[Step, str | _Narrowed]:
    names = [name for name, _ in choice]
    kinds = dict(choice)
    fitting = [name for name in names if is_a(kinds[name], specifier)]
    if not fitting:
        raise _NotSimple
    # The library takes the first type of the choice that is there, then looks whether it fits.
    members = [(name, _member(name), tuple(names[: names.index(name)])) for name in fitting]

    def step(items: list[JsonValue]) -> list[JsonValue]:
        found: list[JsonValue] = []
        for item in items:
            if type(item) is not dict:
                continue
            for name, member, earlier in members:
                if item.get(name) is not None:
                    if all(item.get(each) is None for each in earlier):
                        found += member([item])
                    break
        return found

    if len(fitting) == 1:
        return step, kinds[fitting[0]]
    return step, _Narrowed(specifier.replace("`", "").rpartition(".")[2])


def _extension(url: JsonValue) -> Step:
    if not isinstance(url, str):
        raise _NotSimple
    member = _member("extension")
    return lambda items: [each for each in member(items) if type(each) is dict and each.get("url") == url]


def _index(number: JsonValue) -> Step:
    if type(number) is not int:
        raise _NotSimple
    return lambda items: items[number : number + 1]


def _keys(key: Callable[[JsonValue], str | None]) -> Step:
    return lambda items: [found for found in map(key, items) if found is not None]


def _conditions(node: Node, at: str, constants: Mapping[str, Any]) -> Iterable[tuple[Route, JsonValue]]:
    """``a = 'x' and b.c = %d`` as paths and the values that they have to have."""
    kind, children = node["type"], node.get("children", [])
    if kind in _WRAPPERS and kind != "LiteralTerm":
        yield from _conditions(children[0], at, constants)
    elif kind == "AndExpression":
        for each in children:
            yield from _conditions(each, at, constants)
    elif kind == "EqualityExpression" and node["terminalNodeText"] == ["="]:
        route = _route(children[0], at, constants)
        value = _literal(children[1], constants)
        if not isinstance(value, str | bool) or route.path is None or is_a(route.path, "Quantity"):
            raise _NotSimple
        yield route, value
    else:
        raise _NotSimple


def _holds(conditions: tuple[tuple[Route, JsonValue], ...], item: JsonValue) -> bool:
    for route, value in conditions:
        found = route.follow(item)
        if len(found) != 1 or found[0] != value:
            return False
    return True


def _literal(node: Node, constants: Mapping[str, Any]) -> JsonValue:
    """The value of a literal or constant."""
    inner = node
    while inner["type"] in _WRAPPERS:
        inner = inner["children"][0]
    if inner["type"] == "ExternalConstantTerm" and variable(inner) in constants:
        return constants[variable(inner)]
    if not inner["type"].endswith("Literal"):
        raise _NotSimple
    (value,) = evaluate(inner, {}, {})
    return value
