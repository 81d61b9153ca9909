"""Invariants of the specification, as FHIRPath on an element; those that the library cannot evaluate, by name.

An invariant fails only if its expression is ``false``. It holds without a result, as ``ref-1`` on a reference with only
an identifier: the expressions are written for this.

The library takes about 10 µs per step, so two shortcuts avoid work without changing results. The operands of ``or``,
``and`` and ``implies`` are evaluated separately, the right one only if the left does not decide. An operand that only
reads absent children is evaluated once per type, on an empty element.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deployments.sandbox.common import fhirpath
from deployments.sandbox.common.definitions.schema import Invariant
from deployments.sandbox.common.fhirpath import (
    Node,
    data_of,
    element,
    evaluate,
    has_value,
    name_of,
    read,
)

_OWN = {"hasValue": {"fn": has_value, "arity": {0: []}}}
_FUNCTIONS = frozenset(fhirpath.FUNCTIONS) | frozenset(_OWN)
"""Names of the functions that an expression can call."""
_OPERATIONS = frozenset({"or", "and", "implies"})
_OVER_ITEMS = frozenset({"where", "select", "all", "exists", "repeat"})
"""Functions whose argument is evaluated once per item, so never for an empty list."""
_KEEP_NOTHING = frozenset({"where", "select", "first", "last", "tail", "ofType", "as"})
"""Functions that return an empty list for an empty list."""
_CALL = re.compile(r"([A-Za-z]+)\(")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")
_OPERATORS = frozenset({"and", "or", "xor", "implies", "in", "contains", "is", "as", "div", "mod"})
_COMPARES_QUANTITIES = ("rng-2",)
"""The library raises on ``low <= high`` of two Quantities."""
_TRACE = re.compile(r"\.trace\('[^']*'(?:, *\w+)?\)")
_IS_BOOLEAN = re.compile(r"(?<= is )Boolean\b")
_AS_OF_MANY = re.compile(r"(?<=descendants\(\)\.)as(?=\()")


def not_evaluable(invariants: tuple[Invariant, ...]) -> tuple[str, ...]:
    """Return the names of the invariants that the library cannot evaluate."""
    names = (each.name for each in invariants if not _functions(each.expression) <= _FUNCTIONS)
    return (*names, *_COMPARES_QUANTITIES)


def holds(invariant: Invariant, scope: EvaluationScope) -> bool:
    """Return True if the element satisfies the invariant. Raises ``EvaluationError``."""
    return _compiled(invariant.expression).decide(scope) is not False


@functools.cache
def _compiled(expression: str) -> Condition:
    return compile_condition(adapted_to_library(expression))


def adapted_to_library(expression: str) -> str:
    """Return an expression of the specification in a form that the library can evaluate.

    ``trace()`` is removed, because the library would print its data. ``as()`` is an error on several items; for
    ``dom-3``, which uses it on all descendants, later versions of the specification use ``ofType()``. And ``que-7``
    tests whether an element ``is Boolean``, FHIRPath's own type, where the library has a FHIR ``boolean``.
    """
    return _IS_BOOLEAN.sub("boolean", _AS_OF_MANY.sub("ofType", _TRACE.sub("", expression)))


def _functions(expression: str) -> set[str]:
    return set(_CALL.findall(_TEXT.sub("''", expression))) - _OPERATORS


@dataclass(frozen=True, slots=True)
class EvaluationScope:
    """The element for an expression, and the resources that the expression can refer to."""

    element: Any
    """An object, or a primitive value."""
    path: str
    """FHIR type, or the path of an element defined in place (``Observation.component``)."""
    resource: Node
    root: Node
    """The resource that contains ``resource``, or ``resource`` itself."""


class Condition(ABC):
    """A Boolean expression in FHIRPath's three-valued logic."""

    @abstractmethod
    def decide(self, scope: EvaluationScope) -> bool | None:
        """Return True, False, or None without a result. Raises ``EvaluationError``."""


