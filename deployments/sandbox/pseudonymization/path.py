"""The path of a rule as steps from a resource to its elements.

====================================  ==================================================================================
``Patient.name``, ``Resource.id``     elements by name; ``value`` stands for every ``value[x]``
``nodesByType('HumanName')``          every element of exactly that type below (and the one it is called on), except in
                                      contained resources and those of entries
``nodesByName('family')``             the same by name
``where(…)``                          elements that meet a criterion, which the FHIRPath library evaluates
``extension('url')``                  the extensions with that URL
``ofType(T)``, ``as(T)``, ``as T``    elements of that type or one derived from it
``|``                                 alternatives
====================================  ==================================================================================

Other FHIRPath (``[0]``, ``first()``, ``descendants()`` …) is refused in a path, but allowed in a criterion. This module
and ``node`` follow the path. The FHIRPath library computes the argument of ``where`` and the cases of ``generalize``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from deployments.sandbox.common import fhirpath
from deployments.sandbox.common.fhirpath import (
    EvaluationError,
    ExpressionError,
    Node,
    check_calls,
    data_of,
    element,
    evaluate,
    function,
    name_of,
    nodes,
)
from deployments.sandbox.common.json_text import JsonValue, plain
from deployments.sandbox.pseudonymization.problem import RuleFileError

_PATH = re.compile(r"(?P<type>[A-Z][a-zA-Z]*)?\.?(?P<expression>.*)", re.DOTALL)
"""Pattern by which the deployed service splits the resource type off a path."""
_REFUSED_NODES = {"IndexInvocation": "$index", "TotalInvocation": "$total", "ExternalConstantTerm": "% variables"}
_REFUSED_FUNCTIONS = frozenset({"trace", "now", "today", "timeOfDay"})
"""Supported by the library but refused: one writes to the console, the others change with the day."""


def _read(text: str) -> Node:
    """Return the syntax tree of an expression. Raises ``RuleFileError``."""
    try:
        return fhirpath.read(text)
    except ExpressionError as error:
        raise RuleFileError(str(error)) from None


def _literal(node: Node) -> str | None:
    """Return the text of a string literal, or None for another node."""
    return str(evaluate(node, [], {}, {})[0]) if node["type"] == "StringLiteral" else None


class RuleExpression:
    """A computation on one element."""

    def __init__(self, node: Node, text: str) -> None:
        """Prepare a syntax tree; ``text`` is for messages. Raises ``RuleFileError`` for unsupported parts."""
        _check(node, text)
        self._where = _call("where", node)
        self._select = _call("select", node)
        self._text = text

    @classmethod
    def of(cls, text: str) -> RuleExpression:
        """Parse an expression. Raises ``RuleFileError``."""
        return cls(_read(text), text)

    def holds(self, value: JsonValue, path: str) -> bool:
        """Return True if the result is true for a value of that type; empty is false. Raises ``EvaluationError``."""
        return bool(self._evaluate(self._where, value, path))

    def value(self, value: JsonValue, path: str) -> JsonValue:
        """Return the first result, or None. Raises ``EvaluationError``."""
        found = self._evaluate(self._select, value, path)
        return found[0] if found else None

    def _evaluate(self, tree: Node, value: JsonValue, path: str) -> list[Any]:
        try:
            return [data_of(item) for item in evaluate(tree, [element(plain(value), path)], {}, {})]
        except EvaluationError:
            raise EvaluationError(self._text) from None


def _call(name: str, argument: Node) -> Node:
    called = {"type": "Identifier", "text": name, "terminalNodeText": [name]}
    parameters = {"type": "ParamList", "text": None, "terminalNodeText": [], "children": [argument]}
    functn = {"type": "Functn", "text": None, "terminalNodeText": ["(", ")"], "children": [called, parameters]}
    return {"type": "FunctionInvocation", "terminalNodeText": [], "children": [functn]}


def _check(tree: Node, text: str) -> None:
    for node in nodes(tree):
        if node["type"] in _REFUSED_NODES:
            raise RuleFileError(f"{_REFUSED_NODES[node['type']]} in {text!r} is not supported")
    try:
        check_calls(tree, text, {}, _REFUSED_FUNCTIONS, " here")
    except ExpressionError as error:
        raise RuleFileError(str(error)) from None


@dataclass(frozen=True, slots=True)
class MemberStep:
    """Go to the elements of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class ByTypeStep:
    """Go to all elements of that type at or below this one."""

    name: str


@dataclass(frozen=True, slots=True)
class ByNameStep:
    """Go to all elements of that name at or below this one."""

    name: str


@dataclass(frozen=True, slots=True)
class OfTypeStep:
    """Keep elements of that type."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class WhereStep:
    """Keep elements that meet a criterion."""

    criterion: RuleExpression


Step = MemberStep | ByTypeStep | ByNameStep | OfTypeStep | WhereStep
Chain = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class RulePath:
    """A parsed path."""

    resource_type: str | None
    """Resource type of the path, ``Resource`` or ``DomainResource`` for all; None: not given, all."""
    chains: tuple[Chain, ...]
    """Alternatives; an empty chain is the resource itself."""


def read_path(text: str) -> RulePath:
    """Parse a path. Raises ``RuleFileError``."""
    cut = _PATH.fullmatch(text.strip())
    if cut is None or not text.strip():
        raise RuleFileError("a path is empty")
    if cut["type"] == text.strip():
        return RulePath(cut["type"], ((),))
    return RulePath(cut["type"], _chains(_read(cut["expression"]), text))


def _chains(node: Node, text: str) -> tuple[Chain, ...]:
    match node["type"], node.get("children", []):
        case "ThisInvocation", _:
            return ((),)
        case "MemberInvocation", [identifier]:
            name = name_of(identifier)
            # A path may begin with the resource type; no element begins with a capital letter.
            return ((OfTypeStep(name) if name[:1].isupper() else MemberStep(name),),)
        case "FunctionInvocation", _:
            return (_function(node, text),)
        case "InvocationExpression", steps:
            ways = product(*(_chains(step, text) for step in steps))
            return tuple(tuple(chain.from_iterable(way)) for way in ways)
        case "UnionExpression", [one, other]:
            return _chains(one, text) + _chains(other, text)
        case "TypeExpression", [inner, kind] if node["terminalNodeText"] == ["as"]:
            return tuple((*way, OfTypeStep(_type_name(kind))) for way in _chains(inner, text))
    raise RuleFileError(f"the path {text!r} uses FHIRPath that is not supported where a path navigates")


def _function(node: Node, text: str) -> Chain:
    name, arguments = function(node)
    match name, arguments:
        case "nodesByType", [argument] if (kind := _literal(argument)) is not None:
            return (ByTypeStep(kind),)
        case "nodesByName", [argument] if (wanted := _literal(argument)) is not None:
            return (ByNameStep(wanted),)
        case "where", [criterion]:
            return (WhereStep(RuleExpression(criterion, text)),)
        case "extension", [argument] if _literal(argument) is not None:
            return (MemberStep("extension"), WhereStep(RuleExpression(_url_is(argument), text)))
        case "ofType" | "as", [kind_node]:
            return (OfTypeStep(_type_name(kind_node)),)
    raise RuleFileError(f"the function {name}() in the path {text!r} is not supported where a path navigates")


def _url_is(argument: Node) -> Node:
    return {"type": "EqualityExpression", "terminalNodeText": ["="], "children": [_read("url"), argument]}


def _type_name(node: Node) -> str:
    return str(node["text"]).replace("`", "").removeprefix("FHIR.")
