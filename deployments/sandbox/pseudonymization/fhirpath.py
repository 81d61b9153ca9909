"""The seam around the FHIRPath library: its grammar for paths, its evaluation for criteria and values.

Where a rule applies is found by ``automaton``, which has to know places, not only values; whatever decides or computes
(the argument of ``where``, the cases of ``generalize``) is the library's work. An expression that it does not fully
know is refused here, before any resource is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from antlr4 import CommonTokenStream, InputStream, ParseTreeWalker  # type: ignore[import-untyped]
from antlr4.error.ErrorListener import ErrorListener  # type: ignore[import-untyped]
from fhirpathpy import apply_parsed_path
from fhirpathpy.engine.invocations import invocation_registry
from fhirpathpy.engine.nodes import FP_TimeBase, ResourceNode
from fhirpathpy.parser.ASTPathListener import ASTPathListener
from fhirpathpy.parser.generated.FHIRPathLexer import FHIRPathLexer
from fhirpathpy.parser.generated.FHIRPathParser import FHIRPathParser

from deployments.sandbox.common.json_text import JsonValue, plain
from deployments.sandbox.pseudonymization.model import R4
from deployments.sandbox.pseudonymization.problem import RuleFileError

Node = dict[str, Any]
"""A node of the library's syntax tree: ``type``, ``text``, ``terminalNodeText``, ``children``."""

_listener: Callable[[], Any] = ASTPathListener
_parser: Callable[[object], Any] = FHIRPathParser
_apply: Callable[..., list[Any]] = apply_parsed_path
_node: Callable[[object, str], object] = ResourceNode.create_node
_functions: Mapping[str, Any] = invocation_registry

_REFUSED_NODES = {"IndexInvocation": "$index", "TotalInvocation": "$total", "ExternalConstantTerm": "% variables"}
_REFUSED_FUNCTIONS = frozenset({"trace", "now", "today", "timeOfDay"})
"""Known to the library, but without sense in a rule: one writes to the console, the others change with the day."""


class _Strict(ErrorListener):  # type: ignore[misc]
    """Ends the reading at the first thing the grammar does not know; the library's own ``parse`` goes on silently."""

    def syntaxError(self, *_where: object) -> None:  # noqa: N802 - the name is ANTLR's
        raise _SyntaxError


class _SyntaxError(Exception):
    pass


def read(text: str) -> Node:
    """The syntax tree of an expression. Raises ``RuleFileError``."""
    lexer = FHIRPathLexer(InputStream(text))
    parser = _parser(CommonTokenStream(lexer))
    for reader in (lexer, parser):
        reader.removeErrorListeners()
        reader.addErrorListener(_Strict())
    listener = _listener()
    try:
        ParseTreeWalker().walk(listener, parser.entireExpression().expression())
    except Exception:  # noqa: BLE001 - the parser raises whatever it comes across
        raise RuleFileError(f"the FHIRPath expression {text!r} cannot be read") from None
    return cast("Node", listener.parentStack[0]["children"][0])


def function(node: Node) -> tuple[str, list[Node]]:
    """Name and arguments of a ``FunctionInvocation``."""
    called, *rest = node["children"][0]["children"]
    return name_of(called), list(rest[0]["children"]) if rest else []


def name_of(identifier: Node) -> str:
    """The name in an ``Identifier`` node."""
    return str(identifier["text"]).strip("`")


def literal(node: Node) -> str | None:
    """The text of a node that is a string literal; None for anything else."""
    while node["type"] in ("TermExpression", "LiteralTerm"):
        node = node["children"][0]
    if node["type"] != "StringLiteral":
        return None
    return str(_apply({}, {"children": [node]})[0])


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
            return _apply(_node(plain(value), path), tree, model=R4)
        except Exception:  # noqa: BLE001 - the library raises whatever it comes across
            raise EvaluationError(self._text) from None


class EvaluationError(Exception):
    """The library could not evaluate an expression on a value; the message is the expression."""


def _call(name: str, argument: Node) -> Node:
    called = {"type": "Identifier", "text": name, "terminalNodeText": [name]}
    parameters = {"type": "ParamList", "text": None, "terminalNodeText": [], "children": [argument]}
    functn = {"type": "Functn", "text": None, "terminalNodeText": ["(", ")"], "children": [called, parameters]}
    return {"children": [{"type": "FunctionInvocation", "terminalNodeText": [], "children": [functn]}]}


def _check(tree: Node, text: str) -> None:
    for node in _nodes(tree):
        refused = _REFUSED_NODES.get(node["type"])
        if refused is not None:
            raise RuleFileError(f"{refused} in {text!r} is not supported")
        if node["type"] != "FunctionInvocation":
            continue
        name, arguments = function(node)
        known = _functions.get(name)
        if known is None or name in _REFUSED_FUNCTIONS:
            raise RuleFileError(f"the function {name}() in {text!r} is not supported here")
        if "variadic" not in known and len(arguments) not in known.get("arity", (0,)):
            raise RuleFileError(f"the function {name}() in {text!r} has a wrong number of arguments")


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for part in node.get("children", ()):
        yield from _nodes(part)
