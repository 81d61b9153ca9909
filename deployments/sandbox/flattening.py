"""The sandbox flattening service: runs ViewDefinitions (SQL on FHIR v2) on a FHIRPath library.

``POST /fhir/ViewDefinition/$run?_format=ndjson`` takes Parameters with one ``viewDefinition`` and any number of
``resources`` and answers with rows as NDJSON. As in the deployed service, every failure of ``$run`` is 500 with a
sentence, ``Accept`` must be exactly one media type, and columns without a value are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs

import msgspec
from starlette.responses import Response

from deployments.sandbox.fhirpath import compiled, evaluated
from deployments.sandbox.service import (
    JSON_TYPES,
    Call,
    FhirProblem,
    Json,
    SandboxService,
    operations,
)

NDJSON: Final = "application/x-ndjson"
_REFUSED: Final = re.compile(r"getResourceKey\(\)|getReferenceKey\(|%rowIndex|\btrace\(")
_decoder: Final = msgspec.json.Decoder(float_hook=Decimal)
_encoder: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]


class ViewError(Exception):
    """A view or a request cannot be run. The message states the place and the reason."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    description: str | None = None


class Column(_Part, frozen=True, kw_only=True):
    """One column: ``path`` is evaluated on the element of its clause."""

    name: _Name
    path: str
    type: str | None = None
    collection: bool | None = None


class Select(_Part, frozen=True, kw_only=True):
    """A select clause."""

    column: tuple[Column, ...] = ()
    select: tuple[Select, ...] = ()
    union_all: tuple[Select, ...] = ()
    for_each: str | None = None
    for_each_or_null: str | None = None


class Where(_Part, frozen=True, kw_only=True):
    """A condition on the resource."""

    path: str


class View(_Part, frozen=True, kw_only=True):
    """A ViewDefinition, with the keys that the sandbox supports."""

    resource_type: Literal["https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"]
    resource: str
    select: Annotated[tuple[Select, ...], msgspec.Meta(min_length=1)]
    name: str | None = None
    status: str | None = None
    where: tuple[Where, ...] = ()
    constant: tuple[dict[str, Any], ...] = ()

    @property
    def constants(self) -> Json:
        """Return the constants by name."""
        return {each["name"]: value for each in self.constant for key, value in each.items() if key != "name"}


def read_view(document: Any) -> View:
    """Return a view whose keys and paths are known. Raises ``ViewError`` before any resource is read."""
    try:
        view = msgspec.convert(document, View)
    except ValueError as error:
        raise ViewError(f"viewDefinition: {error}") from None
    for number, constant in enumerate(view.constant):
        if len(constant) != 2 or "name" not in constant or not any(key.startswith("value") for key in constant):
            raise ViewError(f"constant[{number}]: a constant has a name and one value")
    for where in view.where:
        _check_path(where.path)
    names = [name for clause in view.select for name in _check_select(clause)]
    if len(names) != len(set(names)):
        raise ViewError(f"the column {next(name for name in names if names.count(name) > 1)} is there twice")
    return view


def _check_select(clause: Select) -> list[str]:
    """Check the paths of a clause and return the names of its columns. Raises ``ViewError``."""
    for path in (clause.for_each, clause.for_each_or_null, *(column.path for column in clause.column)):
        if path is not None:
            _check_path(path)
    names = [column.name for column in clause.column]
    names += [name for inner in clause.select for name in _check_select(inner)]
    branches = [_check_select(inner) for inner in clause.union_all]
    if any(branch != branches[0] for branch in branches):
        raise ViewError(f"the branches of unionAll have different columns: {branches}")
    return names + (branches[0] if branches else [])


def _check_path(text: str) -> None:
    refused = _REFUSED.search(text)
    if refused is not None:
        raise ViewError(f"the sandbox does not support {refused[0]}")
    try:
        compiled(text)
    except ValueError:
        raise ViewError(f"the FHIRPath {text!r} cannot be read") from None


