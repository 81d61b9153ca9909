"""The JSON Schema of the configuration file, for editors: made from the models, checked in, kept current by a test.

It describes shapes and ranges; the rules that join keys, and what a ``${VAR}`` expands to, are the loader's.
Run ``python -m config.reference schema > config/pipeline.schema.json`` after a change of the models.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any, get_args, get_origin

from pydantic_core import to_jsonable_python

from config.deprecated import DEPRECATED
from config.duration import format_duration
from config.fields import Block, Kind
from config.keys import KeyInfo, blocks, describe_keys
from config.services import EnrichmentRule

_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}
_DURATION_PATTERN = (
    r"^(P(?=[0-9T])([0-9.,]+D)?(T(?=[0-9])([0-9.,]+H)?([0-9.,]+M)?([0-9.,]+S)?)?"
    r"|(?=[0-9])([0-9.]+d)?([0-9.]+h)?([0-9.]+m)?([0-9.]+s)?([0-9.]+ms)?)$"
)


_LOWEST = timedelta(seconds=1)
"""The one lower bound of durations that document 1 names."""


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) as plain values."""
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sluice pipeline configuration",
        "type": "object",
        "additionalProperties": False,
        "properties": {},
    }
    for path, model in blocks().items():
        if path:
            block = _place(root, path)
            block |= {"type": ["object", "null"], "additionalProperties": False, "properties": {}}
            block["description"] = (model.__doc__ or "").replace("``", "`").split("\n")[0]
    for info in describe_keys():
        _place(root, info.key).update(_key(info))
    for old in DEPRECATED.values():
        instead = f"Use {old.replacement}" if old.replacement else "Has no effect"
        value = {"type": ["integer", "string"]} if old.kind is Kind.INTEGER else {"type": "string"}
        _place(root, old.key).update(value | {"deprecated": True, "description": f"Deprecated. {instead}"})
    root["$defs"] = {"enrichmentRule": _of_type(EnrichmentRule)}
    return root


def _place(root: dict[str, Any], path: str) -> dict[str, Any]:
    here = root
    for name in path.split("."):
        here = here["properties"].setdefault(name, {})
    return here


def _key(info: KeyInfo) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": info.description} | _shape(info)
    if info.default is not None and info.default != ():
        schema["default"] = to_jsonable_python(info.default)
    return schema


def _shape(info: KeyInfo) -> dict[str, Any]:
    described: dict[str, Any] = {}
    forms: list[dict[str, Any]]
    match info.kind:
        case Kind.INTEGER:
            bounds = {"minimum": info.minimum, "maximum": info.maximum}
            forms = [{"type": "integer"} | {name: bound for name, bound in bounds.items() if bound is not None}]
        case Kind.BOOLEAN:
            forms = [{"type": "boolean"}]
        case Kind.CHOICE:
            forms = [{"enum": list(info.choices)}]
        case Kind.DURATION:
            forms = [{"type": "string", "pattern": _DURATION_PATTERN, "examples": ["PT30M", "PT5S", "1h30m"]}]
            if re.search(r"\b0 (selects|means)", info.description):
                forms += [{"const": 0}, {"const": "0"}]
            if info.minimum == _LOWEST:
                described = {"description": f"{info.description}. At least {format_duration(_LOWEST)}"}
        case Kind.LIST:
            choices = {"anyOf": [{"enum": list(info.choices)}, _VARIABLE]}
            forms = [{"type": "array", "items": choices if info.choices else {"type": "string"}}]
        case Kind.RULES:
            return {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/enrichmentRule"}}, {"type": "null"}]}
        case _:
            # Numbers are taken as they are written: a project may be called 0815.
            return {"type": ["string", "number", "null"]}
    return described | {"anyOf": [*forms, _VARIABLE, {"type": "null"}]}


def _of_type(annotation: Any) -> dict[str, Any]:
    """The schema of a type in an enrichment rule: a block, a list, one line of text or a truth value."""
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return {"type": "array", "items": _of_type(arguments[0])}
    if arguments:
        return _of_type(arguments[0])  # what may also be absent, or has a reader
    if not issubclass(annotation, Block):
        return {"type": "boolean" if annotation is bool else "string"}
    fields = annotation.model_fields.items()
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, field in fields if field.is_required()],
        "properties": {name: _of_type(field.annotation) | {"description": field.description} for name, field in fields},
    }


def render_schema() -> str:
    """The schema as it is checked in."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
