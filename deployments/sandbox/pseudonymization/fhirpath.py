"""FHIRPath of a rule: the library's grammar for paths, its evaluation for criteria and values.

Where a rule applies is found by ``path`` and ``node``, which know places, not only values; whatever decides or computes
(the argument of ``where``, the cases of ``generalize``) is the library's work. An expression that it does not fully
know is refused here, before any resource is touched.
"""

from __future__ import annotations

from typing import Any

from fhirpathpy.engine.nodes import FP_TimeBase

from deployments.sandbox.common import fhirpath
from deployments.sandbox.common.fhirpath import (
    EvaluationError,
    ExpressionError,
    Node,
    check_calls,
    element,
    nodes,
    values,
)
from deployments.sandbox.common.json_text import JsonValue, plain
from deployments.sandbox.pseudonymization.problem import RuleFileError

_REFUSED_NODES = {"IndexInvocation": "$index", "TotalInvocation": "$total", "ExternalConstantTerm": "% variables"}
_REFUSED_FUNCTIONS = frozenset({"trace", "now", "today", "timeOfDay"})
"""Known to the library, but without sense in a rule: one writes to the console, the others change with the day."""


def read(text: str) -> Node:
    """The syntax tree of an expression. Raises ``RuleFileError``."""
    try:
        return fhirpath.read(text)
    except ExpressionError as error:
        raise RuleFileError(str(error)) from None


def literal(node: Node) -> str | None:
    """The text of a node that is a string literal; None for anything else."""
    return str(values(node, {}, {}, {})[0]) if node["type"] == "StringLiteral" else None


class Expression:
    """A computation on one element."""

    def __init__(self, node: Node, text: str) -> None:
        """Take a syntax tree; ``text`` is for messages. Raises ``RuleFileError`` for what the library lacks."""
        _check(node, text)
        self._where = _call("where", node)
        self._select = _call("select", node)
        self._text = text

    @classmethod
    def of(cls, text: str) -> Expression:
        """The expression of a text. Raises ``RuleFileError``."""
        return cls(read(text), text)

    def holds(self, value: JsonValue, path: str) -> bool:
        """Whether it is true for a value of that type; empty is not true. Raises ``EvaluationError``."""
        return bool(self._evaluate(self._where, value, path))

    def value(self, value: JsonValue, path: str) -> JsonValue:
        """The first of its results, None without any. Raises ``EvaluationError``."""
        found = self._evaluate(self._select, value, path)
        first = found[0] if found else None
        return str(first) if isinstance(first, FP_TimeBase) else first

    def _evaluate(self, tree: Node, value: JsonValue, path: str) -> list[Any]:
        try:
            return values(tree, element(plain(value), path), {}, {})
        except Exception:  # noqa: BLE001 - the library raises whatever it comes across
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
