"""Read and check the attribute groups of a CRTDL, the query of an extraction (docs/services.md).

The server checks the cohort.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from tasks.shared.errors import InputError
from tasks.shared.files.named_file import JsonFile, strict_json

KEYS = ("cohortDefinition", "dataExtraction")
"""The keys that make a JSON object a CRTDL."""

_FILE = JsonFile("crtdl", "the CRTDL")


@dataclass(frozen=True)
class Attribute:
    """One element that a group asks for."""

    ref: str
    must_have: bool = False


@dataclass(frozen=True)
class AttributeGroup:
    """One attribute group; ``reference`` is the canonical URL of its profile."""

    id: str
    name: str | None
    reference: str
    attributes: tuple[Attribute, ...]

    @property
    def resource_type(self) -> str:
        """Return the resource type in the id of the first attribute; empty without attributes."""
        return type_of(self.attributes[0].ref) if self.attributes else ""


def type_of(attribute_ref: str) -> str:
    """Return the resource type of an element id such as ``Observation.value[x]:valueQuantity.code``."""
    return re.split(r"[.:]", attribute_ref, maxsplit=1)[0]


Crtdl = tuple[AttributeGroup, ...]
"""The attribute groups of a CRTDL."""


def read_content(path: Path) -> bytes:
    """Return the bytes of the file. Raises ``InputError`` (``crtdl-unreadable``)."""
    return _FILE.read(path)


def parse_document(content: bytes, path: Path) -> Any:
    """Return the JSON document in ``content``; errors name ``path``. Raises ``InputError`` (``crtdl-not-json``)."""
    return _FILE.parse(content, path, strict_json)


def document_findings(document: Any, path: Path) -> list[InputError]:
    """Return all errors of a document; they name ``path``."""
    return _read(document, path)[1]


def crtdl_in(content: bytes, path: Path) -> Crtdl:
    """Return the groups of the CRTDL in ``content``; errors name ``path``. Raises the first error as ``InputError``."""
    groups, findings = _read(parse_document(content, path), path)
    for finding in findings:
        raise finding
    return groups


def _read(document: Any, path: Path) -> tuple[Crtdl, list[InputError]]:
    """Return the groups of a document, or none and all its errors."""
    if (no_crtdl := _no_crtdl(document, path)) is not None:
        return (), [no_crtdl]
    place, findings = "dataExtraction.attributeGroups", list[InputError]()
    listed = document["dataExtraction"].get("attributeGroups") if isinstance(document["dataExtraction"], dict) else None
    if not isinstance(listed, list) or not listed:
        return (), [_finding("crtdl-schema", "must be a list with at least one group", path, place)]
    groups: list[AttributeGroup] = []
    ids: dict[str, str] = {}
    for number, entry in enumerate(listed):
        where = f"{place}[{number}]"
        wrong = list(_wrong_with(entry, where))
        findings += [_finding("crtdl-schema", message, path, at) for at, message in wrong]
        if isinstance(entry, dict) and _is_text(name := entry.get("id")) and ids.setdefault(name, where) != where:
            message = f"the group id {name!r} is already used by {ids[name]}"
            hint = "give every group a different id"
            findings.append(_finding("crtdl-duplicate-group", message, path, f"{where}.id", hint))
        if not wrong:
            groups.append(_group(entry))
    return (tuple(groups), []) if not findings else ((), findings)


def _wrong_with(group: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield (key path, message) of each error of a group."""
    if not isinstance(group, dict):
        yield place, "must be an object"
        return
    for key in ("id", "groupReference"):
        if not _is_text(group.get(key)):
            yield f"{place}.{key}", "must be text that is not empty"
    if not isinstance(group.get("name"), str | None):
        yield f"{place}.name", "must be text"
    attributes = group.get("attributes")
    if not isinstance(attributes, list):
        yield f"{place}.attributes", "must be a list"
        return
    for number, attribute in enumerate(attributes):
        at = f"{place}.attributes[{number}]"
        if not isinstance(attribute, dict) or not _is_text(attribute.get("attributeRef")):
            yield f"{at}.attributeRef", "must be text that is not empty"


def _group(entry: dict[str, Any]) -> AttributeGroup:
    attributes = tuple(Attribute(one["attributeRef"], one.get("mustHave") is True) for one in entry["attributes"])
    return AttributeGroup(entry["id"], entry.get("name"), entry["groupReference"], attributes)


def _no_crtdl(document: Any, path: Path) -> InputError | None:
    """Return the error if a document is not a CRTDL."""
    if not isinstance(document, dict):
        found = "list" if isinstance(document, list) else "single value"
        return InputError("crtdl-keys", f"a CRTDL is a JSON object, this is a {found}", context=str(path))
    missing = [key for key in KEYS if key not in document]
    if not missing:
        return None
    hint = f"a CRTDL is a JSON object with {' and '.join(KEYS)}"
    if "inclusionCriteria" in document:
        hint = "this looks like a bare CCDL: put it under cohortDefinition, and what to extract under dataExtraction"
    return InputError("crtdl-keys", f"the key {' and '.join(missing)} is missing", context=str(path), hint=hint)


def _finding(reference: str, message: str, path: Path, place: str, hint: str | None = None) -> InputError:
    return InputError(reference, message, context=f"{path} {place}", hint=hint)


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())
