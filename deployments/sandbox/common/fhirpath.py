"""The only module that uses the FHIRPath library: its grammar, its FHIR R4 tables and its syntax trees.

Each service decides which functions and variables an expression can use, and how to interpret the result. An
expression with an unknown function is refused when it is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from antlr4 import CommonTokenStream, InputStream, ParseTreeWalker  # type: ignore[import-untyped]
from antlr4.error.ErrorListener import ErrorListener  # type: ignore[import-untyped]
from fhirpathpy.engine import do_eval
from fhirpathpy.engine.invocations import invocation_registry
from fhirpathpy.engine.invocations.constants import constants
from fhirpathpy.engine.nodes import FP_DateTime, FP_Quantity, FP_Time, FP_TimeBase, ResourceNode, TypeInfo
from fhirpathpy.models import models
from fhirpathpy.parser.ASTPathListener import ASTPathListener
from fhirpathpy.parser.generated.FHIRPathLexer import FHIRPathLexer
from fhirpathpy.parser.generated.FHIRPathParser import FHIRPathParser

from deployments.sandbox.common.json_text import JsonValue

Node = dict[str, Any]
"""A node of the library's syntax tree: ``type``, ``text``, ``terminalNodeText``, ``children``."""
Item = Any
"""Item of a result: a ``ResourceNode``, a value, or a date type of the library."""

R4: dict[str, Any] = models["r4"]
# The library sets this on the first is() or as() only, and ofType() reads it: results would depend on earlier calls.
TypeInfo.model = R4  # type: ignore[assignment]
FUNCTIONS: Mapping[str, Any] = invocation_registry
"""The library's functions and operators by name."""

element: Callable[[Any, str | None], Item] = ResourceNode
"""Constructor of the library's element from data and its type or path."""
date_time: Callable[[str], Item] = FP_DateTime
time_of_day: Callable[[str], Item] = FP_Time
"""Constructors of the library's date types from text."""
_do_eval: Callable[[Node, list[Item], Node], list[Item]] = do_eval
_reset_clock: Callable[[], None] = constants.reset
_listener: Callable[[], Any] = ASTPathListener
_parser: Callable[[object], Any] = FHIRPathParser
_AROUND_ONE = frozenset({"TermExpression", "InvocationTerm", "ParenthesizedTerm", "LiteralTerm"})
"""Nodes with exactly one child and no effect; evaluating them takes the library a twelfth of its time."""


class ExpressionError(Exception):
    """An expression cannot be parsed or uses something that is not supported. The message states the reason."""


class EvaluationError(Exception):
    """The library could not evaluate an expression. Omits the library's message, which quotes data."""


class _Strict(ErrorListener):  # type: ignore[misc]
    """Stops at the first syntax error; the library's ``parse`` ignores errors."""

    def syntaxError(self, *_where: object) -> None:  # noqa: N802 - the name is ANTLR's
        raise ExpressionError


def read(text: str) -> Node:
    """Return the syntax tree of an expression. Takes 1 to 10 ms. Raises ``ExpressionError``."""
    lexer = FHIRPathLexer(InputStream(text))
    parser = _parser(CommonTokenStream(lexer))
    for reader in (lexer, parser):
        reader.removeErrorListeners()
        reader.addErrorListener(_Strict())
    listener = _listener()
    try:
        ParseTreeWalker().walk(listener, parser.entireExpression().expression())
    except Exception:  # noqa: BLE001 - the parser raises many types
        raise ExpressionError(f"the FHIRPath expression {text!r} cannot be read") from None
    return _lean(listener.parentStack[0]["children"][0])


def _lean(node: Node) -> Node:
    """Return an equivalent tree without nodes that hold a single node, and with ``a.b.c`` as one chain."""
    children = [_lean(each) for each in node.get("children", ())]
    if node["type"] in _AROUND_ONE:
        return {key: node[key] for key in ("text",) if key in node} | children[0]
    if node["type"] == "InvocationExpression" and children[0]["type"] == "InvocationExpression":
        children[:1] = children[0]["children"]
    return node | {"children": children} if children else node


def check_calls(tree: Node, text: str, own: Mapping[str, Any], refused: frozenset[str], where: str = "") -> None:
    """Raise ``ExpressionError`` unless all functions are known to the library or in ``own``."""
    for node in nodes(tree):
        if node["type"] != "FunctionInvocation":
            continue
        name, arguments = function(node)
        known = own.get(name) or FUNCTIONS.get(name)
        if known is None or name in refused or not name.isalpha():
            raise ExpressionError(f"the function {name}() in {text!r} is not supported{where}")
        if "variadic" not in known and len(arguments) not in known.get("arity", (0,)):
            raise ExpressionError(f"the function {name}() in {text!r} has the wrong number of arguments")


def nodes(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants."""
    yield node
    for part in node.get("children", ()):
        yield from nodes(part)


def function(node: Node) -> tuple[str, list[Node]]:
    """Return name and arguments of a ``FunctionInvocation``."""
    called, *rest = node["children"][0]["children"]
    return name_of(called), list(rest[0]["children"]) if rest else []


def name_of(identifier: Node) -> str:
    """Return the name in an ``Identifier`` node."""
    return str(identifier["text"]).strip("`")


def variable(node: Node) -> str:
    """Return the name in an ``ExternalConstantTerm``, without ``%``."""
    (constant,) = node["children"]
    return name_of(constant["children"][0])


def evaluate(tree: Node, starts: list[Item], variables: Mapping[str, Any], own: Mapping[str, Any]) -> list[Item]:
    """Evaluate an expression on one element: an object with ``resourceType``, or a ``ResourceNode``.

    A primitive can be followed by its companion (``_birthDate``). ``own`` are the service's functions. Raises
    ``EvaluationError``.
    """
    _reset_clock()
    context: Node = {
        "dataRoot": starts,
        "$this": starts,
        "vars": {"context": starts[0] if starts else None, "ucum": "http://unitsofmeasure.org", **variables},
        "model": R4,
        "userInvocationTable": own,
    }
    try:
        found = _do_eval(context, starts, tree)
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise EvaluationError(type(error).__name__) from None
    return [item for item in found if not is_nothing(item)]


def data_of(item: Item) -> JsonValue:
    """Return an item as a JSON value."""
    if isinstance(item, ResourceNode):
        item = item.data
    if isinstance(item, FP_TimeBase):
        return item.asStr  # type: ignore[attr-defined]
    if isinstance(item, FP_Quantity):
        return {"value": item.value, "unit": str(item.unit).strip("'")}
    return item


def path_of(item: Item) -> str:
    """Return the type or path of an item, empty for a computed value."""
    path = item.path if isinstance(item, ResourceNode) else None
    return path if isinstance(path, str) else ""


def is_nothing(item: Item) -> bool:
    """Return True for the companion of a primitive (``_birthDate``), or a null in a list."""
    if not isinstance(item, ResourceNode):
        return item is None
    return item.data is None or (isinstance(item.data, dict) and _is_primitive(item.path))


def _is_primitive(path: str | None) -> bool:
    """Return True if a path of the library is a primitive type."""
    return path is not None and (path.startswith("System.") or ("." not in path and path[:1].islower()))


def has_value(_context: Node, items: list[Item]) -> list[Item]:
    """Return True for one primitive with a value: FHIR's ``hasValue()``, which the library lacks."""
    return [sum(not isinstance(data_of(item), dict | list) for item in items) == 1]
