"""FHIRPath of a view: evaluation that keeps the types of what it finds, and the functions that the library lacks.

An expression that the library does not fully know is refused here, before any resource is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fhirpathpy.engine import do_eval
from fhirpathpy.engine.invocations.constants import constants
from fhirpathpy.engine.nodes import FP_Quantity, FP_TimeBase, ResourceNode

from deployments.sandbox.common.fhirpath import (
    R4,
    EvaluationError,
    ExpressionError,
    Item,
    Node,
    check_calls,
    element,
    name_of,
    nodes,
)
from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.flattening.keys import reference_key, resource_key

_do_eval: Callable[[Node, list[Item], Node], list[Item]] = do_eval
_reset_clock: Callable[[], None] = constants.reset


def _extension(_context: Node, items: list[Item], url: str) -> list[Item]:
    """All extensions with that URL; the library's own stops at the first one of each element."""
    elements = [data_of(item) for item in items]
    listed = [element.get("extension", ()) for element in elements if isinstance(element, dict)]
    return [element(each, "Extension") for found in listed for each in found if each.get("url") == url]


def _has_value(_context: Node, items: list[Item]) -> list[Item]:
    """Whether there is one primitive with a value."""
    return [sum(not isinstance(data_of(item), dict) for item in items) == 1]


def _join(_context: Node, items: list[Item], separator: str = "") -> list[Item]:
    """The texts in one; of none an empty one, as the tests of SQL on FHIR say and FHIRPath does not."""
    texts = [data_of(item) for item in items if not _is_nothing(item)]
    if not all(isinstance(each, str) for each in texts):
        raise EvaluationError
    return [separator.join(str(each) for each in texts)]


def _single(_context: Node, items: list[Item]) -> list[Item]:
    """The item, of none or one; the library's own answers many with an object that looks like data."""
    if len(items) > 1:
        raise EvaluationError
    return items


def _resource_key(_context: Node, items: list[Item]) -> list[Item]:
    keys = (resource_key(data_of(item)) for item in items)
    return [key for key in keys if key is not None]


def _reference_key(_context: Node, items: list[Item], wanted: Any = None) -> list[Item]:
    name = None if wanted is None else wanted.name
    keys = (reference_key(data_of(item), name) for item in items)
    return [key for key in keys if key is not None]


_OWN: Mapping[str, Any] = {
    "extension": {"fn": _extension, "arity": {1: ["String"]}},
    "hasValue": {"fn": _has_value, "arity": {0: []}},
    "join": {"fn": _join, "arity": {0: [], 1: ["String"]}},
    "single": {"fn": _single, "arity": {0: []}},
    "getResourceKey": {"fn": _resource_key, "arity": {0: []}},
    "getReferenceKey": {"fn": _reference_key, "arity": {0: [], 1: ["TypeSpecifier"]}},
}
_REFUSED = frozenset({"trace"})
"""Known to the library, but it writes data to the console."""


def check(tree: Node, text: str, variables: frozenset[str]) -> None:
    """Whether functions and variables are known. Raises ``ExpressionError``."""
    for node in nodes(tree):
        if node["type"] == "ExternalConstantTerm" and variable(node) not in variables:
            raise ExpressionError(f"the constant %{variable(node)} in {text!r} is not defined")
    check_calls(tree, text, _OWN, _REFUSED)


def variable(node: Node) -> str:
    """The name in an ``ExternalConstantTerm``, without ``%``."""
    (constant,) = node["children"]
    return name_of(constant["children"][0])


def evaluate(tree: Node, starts: list[Item], variables: Mapping[str, Any]) -> list[Item]:
    """Evaluate an expression on one element: an object with ``resourceType``, or a ``ResourceNode``.

    A primitive may have its companion beside it. Raises ``EvaluationError``.
    """
    _reset_clock()
    context: Node = {
        "dataRoot": starts,
        "$this": starts,
        "vars": variables,
        "model": R4,
        "userInvocationTable": _OWN,
    }
    try:
        found = _do_eval(context, starts, tree)
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise EvaluationError(type(error).__name__) from None
    return [item for item in found if not _is_nothing(item)]


def data_of(item: Item) -> JsonValue:
    """What an item is in JSON."""
    if isinstance(item, ResourceNode):
        item = item.data
    if isinstance(item, FP_TimeBase):
        return item.asStr  # type: ignore[attr-defined]
    if isinstance(item, FP_Quantity):
        return {"value": item.value, "unit": str(item.unit).strip("'")}
    return item


def path_of(item: Item) -> str:
    """Type or path of an item; empty for what was computed."""
    path = item.path if isinstance(item, ResourceNode) else None
    return path if isinstance(path, str) else ""


def _is_nothing(item: Item) -> bool:
    """Whether an item is the companion of a primitive (``_birthDate``), or a null in a list."""
    if not isinstance(item, ResourceNode):
        return item is None
    return item.data is None or (isinstance(item.data, dict) and is_primitive(item.path))


def is_primitive(path: str | None) -> bool:
    """Whether a path of the library is a primitive type."""
    return path is not None and (path.startswith("System.") or ("." not in path and path[:1].islower()))