def compile_condition(text: str) -> Condition:
    """Parse an expression. Takes 1 to 10 ms. Raises ``ExpressionError``."""
    return _condition(read(text))


def _condition(tree: Node) -> Condition:
    kind, children = tree["type"], tree.get("children", [])
    if kind in ("OrExpression", "AndExpression", "ImpliesExpression") and tree["terminalNodeText"][0] in _OPERATIONS:
        return _Operation(tree["terminalNodeText"][0], *map(_condition, children))
    return _Operand(tree)


@dataclass(frozen=True)
class _Operation(Condition):
    operator: str
    left: Condition
    right: Condition

    def decide(self, scope: EvaluationScope) -> bool | None:
        strong = self.operator != "and"  # the result that one side alone can cause
        left = self.left.decide(scope)
        if left is (self.operator == "or"):
            return strong
        right = self.right.decide(scope)
        if right is strong or left is not None:
            return right
        return None


class _Operand(Condition):
    """An expression that the library evaluates as a whole."""

    def __init__(self, tree: Node) -> None:
        self._tree = tree
        names: set[str] = set()
        self._reads = names if _collect(tree, names) else None
        self._on_nothing: dict[str, bool | None] = {}

    def decide(self, scope: EvaluationScope) -> bool | None:
        if self._reads is None or not isinstance(scope.element, dict) or _touches(self._reads, scope.element):
            return self._evaluate(scope)
        if scope.path not in self._on_nothing:
            nothing: Node = {"resourceType": scope.path} if "resourceType" in scope.element else {}
            self._on_nothing[scope.path] = self._evaluate(EvaluationScope(nothing, scope.path, nothing, nothing))
        return self._on_nothing[scope.path]

    def _evaluate(self, scope: EvaluationScope) -> bool | None:
        known = {"resource": scope.resource, "rootResource": scope.root}
        result = [data_of(each) for each in evaluate(self._tree, [element(scope.element, scope.path)], known, _OWN)]
        if not result:
            return None
        # The specification for a Boolean operand: a single item that is not a Boolean counts as true.
        return not (len(result) == 1 and result[0] is False)


def _touches(names: set[str], element: Mapping[str, Any]) -> bool:
    """Return True if a child exists: under its name, with its type (``valueQuantity``), or without a value."""
    return any(_is_named(key.removeprefix("_"), names) for key in element)


def _is_named(key: str, names: set[str]) -> bool:
    return key in names or any(key.startswith(name) and key[len(name)].isupper() for name in names)


def _collect(tree: Node, names: set[str]) -> bool:
    """Add the children that an expression reads to ``names``; return False if it also reads other data."""
    kind, children = tree["type"], tree.get("children", [])
    if kind in ("ThisInvocation", "IndexInvocation", "TotalInvocation", "ExternalConstantTerm"):
        return False
    if kind == "MemberInvocation":
        name = name_of(children[0])
        names.add(name)
        return name[0].islower()  # else it is the type, for the element itself
    if kind == "FunctionInvocation":
        called, *arguments = children[0]["children"]
        return called["text"] in _OVER_ITEMS and all(_collect(each, names) for each in arguments)
    if kind == "InvocationExpression":
        return _collect_chain(children, names)
    return all(_collect(each, names) for each in children)


def _collect_chain(steps: list[Node], names: set[str]) -> bool:
    """Collect the names in a chain: ``a.b.where(…).c`` reads ``a``; arguments count if evaluated even without ``a``."""
    if not _collect(steps[0], names):
        return False
    nothing = steps[0]["type"] == "MemberInvocation"  # a child, not a literal or something computed
    for step in steps[1:]:
        if step["type"] != "FunctionInvocation":
            continue
        called, *arguments = step["children"][0]["children"]
        skipped = nothing and called["text"] in _OVER_ITEMS
        if not skipped and not all(_collect(each, names) for each in arguments):
            return False
        nothing = nothing and called["text"] in _KEEP_NOTHING
    return True
