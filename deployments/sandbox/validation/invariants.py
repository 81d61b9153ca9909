"""Invariants of the specification, as FHIRPath on an element; those that the library cannot evaluate, by name.

An invariant fails when its expression gives ``false``. Without a result it does not, as ``ref-1`` on a reference that
has an identifier only: the expressions are written so.
"""

from __future__ import annotations

import functools
import re

from deployments.sandbox.common.definitions.schema import Invariant
from deployments.sandbox.common.fhirpath import EvaluationError
from deployments.sandbox.validation.fhirpath import FUNCTIONS, Expression, Scope, compile_expression

_CALL = re.compile(r"([A-Za-z]+)\(")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")
_OPERATORS = frozenset({"and", "or", "xor", "implies", "in", "contains", "is", "as", "div", "mod"})
_COMPARES_QUANTITIES = ("rng-2",)
"""The library raises on ``low <= high`` of two Quantities."""
_TRACE = re.compile(r"\.trace\('[^']*'(?:, *\w+)?\)")
_IS_BOOLEAN = re.compile(r"(?<= is )Boolean\b")
_AS_OF_MANY = re.compile(r"(?<=descendants\(\)\.)as(?=\()")


def not_evaluable(invariants: tuple[Invariant, ...]) -> tuple[str, ...]:
    """Names of the invariants that ask for more than the library can do."""
    names = (each.name for each in invariants if not _functions(each.expression) <= FUNCTIONS)
    return (*names, *_COMPARES_QUANTITIES)


def holds(invariant: Invariant, scope: Scope) -> bool:
    """Whether the invariant is kept. Raises ``EvaluationError``."""
    try:
        return _compiled(invariant.expression).decide(scope) is not False
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise EvaluationError(type(error).__name__) from None


@functools.cache
def _compiled(expression: str) -> Expression:
    return compile_expression(mended(expression))


def mended(expression: str) -> str:
    """An expression of the specification as the library needs it.

    ``trace()`` changes nothing, but the library's would print what it is given. ``as()`` is an error on several items;
    where ``dom-3`` asks it of all descendants, later versions of the specification say ``ofType()``. And ``que-7`` asks
    whether an element ``is Boolean``, which is FHIRPath's own type, of what the library has as a FHIR ``boolean``.
    """
    return _IS_BOOLEAN.sub("boolean", _AS_OF_MANY.sub("ofType", _TRACE.sub("", expression)))


def _functions(expression: str) -> set[str]:
    return set(_CALL.findall(_TEXT.sub("''", expression))) - _OPERATORS