def rows(view: View, resource: Json) -> list[Json]:
    """Return the rows of one resource. Raises ``ViewError``."""
    constants = view.constants
    for where in view.where:
        held = _evaluated(where.path, resource, constants)
        if held not in ([], [True], [False]):
            raise ViewError(f"where: {where.path!r} is not a Boolean")
        if held != [True]:
            return []
    found: list[Json] = [{}]
    for clause in view.select:
        found = [left | right for left in found for right in _select(clause, resource, constants)]
    return found


def _evaluated(text: str, node: Any, constants: Json) -> list[Any]:
    try:
        return evaluated(text, node, constants)
    except Exception as error:  # noqa: BLE001 - the library raises errors of many classes, whose texts may quote data
        raise ViewError(f"the path {text!r} cannot be evaluated: {type(error).__name__}") from None


def _select(clause: Select, node: Any, constants: Json) -> list[Json]:
    each = clause.for_each or clause.for_each_or_null
    nodes = _evaluated(each, node, constants) if each else [node]
    if not nodes and clause.for_each_or_null:
        return [{}]
    return [row for one in nodes for row in _clause(clause, one, constants)]


def _clause(clause: Select, node: Any, constants: Json) -> list[Json]:
    found = [_cells(clause, node, constants)]
    for nested in clause.select:
        found = [left | right for left in found for right in _select(nested, node, constants)]
    if clause.union_all:
        branches = [row for branch in clause.union_all for row in _select(branch, node, constants)]
        found = [left | right for left in found for right in branches]
    return found


def _cells(clause: Select, node: Any, constants: Json) -> Json:
    cells: Json = {}
    for column in clause.column:
        values = _evaluated(column.path, node, constants)
        if column.collection:
            cells[column.name] = values
        elif len(values) > 1:
            raise ViewError(f"the column {column.name} has several values and is not a collection")
        elif values:
            cells[column.name] = values[0]
    return cells


def _run(call: Call) -> Response:
    try:
        # All rows are computed before the answer begins: a failure is never a part of an answer.
        return Response(b"".join(_lines(call)), headers={"content-type": NDJSON})
    except ViewError as error:
        raise FhirProblem(500, "exception", str(error)) from None


def _lines(call: Call) -> Iterator[bytes]:
    if call.request.headers.get("accept") != NDJSON:
        raise ViewError(f"Accept must be exactly {NDJSON}")
    if call.media_type not in JSON_TYPES or not call.media_type:
        raise ViewError("Content-Type must be application/fhir+json")
    if parse_qs(call.request.url.query).get("_format") not in (["ndjson"], [NDJSON]):
        raise ViewError("_format must be ndjson")
    view, resources = _read(call.body)
    call.entry.entries = len(resources)
    for number, resource in enumerate(resources):
        if resource.get("resourceType") != view.resource:
            raise ViewError(f"resources[{number}] is not of the view's type {view.resource}")
        yield from (_encoder.encode(row) + b"\n" for row in rows(view, resource))


def _read(body: bytes) -> tuple[View, list[Json]]:
    """Return view and resources of the Parameters. Raises ``ViewError``."""
    try:
        document = _decoder.decode(body)
        given = [(each.get("name"), each.get("resource")) for each in document["parameter"]]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ViewError("the body is not Parameters in JSON") from None
    views = [resource for name, resource in given if name == "viewDefinition"]
    if len(views) != 1:
        raise ViewError(f"exactly one viewDefinition is required, {len(views)} found")
    resources = [resource for name, resource in given if name == "resources"]
    if len(resources) != len(given) - 1 or not all(isinstance(each, dict) for each in resources):
        raise ViewError("each parameter but viewDefinition must be a resource with the name resources")
    return read_view(views[0]), resources


def flattening_service() -> SandboxService:
    """Return the flattening service."""
    endpoints = [("POST", "/fhir/ViewDefinition/$run", _run)]
    return SandboxService("flattening", endpoints, rest={"operation": operations("run")})
