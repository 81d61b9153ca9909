"""One ``$run``: from the body of the request to the NDJSON of the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from deployments.sandbox.common.json_text import JsonValue, encode_lines
from deployments.sandbox.flattening.clause import Row
from deployments.sandbox.flattening.problem import ResourceError
from deployments.sandbox.flattening.request import RunRequest
from deployments.sandbox.flattening.view import View

_KEPT = 32
_PART = 1 << 16


def kept_views() -> Callable[[bytes], View]:
    """Compiles ViewDefinitions and keeps the last views: a client sends the same one with every batch."""
    return lru_cache(maxsize=_KEPT)(View.of)


def run(view: View, request: RunRequest, *, null_columns: bool) -> Iterator[bytes]:
    """The answer in parts of some 64 KiB. Raises ``FlatteningError``.

    Without ``null_columns`` a column without a value is left out of its row (document 3 §5).
    """
    line = _with_nulls(view.columns) if null_columns else _without_nulls(view.columns)
    part: list[bytes] = []
    size = 0
    for resource in request.resources():
        try:
            lines = encode_lines([line(row) for row in view.rows(resource)])
        except RecursionError:
            raise ResourceError("a resource is nested too deep") from None
        part.append(lines)
        size += len(lines)
        if size >= _PART:
            yield b"".join(part)
            part, size = [], 0
    if size:
        yield b"".join(part)


def _with_nulls(columns: tuple[str, ...]) -> Callable[[Row], dict[str, JsonValue]]:
    return lambda row: dict(zip(columns, row, strict=True))


def _without_nulls(columns: tuple[str, ...]) -> Callable[[Row], dict[str, JsonValue]]:
    return lambda row: {name: value for name, value in zip(columns, row, strict=True) if value is not None}
