"""The CRTDL, the query of an extraction: its structure, and what its parts say about each other (document 3 §3).

``crtdl_findings`` reports everything that is wrong at once, before a job exists; ``load_crtdl`` reads the attribute
groups for the steps that need them. Both families of versions are accepted: the number and the URL of a schema.
Criteria of the cohort definition are checked by ``ccdl.py``. Keys nobody knows are left alone.

References: ``crtdl-unreadable``, ``crtdl-not-json``, ``crtdl-parameters``, ``crtdl-keys``, ``crtdl-schema``,
``crtdl-version``, ``crtdl-duplicate-group``, ``crtdl-linked-group``, ``crtdl-patient-group``, ``crtdl-date-order``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tasks.shared.errors import InputError
from tasks.shared.fhir.ccdl import check_cohort
from tasks.shared.structure import Structure

KEYS = ("cohortDefinition", "dataExtraction")
"""What makes a JSON object a CRTDL."""

PATIENT = "Patient"
LARGEST_FILE = 64 * 1024 * 1024
"""Bytes. Real ones have a few hundred kilobytes; a data file given by mistake must not fill the memory."""

_REMEMBERED = 4 * 1024 * 1024
"""Bytes of a document that is kept in memory, parsed."""

GROUPS = "dataExtraction.attributeGroups"


@dataclass(frozen=True)
class Attribute:
    """One element that a group asks for; ``linked_groups`` are ids of the groups its references may fill."""

    ref: str
    must_have: bool
    linked_groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttributeGroup:
    """One attribute group; ``reference`` is the canonical URL of its profile."""

    id: str
    name: str | None
    reference: str
    attributes: tuple[Attribute, ...]
    reference_only: bool = False

    @property
    def resource_type(self) -> str:
        """The type its attributes belong to: the first part of an element's id."""
        return type_of(self.attributes[0].ref)


@dataclass(frozen=True)
class Crtdl:
    """What the steps read of a CRTDL."""

    groups: tuple[AttributeGroup, ...]
    display: str | None = None


def type_of(attribute_ref: str) -> str:
    """The resource type of an element id such as ``Observation.value[x]:valueQuantity.code``."""
    return re.split(r"[.:]", attribute_ref, maxsplit=1)[0]


def read_document(path: Path) -> Any:
    """The JSON document in ``path``. Raises ``InputError`` (``crtdl-unreadable``, ``crtdl-not-json``)."""
    return parse_document(read_content(path), path)


