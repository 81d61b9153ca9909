"""The seam around the FHIRPath library: its grammar, its evaluation, and the functions it lacks.

An expression that the library does not fully know is refused here, before any resource is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from antlr4 import CommonTokenStream, InputStream, ParseTreeWalker  # type: ignore[import-untyped]
from antlr4.error.ErrorListener import ErrorListener  # type: ignore[import-untyped]
from fhirpathpy.engine import do_eval
from fhirpathpy.engine.invocations import invocation_registry
from fhirpathpy.engine.invocations.constants import constants
from fhirpathpy.engine.nodes import FP_Quantity, FP_TimeBase, ResourceNode, TypeInfo
from fhirpathpy.models import models
from fhirpathpy.parser.ASTPathListener import ASTPathListener
from fhirpathpy.parser.generated.FHIRPathLexer import FHIRPathLexer
from fhirpathpy.parser.generated.FHIRPathParser import FHIRPathParser

from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.flattening.keys import reference_key, resource_key

Node = dict[str, Any]
"""A node of the library's syntax tree: ``type``, ``text``, ``terminalNodeText``, ``children``."""
Item = Any
"""What an evaluation gives: a ``ResourceNode``, a value, or one of the library's date types."""

R4: Mapping[str, Any] = models["r4"]
# The library sets this on the first is() or as() only, and ofType() reads it: results would depend on what came before.
TypeInfo.model = R4  # type: ignore[assignment]
_listener: Callable[[], Any] = ASTPathListener
_parser: Callable[[object], Any] = FHIRPathParser
_do_eval: Callable[[Node, list[Item], Node], list[Item]] = do_eval
element: Callable[[JsonValue, str | None], Item] = ResourceNode
"""An element as the library knows it: data, and its type or path."""
_functions: Mapping[str, Any] = invocation_registry
_reset_clock: Callable[[], None] = constants.reset


class ExpressionError(Exception):
    """An expression that cannot be read, or asks for what is not there; the message says what."""


class EvaluationError(Exception):
    """The library could not evaluate an expression on an element. Without its text, which quotes data."""


def _extension(_context: Node, items: list[Item], url: str) -> list[Item]:
    """All extensions with that URL; the library's own stops at the first one of each element."""
    elements = [data_of(item) for item in items]
    listed = [element.get("extension", ()) for element in elements if isinstance(element, dict)]
    return [element(each, "Extension") for found in listed for each in found if each.get("url") == url]


def _has_value(_context: Node, items: list[Item]) -> list[Item]:
    """Whether there is one primitive with a value."""
    return [sum(not isinstance(data_of(item), dict) for item in items) == 1]


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
    "single": {"fn": _single, "arity": {0: []}},
    "getResourceKey": {"fn": _resource_key, "arity": {0: []}},
    "getReferenceKey": {"fn": _reference_key, "arity": {0: [], 1: ["TypeSpecifier"]}},
}
_REFUSED = frozenset({"trace"})
"""Known to the library, but it writes data to the console."""


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
    tree: Node = listener.parentStack[0]["children"][0]
    return tree


def check(tree: Node, text: str, variables: frozenset[str]) -> None:
    """Whether functions and variables are known. Raises ``ExpressionError``."""
    for node in nodes(tree):
        if node["type"] == "ExternalConstantTerm" and variable(node) not in variables:
            raise ExpressionError(f"the constant %{variable(node)} in {text!r} is not defined")
        if node["type"] == "FunctionInvocation":
            _check_call(*function(node), text)


def _check_call(name: str, arguments: list[Node], text: str) -> None:
    known = _OWN.get(name) or _functions.get(name)
    if known is None or name in _REFUSED or not name.isalpha():
        raise ExpressionError(f"the function {name}() in {text!r} is not supported")
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


def variable(node: Node) -> str:
    """The name in an ``ExternalConstantTerm``, without ``%``."""
    (constant,) = node["children"]
    return name_of(constant["children"][0])


def evaluate(tree: Node, start: Item, variables: Mapping[str, Any]) -> list[Item]:
    """Evaluate an expression. ``start`` is an object with ``resourceType``, or a ``ResourceNode``.

    Raises ``EvaluationError``.
    """
    _reset_clock()
    context: Node = {
        "dataRoot": [start],
        "$this": [start],
        "vars": variables,
        "model": R4,
        "userInvocationTable": _OWN,
    }
    try:
        found = _do_eval(context, [start], tree)
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
