"""The JSON Schema of the configuration file, for editors: made from the models, checked in, kept current by a test.

It describes shapes and ranges; the rules that join keys, and what a ``${VAR}`` expands to, are the loader's.
Run ``python -m config.reference schema > config/pipeline.schema.json`` after a change of the models.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from config.deprecated import DEPRECATED
from config.duration import format_duration
from config.fields import Kind
from config.keys import KeyInfo, blocks, describe_keys
from config.services import AttributeToAdd, CreateGroup, EnrichmentRule

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
    root["$defs"] = {"enrichmentRule": _rule()}
    return root


def _place(root: dict[str, Any], path: str) -> dict[str, Any]:
    here = root
    for name in path.split("."):
        here = here["properties"].setdefault(name, {})
    return here


def _key(info: KeyInfo) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": info.description} | _shape(info)
    if info.default is not None and info.default != ():
        schema["default"] = _plain(info.default)
    return schema


def _shape(info: KeyInfo) -> dict[str, Any]:
    match info.kind:
        case Kind.INTEGER:
            return {"anyOf": [{"type": "integer"} | _range(info), _VARIABLE, {"type": "null"}]}
        case Kind.BOOLEAN:
            return {"anyOf": [{"type": "boolean"}, _VARIABLE, {"type": "null"}]}
        case Kind.CHOICE:
            return {"anyOf": [{"enum": list(info.choices)}, _VARIABLE, {"type": "null"}]}
        case Kind.DURATION:
            lowest = f" At least {format_duration(_LOWEST)}" if info.minimum == _LOWEST else ""
            duration = {"type": "string", "pattern": _DURATION_PATTERN, "examples": ["PT30M", "PT5S", "1h30m"]}
            zero = [{"const": 0}, {"const": "0"}] if "0 selects" in info.description else []
            described = {"description": f"{info.description}.{lowest}"} if lowest else {}
            return described | {"anyOf": [duration, *zero, _VARIABLE, {"type": "null"}]}
        case Kind.LIST:
            items: dict[str, Any] = {"type": "string"}
            if info.choices:
                items = {"anyOf": [{"enum": list(info.choices)}, _VARIABLE]}
            return {"anyOf": [{"type": "array", "items": items}, _VARIABLE, {"type": "null"}]}
        case Kind.RULES:
            return {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/enrichmentRule"}}, {"type": "null"}]}
        case _:
            # Numbers are taken as they are written: a project may be called 0815.
            return {"type": ["string", "number", "null"]}


def _range(info: KeyInfo) -> dict[str, Any]:
    bounds = {"minimum": info.minimum, "maximum": info.maximum}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int) else str(value)


def _rule() -> dict[str, Any]:
    def describe(model: Any, name: str) -> str:
        return str(model.model_fields[name].description)

    def text(model: Any, name: str) -> dict[str, Any]:
        return {"type": "string", "description": describe(model, name)}

    attribute = {
        "type": "object",
        "additionalProperties": False,
        "required": ["attribute_ref"],
        "properties": {
            "attribute_ref": text(AttributeToAdd, "attribute_ref"),
            "must_have": {"type": "boolean", "description": describe(AttributeToAdd, "must_have")},
            "linked_groups": {
                "type": "array",
                "items": {"type": "string"},
                "description": describe(AttributeToAdd, "linked_groups"),
            },
        },
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["group_reference"],
        "properties": {
            "group_reference": text(EnrichmentRule, "group_reference"),
            "create_if_not_exists": {
                "type": "object",
                "additionalProperties": False,
                "required": ["group_name"],
                "properties": {"group_name": text(CreateGroup, "group_name")},
                "description": describe(EnrichmentRule, "create_if_not_exists"),
            },
            "attributes_to_add": {
                "type": "array",
                "items": attribute,
                "description": describe(EnrichmentRule, "attributes_to_add"),
            },
        },
    }


def render_schema() -> str:
    """The schema as it is checked in."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
