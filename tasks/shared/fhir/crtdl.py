"""The CRTDL, the query of an extraction: its structure, and what its parts say about each other (document 3 §3).

``document_findings`` are everything that is wrong, before a job exists; ``load_crtdl`` reads the attribute groups for
the steps that need them. ``doubts`` are about what has a right form and a deployed server refuses, or answers with less
than was meant: it is submitted, because only the server knows. What a document may hold is said by the models in
``crtdl_model.py``; both families of versions are accepted: the number and the URL of a schema.

References: ``crtdl-unreadable``, ``crtdl-not-json``, ``crtdl-parameters``, ``crtdl-keys``, ``crtdl-schema``,
``crtdl-version``, ``crtdl-duplicate-group``, ``crtdl-patient-group``, ``crtdl-date-order``; as warnings
``crtdl-no-attributes``, ``crtdl-linked-group``, ``crtdl-no-display``, ``crtdl-search-parameter``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from pydantic import ValidationError

from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl_model import SCHEMA_REFERENCE, AttributeGroup, CrtdlDocument, model_findings
from tasks.shared.fhir.r4 import has_parameter, is_type
from tasks.shared.files.named_file import JsonFile, strict_json

KEYS = ("cohortDefinition", "dataExtraction")
"""What makes a JSON object a CRTDL."""

PATIENT = "Patient"
_REMEMBERED = 4 * 1024 * 1024
"""Bytes of a document that is kept in memory, parsed."""

_FILE = JsonFile("crtdl-unreadable", "crtdl-not-json", "the CRTDL", "the input of a run is a directory")


@dataclass(frozen=True)
class Crtdl:
    """Parts of a CRTDL that the steps read."""

    groups: tuple[AttributeGroup, ...]


def read_content(path: Path) -> bytes:
    """Return the bytes of the file. Raises ``InputError`` (``crtdl-unreadable``)."""
    return _FILE.read(path)


def parse_document(content: bytes, path: Path) -> Any:
    """Return the JSON document in ``content``; ``path`` stands in errors. Raises ``InputError``
    (``crtdl-not-json``)."""
    return _FILE.parse(content, path, _parsed if len(content) <= _REMEMBERED else strict_json)


@functools.lru_cache(maxsize=2)
def _parsed(content: bytes) -> Any:
    """Parse a document, with the last two cached: a command reads the given and the enriched one several times."""
    return strict_json(content)


def document_findings(document: Any, path: Path, *, whole: bool = True) -> list[InputError]:
    """Return all errors of a document; ``path`` is named in them.

    Without ``whole`` only its structure is checked, not that it has exactly one Patient group: preprocessing may still
    add it.
    """
    return _read(document, path, whole=whole)[1]


def doubts(document: Any) -> Iterator[str]:
    """Yield a sentence for each part that a server may refuse or ignore; nothing if there are findings.

    It is said by key path, with ids of groups and names of search parameters.
    """
    groups, findings = _read(document, Path(), whole=False)
    if findings:
        return
    ids = {group.id for group in groups}
    for number, group in enumerate(groups):
        place = f"dataExtraction.attributeGroups[{number}]"
        if not group.attributes:
            what = f"the group {group.id!r} has no attributes: only ids, profile and references are extracted"
            yield _doubt("crtdl-no-attributes", what, f"{place}.attributes")
        for at, attribute in enumerate(group.attributes):
            for missing in (link for link in attribute.linked_groups if link not in ids):
                what = f"the linked group {missing!r} does not exist; a server may refuse the query"
                yield _doubt("crtdl-linked-group", what, f"{place}.attributes[{at}].linkedGroups")
        kind = group.resource_type
        for at, one in enumerate(group.filter or ()):
            if is_type(kind) and kind != PATIENT and not has_parameter(kind, one.type, one.name):
                what = f"{kind} has no {one.type} search parameter {one.name!r}; a server may refuse the query"
                yield _doubt("crtdl-search-parameter", what, f"{place}.filter[{at}].name")
    for place in _without_display(document["cohortDefinition"], "cohortDefinition"):
        yield _doubt("crtdl-no-display", "a code without display; a server may refuse the query", place)


def _doubt(reference: str, message: str, place: str) -> str:
    return f"{reference}: {place}: {message}"


def _without_display(part: Any, place: str) -> Iterator[str]:
    """Yield the places of ``termCodes`` in a cohort query with a code without ``display``."""
    if isinstance(part, list):
        for number, entry in enumerate(part):
            yield from _without_display(entry, f"{place}[{number}]")
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "termCodes" and isinstance(value, list):
                for number, code in enumerate(value):
                    if isinstance(code, dict) and not code.get("display"):
                        yield f"{place}.termCodes[{number}]"
            else:
                yield from _without_display(value, f"{place}.{key}")


def load_crtdl(path: Path) -> Crtdl:
    """Return the groups of a CRTDL. Raises ``InputError``: its first finding."""
    groups, findings = _read(parse_document(read_content(path), path), path)
    for finding in findings:
        raise finding
    return Crtdl(groups)


def _read(document: Any, path: Path, *, whole: bool = True) -> tuple[tuple[AttributeGroup, ...], list[InputError]]:
    """Return the groups of a document, and everything that is wrong with it."""
    if (no_crtdl := _no_crtdl(document, path)) is not None:
        return (), [no_crtdl]
    disagreements = list(_disagreements(document, path))
    try:
        groups = CrtdlDocument.model_validate(document).data_extraction.attribute_groups
    except ValidationError as error:
        wrong = [_finding(reference, message, path, place) for reference, message, place in model_findings(error)]
        return (), [*wrong, *disagreements]
    if whole and not disagreements:
        disagreements += _patient_group_findings(groups, path)
    return groups, disagreements


def _no_crtdl(document: Any, path: Path) -> InputError | None:
    """Return the error if a document is not a CRTDL."""
    if isinstance(document, dict) and document.get("resourceType") == "Parameters":
        return InputError(
            "crtdl-parameters",
            "this is a FHIR Parameters resource that wraps a CRTDL, not the CRTDL itself",
            context=str(path),
            hint="decode the Base64 text in valueBase64Binary of its parameter crtdl, and give that file",
        )
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


def _disagreements(document: dict[str, Any], path: Path) -> Iterator[InputError]:
    """Yield errors between groups or filters, whether or not each is valid by itself."""
    groups = list(_entries(document["dataExtraction"], "attributeGroups", "dataExtraction"))
    ids: dict[str, str] = {}
    for place, group in groups:
        if _is_text(group_id := group.get("id")) and ids.setdefault(group_id, place) != place:
            message = f"the group id {group_id!r} is already used by {ids[group_id]}"
            yield _finding("crtdl-duplicate-group", message, path, f"{place}.id", "give every group a different id")
        if [entry.get("type") for _, entry in _entries(group, "filter", place)].count("date") > 1:
            yield _finding(SCHEMA_REFERENCE, "a group has at most one date filter", path, f"{place}.filter")


def _entries(parent: Any, key: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a list, each with its place; none if there is no such list."""
    entries = parent.get(key) if isinstance(parent, dict) else None
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, dict):
            yield f"{where}.{key}[{number}]", entry


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _patient_group_findings(groups: tuple[AttributeGroup, ...], path: Path) -> Iterator[InputError]:
    patients = [f"[{number}]" for number, group in enumerate(groups) if group.resource_type == PATIENT]
    untold = any(not group.resource_type for group in groups)
    if len(patients) != 1 and not (untold and not patients):  # one that does not tell its type may be it
        found = f"has {len(patients)} ({', '.join(patients)})" if patients else "has none"
        message = f"a CRTDL must have exactly one Patient group, this one {found}"
        hint = "the Patient group is the one whose attributes begin with Patient."
        yield _finding("crtdl-patient-group", message, path, "dataExtraction.attributeGroups", hint)
