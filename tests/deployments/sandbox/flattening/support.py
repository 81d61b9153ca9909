"""Views in short form, and their rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from deployments.sandbox.flattening.problem import ViewError
from deployments.sandbox.flattening.run import read_request, run
from deployments.sandbox.flattening.view import CompiledView

Json = dict[str, Any]

RESOURCE_TYPE = "https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"


def column(name: str, path: str | None = None, **more: Any) -> Json:
    """Return a column whose path is its name unless given."""
    return {"name": name, "path": path or name, **more}


def columns(*names: str) -> list[Json]:
    """Return columns whose paths are their names."""
    return [column(name) for name in names]


def view(*select: Json, resource: str = "Patient", **more: Any) -> Json:
    """Return a ViewDefinition with these clauses."""
    return {"resourceType": RESOURCE_TYPE, "name": "v", "status": "active", "resource": resource} | {
        "select": list(select),
        **more,
    }


def one(path: str, resource: str = "Patient", **more: Any) -> Json:
    """Return a view with the one column ``x``."""
    return view({"column": [column("x", path)]}, resource=resource, **more)


def parameters(definition: Any, resources: Iterable[Json | str | bytes]) -> bytes:
    """Return the body of a request; resources given as text are sent unchanged."""
    parts = [b'{"name":"viewDefinition","resource":' + json.dumps(definition).encode() + b"}"]
    for each in resources:
        text = json.dumps(each) if isinstance(each, dict) else each
        parts.append(b'{"name":"resources","resource":' + (text.encode() if isinstance(text, str) else text) + b"}")
    return b'{"resourceType":"Parameters","parameter":[' + b",".join(parts) + b"]}"


def text(definition: Json, *resources: Json | str, nulls: bool = False) -> str:
    """Return the NDJSON of a view for resources."""
    request = read_request(parameters(definition, resources))
    compiled = CompiledView.of(request.view)
    return b"".join(run(compiled, request, null_columns=nulls)).decode()


def rows(definition: Json, *resources: Json | str, nulls: bool = True) -> list[Json]:
    """Return the rows, with nulls, so that a test sees every column."""
    return [json.loads(line) for line in text(definition, *resources, nulls=nulls).split("\n") if line]


def value(path: str, resource: Json | str, **more: Any) -> Any:
    """Return the value of a path as a column."""
    kind = json.loads(resource)["resourceType"] if isinstance(resource, str) else resource["resourceType"]
    (row,) = rows(one(path, kind, **more), resource)
    return row["x"]


def refused(definition: Json) -> str:
    """Return the error message for an invalid view."""
    with pytest.raises(ViewError) as caught:
        CompiledView.of(json.dumps(definition).encode())
    return str(caught.value)
