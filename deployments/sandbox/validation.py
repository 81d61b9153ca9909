"""The sandbox validation service: the structure of FHIR R4 resources by the published JSON Schema.

``POST /validateResource`` takes a Bundle or a resource and answers 200 with an OperationOutcome, whether the resource
is valid or not. Every answer says what was not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, cast

from jsonschema import Draft6Validator
from jsonschema.exceptions import ValidationError
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT6
from starlette.responses import Response

from deployments.sandbox.r4 import resource_types, schema
from deployments.sandbox.service import (
    Call,
    FhirProblem,
    Json,
    SandboxService,
    json_answer,
    operations,
)

_MESSAGES: Final = "urn:sluice:sandbox:validation"
_NOT_CHECKED: Final = (
    "Not checked: profiles, terminology beyond the required codes of code elements, invariants, that a choice has one"
    " type only, whether references lead anywhere, the XHTML of narratives, duplicate keys."
)
_KINDS: Final = {
    "type": ("Structure_Wrong_Type", "structure", "The value does not have the JSON type of the element."),
    "minItems": ("Structure_Empty", "structure", "An element must have a value or children; omit an empty one."),
    "minProperties": ("Structure_Empty", "structure", "An element must have a value or children; omit an empty one."),
    "pattern": ("Value_Format", "value", "The value does not have the format of its type."),
    "enum": ("Value_Code", "code-invalid", "The code is not in the required list."),
    "unknown": ("Structure_Unknown_Element", "structure", "The element is not defined here."),
    "required": ("Profile_Minimum", "required", "A required element is missing."),
    "resource": ("Structure_Not_A_Resource", "structure", "This is not a FHIR R4 resource."),
}
_REQUIRED: Final = re.compile(r"'(\w+)' is a required property")


def _issue(severity: str, message: str, code: str, text: str, diagnostics: str) -> Json:
    details = {"coding": [{"system": _MESSAGES, "code": message}], "text": text}
    return {"severity": severity, "code": code, "details": details, "diagnostics": diagnostics}


def _finding(kind: str, expression: str, diagnostics: str) -> Json:
    """Return one finding. ``diagnostics`` may quote data, as real validators do; it is never written to a log."""
    return _issue("error", *_KINDS[kind], diagnostics) | {"expression": [expression]}


def findings(resource: Json, place: str | None = None) -> Iterator[Json]:
    """Yield the errors of a resource and of the resources in it. ``place`` is its FHIRPath."""
    kind = resource.get("resourceType")
    if kind not in resource_types():
        yield _finding("resource", place or "Resource", "resourceType is not that of an R4 resource")
        return
    place = f"{place}.ofType({kind})" if place else str(kind)
    for error in _validator(str(kind)).iter_errors(resource):
        yield from _issues(error, place)
    for path, inner in _inner(resource):
        yield from findings(inner, place + path)


@cache
def _registry() -> Registry[Any]:
    read = Resource.from_contents(schema(), default_specification=DRAFT6)
    registry: Registry[Any] = Registry().with_resource("urn:fhir:r4", read)
    return registry


@cache
def _validator(kind: str) -> Draft6Validator:
    # By type: the schema's own choice among all types would be slow, and without locations.
    return Draft6Validator({"$ref": f"urn:fhir:r4#/definitions/{kind}"}, registry=_registry())


def _issues(error: ValidationError, place: str) -> Iterator[Json]:
    where = place + _path(error.absolute_path)
    wanted: Any = error.validator_value
    match error.validator:
        case "additionalProperties":
            instance, definition = cast("Json", error.instance), cast("Json", error.schema)
            for name in instance.keys() - definition["properties"].keys():
                yield _finding("unknown", f"{where}.{name}", f"{name} is unknown")
        case "required":
            found = _REQUIRED.match(error.message)
            name = found[1] if found else ""
            yield _finding("required", f"{where}.{name}", f"{name} is missing")
        case "anyOf" if "required" in wanted[0]:
            names = [each["required"][0] for each in wanted if each["required"][0][0] != "_"]
            yield _finding("required", f"{where}.{names[0]}", f"{' or '.join(names)} is missing")
        case "anyOf":  # null, or a value, whose errors are yielded
            for inner in error.context or ():
                if inner.schema_path[0] == 1:
                    yield from _issues(inner, place)
        case validator:
            yield _finding("enum" if validator == "const" else str(validator), where, error.message)


def _path(steps: Sequence[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _inner(node: Any, path: str = "") -> Iterator[tuple[str, Json]]:
    """Yield the resources directly inside a resource, with their paths."""
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in below:
        where = path + _path([key])
        if isinstance(value, dict) and "resourceType" in value:
            yield where, value
        else:
            yield from _inner(value, where)


def _validate(call: Call) -> Response:
    call.check_json()
    resource = call.document()
    if not isinstance(resource, dict) or not isinstance(resource.get("resourceType"), str):
        raise FhirProblem(400, "structure", "The body is not a resource: it has no resourceType.")
    entries = resource.get("entry")
    call.entry.entries = len(entries) if isinstance(entries, list) else 0
    issues = [*findings(resource)]
    if not issues:
        sentence = "No issues detected during validation."
        issues = [_issue("information", "All_OK", "informational", sentence, sentence)]
    issues.append(_issue("information", "Not_Checked", "informational", _NOT_CHECKED, _NOT_CHECKED))
    return json_answer({"resourceType": "OperationOutcome", "issue": issues})


def validation_service() -> SandboxService:
    """Return the validation service."""
    rest = {"operation": operations("validateResource")}
    return SandboxService("validation", [("POST", "/validateResource", _validate)], rest=rest)
