"""The seam around the FHIRPath library: its grammar, its tables of FHIR R4, and what its syntax trees are made of.

Which functions and variables an expression may use, and what its result means, is each service's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from antlr4 import CommonTokenStream, InputStream, ParseTreeWalker  # type: ignore[import-untyped]
from antlr4.error.ErrorListener import ErrorListener  # type: ignore[import-untyped]
from fhirpathpy import apply_parsed_path
from fhirpathpy.engine.invocations import invocation_registry
from fhirpathpy.engine.nodes import ResourceNode, TypeInfo
from fhirpathpy.models import models
from fhirpathpy.parser.ASTPathListener import ASTPathListener
from fhirpathpy.parser.generated.FHIRPathLexer import FHIRPathLexer
from fhirpathpy.parser.generated.FHIRPathParser import FHIRPathParser

Node = dict[str, Any]
"""A node of the library's syntax tree: ``type``, ``text``, ``terminalNodeText``, ``children``."""
Item = Any
"""What an evaluation gives: a ``ResourceNode``, a value, or one of the library's date types."""

R4: dict[str, Any] = models["r4"]
# The library sets this on the first is() or as() only, and ofType() reads it: results would depend on what came before.
TypeInfo.model = R4  # type: ignore[assignment]
FUNCTIONS: Mapping[str, Any] = invocation_registry
"""The library's functions and operators by name."""

element: Callable[[Any, str | None], Item] = ResourceNode
"""An element as the library knows it: data, and its type or path."""
_apply: Callable[[Item, Node, Mapping[str, Any], Node, Node], list[Any]] = apply_parsed_path
_listener: Callable[[], Any] = ASTPathListener
_parser: Callable[[object], Any] = FHIRPathParser
_AROUND_ONE = frozenset({"TermExpression", "InvocationTerm", "ParenthesizedTerm", "LiteralTerm"})
"""Nodes that only hold another one; evaluating them costs the library a twelfth of its time."""


class ExpressionError(Exception):
    """An expression that cannot be read, or asks for what is not there; the message says what."""


class EvaluationError(Exception):
    """The library could not evaluate an expression on an element. Without its text, which quotes data."""


class _Strict(ErrorListener):  # type: ignore[misc]
    """Ends the reading at the first thing the grammar does not know; the library's own ``parse`` goes on silently."""

    def syntaxError(self, *_where: object) -> None:  # noqa: N802 - the name is ANTLR's
        raise ExpressionError


def read(text: str) -> Node:
    """The syntax tree of an expression; 1 to 10 ms. Raises ``ExpressionError``."""
    lexer = FHIRPathLexer(InputStream(text))
    parser = _parser(CommonTokenStream(lexer))
    for reader in (lexer, parser):
        reader.removeErrorListeners()
        reader.addErrorListener(_Strict())
    listener = _listener()
    try:
        ParseTreeWalker().walk(listener, parser.entireExpression().expression())
    except Exception:  # noqa: BLE001 - the parser raises whatever it comes across
        raise ExpressionError(f"the FHIRPath expression {text!r} cannot be read") from None
    return _lean(listener.parentStack[0]["children"][0])


def _lean(node: Node) -> Node:
    """A tree without nodes that hold just one other, and with ``a.b.c`` as one chain: it means the same."""
    children = [_lean(each) for each in node.get("children", ())]
    if node["type"] in _AROUND_ONE:
        return {key: node[key] for key in ("text",) if key in node} | children[0]
    if node["type"] == "InvocationExpression" and children[0]["type"] == "InvocationExpression":
        children[:1] = children[0]["children"]
    return node | {"children": children} if children else node


def check_calls(tree: Node, text: str, own: Mapping[str, Any], refused: frozenset[str], where: str = "") -> None:
    """Whether all functions are known, the library's or the service's own. Raises ``ExpressionError``."""
    for node in nodes(tree):
        if node["type"] != "FunctionInvocation":
            continue
        name, arguments = function(node)
        known = own.get(name) or FUNCTIONS.get(name)
        if known is None or name in refused or not name.isalpha():
            raise ExpressionError(f"the function {name}() in {text!r} is not supported{where}")
        if "variadic" not in known and len(arguments) not in known.get("arity", (0,)):
            raise ExpressionError(f"the function {name}() in {text!r} has a wrong number of arguments")


def nodes(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    yield node
    for part in node.get("children", ()):
        yield from nodes(part)


def function(node: Node) -> tuple[str, list[Node]]:
    """Name and arguments of a ``FunctionInvocation``."""
    called, *rest = node["children"][0]["children"]
    return name_of(called), list(rest[0]["children"]) if rest else []


def name_of(identifier: Node) -> str:
    """The name in an ``Identifier`` node."""
    return str(identifier["text"]).strip("`")


def values(tree: Node, start: Item, variables: Mapping[str, Any], own: Mapping[str, Any]) -> list[Any]:
    """What an expression gives, as plain data. Raises whatever the library raises."""
    return _apply(start, {"children": [tree]}, variables, R4, {"userInvocationTable": own})
