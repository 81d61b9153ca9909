"""One ``$run``: from the request body, Parameters with a view and resources, to the NDJSON answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from deployments.sandbox.common.json_text import JsonValue, decode_decimals, encode_lines
from deployments.sandbox.flattening.clause import Row
from deployments.sandbox.flattening.expression import InputResource
from deployments.sandbox.flattening.problem import RequestError, ResourceError
from deployments.sandbox.flattening.view import CompiledView

_COMPANION = re.compile(rb'"_|null')
"""Occurs in the text of every resource with ids or extensions of primitives; other matches are harmless."""


_NONE = msgspec.Raw()


class _RunParameter(msgspec.Struct):
    name: str
    resource: msgspec.Raw = _NONE


class _RunParameters(msgspec.Struct, rename="camel"):
    resource_type: str
    parameter: list[_RunParameter] = []


_decoder = msgspec.json.Decoder(_RunParameters)


@dataclass(frozen=True, repr=False)
class RunRequest:
    """A request whose resources are not yet parsed."""

    view: bytes
    """The ViewDefinition."""
    _resources: list[msgspec.Raw]

    def __len__(self) -> int:
        """Return the number of resources."""
        return len(self._resources)

    def resources(self) -> Iterator[InputResource]:
        """Yield the resources in order, each parsed on demand. Raises ``RequestError``."""
        for number, raw in enumerate(self._resources):
            text = bytes(raw)
            try:
                data = decode_decimals(text)
            except (ValueError, RecursionError):
                raise RequestError(f"resources[{number}] cannot be read as JSON") from None
            if not isinstance(data, dict):
                raise RequestError(f"resources[{number}] is not a resource")
            yield InputResource(data, has_companions=_COMPANION.search(text) is not None)


def read_request(body: bytes) -> RunRequest:
    """Split a request body. Raises ``RequestError``."""
    try:
        parameters = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        what = str(error) if isinstance(error, msgspec.ValidationError) else "it is not valid JSON"
        raise RequestError(f"the body is not a Parameters resource: {what}") from None
    if parameters.resource_type != "Parameters":
        raise RequestError("the body is not a Parameters resource")
    views: list[bytes] = []
    resources: list[msgspec.Raw] = []
    for number, each in enumerate(parameters.parameter):
        if each.resource is _NONE or each.name not in ("viewDefinition", "resources"):
            raise RequestError(f"parameter[{number}] is neither a viewDefinition nor one of the resources")
        if each.name == "viewDefinition":
            views.append(bytes(each.resource))
        else:
            resources.append(each.resource)
    if len(views) != 1:
        raise RequestError(f"exactly one viewDefinition parameter is required, {len(views)} found")
    return RunRequest(views[0], resources)


_KEPT = 32
_PART = 1 << 16


def cached_view_compiler() -> Callable[[bytes], CompiledView]:
    """Return a compiler that caches the last views: a client sends the same view with every batch."""
    return lru_cache(maxsize=_KEPT)(CompiledView.of)


def run(view: CompiledView, request: RunRequest, *, null_columns: bool) -> Iterator[bytes]:
    """Yield the answer in chunks of about 64 KiB. Raises ``FlatteningError``.

    Without ``null_columns`` a column without a value is omitted from its row (document 3 §5).
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
