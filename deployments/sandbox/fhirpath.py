"""FHIRPath by its library, for the services that evaluate it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import fhirpathpy
from antlr4 import CommonTokenStream, InputStream  # type: ignore[import-untyped]
from antlr4.error.ErrorListener import ErrorListener  # type: ignore[import-untyped]
from fhirpathpy.models import models
from fhirpathpy.parser.generated.FHIRPathLexer import FHIRPathLexer
from fhirpathpy.parser.generated.FHIRPathParser import FHIRPathParser

R4: dict[str, Any] = models["r4"]


class _Strict(ErrorListener):  # type: ignore[misc]
    """Stops at the first syntax error; the library's own parsing goes on with a part of the expression."""

    def syntaxError(self, *_where: object) -> None:  # noqa: N802 - the name is ANTLR's
        raise ValueError("a syntax error")


@lru_cache(maxsize=512)
def compiled(expression: str) -> Callable[..., list[Any]]:
    """Return an expression as a function of a value and variables. Raises ``ValueError`` if it cannot be read."""
    lexer = FHIRPathLexer(InputStream(expression))
    parser: Any = FHIRPathParser(CommonTokenStream(lexer))
    for reader in (lexer, parser):
        reader.removeErrorListeners()
        reader.addErrorListener(_Strict())
    parser.entireExpression()
    made: Callable[..., list[Any]] = fhirpathpy.compile(expression, R4)
    return made


def evaluated(expression: str, value: Any, variables: dict[str, Any]) -> list[Any]:
    """Return the result of an expression on an object or a primitive. The library raises errors of many classes."""
    if isinstance(value, dict):
        return compiled(expression)(value, variables)
    return compiled(f"value.select({expression})")({"value": value}, variables)