def read_content(path: Path) -> bytes:
    """The bytes of the file. Raises ``InputError`` (``crtdl-unreadable``)."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(
            "crtdl-unreadable",
            f"the CRTDL cannot be read: {error.strerror or type(error).__name__}",
            context=str(path),
        ) from None
    if len(content) > LARGEST_FILE:
        raise InputError(
            "crtdl-unreadable",
            f"this file is larger than {LARGEST_FILE // 2**20} MiB",
            context=str(path),
            hint="is it a data file? the input of a run is a directory",
        )
    return content


def parse_document(content: bytes, path: Path) -> Any:
    """The JSON document in ``content``; ``path`` stands in errors. Raises ``InputError`` (``crtdl-not-json``)."""

    def refuse(message: str, where: str = "", hint: str | None = None) -> NoReturn:
        raise InputError("crtdl-not-json", message, context=f"{path}{where}", hint=hint) from None

    if content.startswith(b"\xef\xbb\xbf"):
        refuse(
            "the CRTDL begins with a byte order mark, which JSON does not allow", hint="save it as UTF-8 without BOM"
        )
    try:
        return (_parsed if len(content) <= _REMEMBERED else _parsed.__wrapped__)(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        refuse("the CRTDL is not UTF-8", f":{line}", "save it as UTF-8")
    except json.JSONDecodeError as error:
        refuse("the CRTDL is not valid JSON", f":{error.lineno}")
    except (ValueError, RecursionError):
        refuse("the CRTDL is not valid JSON", hint="NaN, Infinity, huge numbers and endless nesting are not allowed")


@functools.lru_cache(maxsize=2)
def _parsed(content: bytes) -> Any:
    """One document stands for what is given and one for what is made of it: a command asks for either several times."""
    return json.loads(content.decode("utf-8"), parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def crtdl_findings(path: Path) -> list[InputError]:
    """Everything that is wrong with the file."""
    try:
        return document_findings(read_document(path), path)
    except InputError as error:
        return [error]


def document_findings(document: Any, path: Path, *, whole: bool = True) -> list[InputError]:
    """Everything that is wrong with a document; ``path`` stands in errors.

    Without ``whole`` only its structure is checked, not that it has exactly one Patient group: preprocessing may still
    add it.
    """
    if (finding := _no_crtdl(document, path)) is not None:
        return [finding]
    structure = Structure(path)
    structure.version(document, "", {"1"}, reference="crtdl-version")
    structure.text(document, "display", "", required=False)
    check_cohort(structure, structure.object(document, "cohortDefinition", ""), "cohortDefinition")
    extraction = structure.object(document, "dataExtraction", "")
    if extraction is not None:
        groups = structure.list(extraction, "attributeGroups", "dataExtraction", at_least=1)
        _check_groups(structure, groups)
        if whole and not structure.findings:
            _check_patient_group(structure, _groups(document))
    return structure.findings


def load_crtdl(path: Path) -> Crtdl:
    """The groups of a CRTDL. Raises ``InputError``: its first finding."""
    document = read_document(path)
    for finding in document_findings(document, path):
        raise finding
    return Crtdl(groups=tuple(_groups(document)), display=document.get("display"))


def _no_crtdl(document: Any, path: Path) -> InputError | None:
    """Why a document is something else than a CRTDL."""
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


def _check_groups(structure: Structure, groups: list[Any]) -> None:
    ids: dict[str, int] = {}
    for number, group in enumerate(groups):
        where = f"{GROUPS}[{number}]"
        if not structure.is_object(group, where):
            continue
        group_id = structure.text(group, "id", where)
        if group_id is not None and ids.setdefault(group_id, number) != number:
            structure.add(
                "crtdl-duplicate-group",
                f"the group id {group_id!r} is used by {GROUPS}[{ids[group_id]}] already",
                f"{where}.id",
                "give every group an id of its own",
            )
        structure.text(group, "name", where, required=False)
        structure.text(group, "groupReference", where)
        structure.boolean(group, "includeReferenceOnly", where, required=False)
        for index, attribute in enumerate(structure.list(group, "attributes", where, at_least=1)):
            place = f"{where}.attributes[{index}]"
            if structure.is_object(attribute, place):
                structure.text(attribute, "attributeRef", place)
                structure.boolean(attribute, "mustHave", place)
        _check_filters(structure, structure.list(group, "filter", where, required=False), f"{where}.filter")
    for place, link in _links(structure, groups):
        if link not in ids:
            structure.add(
                "crtdl-linked-group",
                f"the linked group {link!r} does not exist",
                place,
                "linkedGroups holds ids of groups of this CRTDL",
            )


def _links(structure: Structure, groups: list[Any]) -> Iterator[tuple[str, str]]:
    """Every linked group with its place."""
    for number, group in enumerate(groups):
        attributes = group.get("attributes") if isinstance(group, dict) else None
        for index, attribute in enumerate(attributes if isinstance(attributes, list) else ()):
            place = f"{GROUPS}[{number}].attributes[{index}]"
            if not isinstance(attribute, dict):
                continue
            for position, link in enumerate(structure.list(attribute, "linkedGroups", place, required=False)):
                if structure.is_text(link, f"{place}.linkedGroups[{position}]"):
                    yield f"{place}.linkedGroups[{position}]", link


def _check_filters(structure: Structure, filters: list[Any], where: str) -> None:
    dates = 0
    for number, entry in enumerate(filters):
        place = f"{where}[{number}]"
        if not structure.is_object(entry, place):
            continue
        structure.text(entry, "name", place)
        kind = structure.choice(entry, "type", place, ("token", "date"))
        if kind == "token":
            structure.codings(entry, "codes", place)
        elif kind == "date":
            dates += 1
            structure.period(entry, "start", "end", place)
    if dates > 1:
        structure.add("crtdl-schema", "a group has at most one date filter", where)


def _groups(document: dict[str, Any]) -> Iterator[AttributeGroup]:
    """The groups of a document whose structure is right."""
    for group in document["dataExtraction"]["attributeGroups"]:
        attributes = tuple(
            Attribute(item["attributeRef"], item["mustHave"], tuple(item.get("linkedGroups") or ()))
            for item in group["attributes"]
        )
        yield AttributeGroup(
            id=group["id"],
            name=group.get("name"),
            reference=group["groupReference"],
            attributes=attributes,
            reference_only=bool(group.get("includeReferenceOnly")),
        )


def _check_patient_group(structure: Structure, groups: Iterator[AttributeGroup]) -> None:
    patients = [number for number, group in enumerate(groups) if group.resource_type == PATIENT]
    if len(patients) == 1:
        return
    found = "has none" if not patients else f"has {len(patients)} ({', '.join(f'[{n}]' for n in patients)})"
    structure.add(
        "crtdl-patient-group",
        f"a CRTDL has exactly one Patient group, this one {found}",
        GROUPS,
        "the Patient group is the one whose attributes begin with Patient.",
    )
