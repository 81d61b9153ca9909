"""Read the query and the patients that a person gives, and decide whether another job has the same query.

``--patients FILE`` gives the patients instead of the CRTDL's cohort (document 2, ``$extract-data``).

The manifest's job extension holds the whole state of the job (document 2), and servers write into its ``parameters``
what they were asked: the patients, and the CRTDL, as it came or with paths and a few attributes of the server's own
(TORCH). The answer is no only where that is beyond doubt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tasks.extractor.task import object_of, parse_json
from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import parse_document, read_content
from tasks.shared.fhir.crtdl_model import Attribute, AttributeGroup, type_of

_PATIENTS = ("patient", "paramBatch")
"""What the list of patients is called, by server; it is empty when the cohort of the CRTDL decides."""

_ADDED = frozenset({"id", "meta.profile", "patient", "subject"})
"""Attributes that a server adds to every group, or widens where they are there already."""

_PATH = "fhirPath"
"""What a server that adds attributes writes into each of them."""

_PATIENT_ID = re.compile(r"[A-Za-z0-9.-]{1,64}\Z", re.ASCII)
_PREFIX = "Patient/"

_groups = TypeAdapter(tuple[AttributeGroup, ...], config=ConfigDict(defer_build=True))


def read_query(path: Path) -> bytes:
    """Return the content of a file with a CRTDL or a bare cohort definition (CCDL); the server checks its criteria.

    Raises ``InputError``: ``crtdl-unreadable``, ``crtdl-not-json``, ``crtdl-keys``.
    """
    content = read_content(path)
    document = parse_document(content, path)
    if not isinstance(document, dict) or not {"cohortDefinition", "inclusionCriteria"} & document.keys():
        raise InputError(
            "crtdl-keys", "neither a CRTDL (cohortDefinition) nor a CCDL (inclusionCriteria)", context=str(path),
            hint="give the query itself, not a FHIR resource that wraps it",
        )  # fmt: skip
    return content


def read_patients(path: Path) -> tuple[str, ...]:
    """Return the ids in a file, one per line, without repetition; ``Patient/`` and blank lines are ignored.

    Raises ``InputError``: ``patients-unreadable``, ``patients-invalid`` (names the lines, never an id),
    ``patients-empty``.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(
            "patients-unreadable",
            f"the file of patient ids cannot be read: {error.strerror or type(error).__name__}",
            context=str(path),
        ) from None
    except UnicodeDecodeError:
        message = "the file of patient ids is not UTF-8"
        raise InputError("patients-unreadable", message, context=str(path), hint="save it as UTF-8") from None
    ids: dict[str, None] = {}
    wrong: list[int] = []
    for number, line in enumerate(text.split("\n"), start=1):
        entry = line.strip().removeprefix(_PREFIX)
        if not entry:
            continue
        if _PATIENT_ID.match(entry):
            ids[entry] = None
        else:
            wrong.append(number)
    if wrong:
        shown = ", ".join(map(str, wrong[:10])) + (", …" if len(wrong) > 10 else "")
        raise InputError(
            "patients-invalid",
            f"{len(wrong)} lines are not FHIR ids: {shown}",
            context=f"{path}:{wrong[0]}",
            hint="one id a line: letters, digits, - and ., at most 64; ids of resources, not medical record numbers",
        )
    if not ids:
        raise InputError("patients-empty", "the file of patient ids holds none", context=str(path))
    return tuple(ids)


def same_query(job: Any, crtdl: bytes, patients: Sequence[str]) -> bool | None:
    """Compare the ``valueObject`` of a job extension with what is submitted; ``None`` when it does not tell."""
    parameters = object_of(object_of(job).get("parameters"))
    theirs, ours = _pruned(object_of(parameters.get("crtdl"))), _pruned(parse_json(crtdl))
    listed = next((parameters[key] for key in _PATIENTS if key in parameters), None)
    if not isinstance(listed, list) or not theirs or not isinstance(ours, dict):
        return None
    if {str(patient) for patient in listed} != set(patients):
        return False
    if theirs == ours:
        return True
    if "cohortDefinition" not in theirs or theirs["cohortDefinition"] != ours.get("cohortDefinition"):
        return False if "cohortDefinition" in theirs else None
    try:
        asked, wanted = ({group.id: group for group in _groups.validate_python(_listed(one))} for one in (theirs, ours))
    except ValidationError:
        return None
    if asked.keys() != wanted.keys():
        return False
    annotated = any(_PATH in attribute for group in _listed(theirs) for attribute in group["attributes"])
    return True if annotated and all(_asks_like(group, asked[name]) for name, group in wanted.items()) else None


def _listed(document: dict[str, Any]) -> Any:
    return object_of(document.get("dataExtraction")).get("attributeGroups")


def _asks_like(mine: AttributeGroup, other: AttributeGroup) -> bool:
    attributes, others = ({one.ref: one for one in group.attributes} for group in (mine, other))
    return (
        mine.reference == other.reference
        and bool(mine.reference_only) == bool(other.reference_only)
        and _filters(mine) == _filters(other)
        and all(ref in others and _widens(attribute, others[ref]) for ref, attribute in attributes.items())
        and all(_is_added(ref) for ref in others.keys() - attributes.keys())
    )


def _widens(mine: Attribute, other: Attribute) -> bool:
    links, others = set(mine.linked_groups), set(other.linked_groups)
    return links <= others if _is_added(mine.ref) else (mine.must_have, links) == (other.must_have, others)


def _is_added(ref: str) -> bool:
    return ref.removeprefix(type_of(ref) + ".") in _ADDED


def _filters(group: AttributeGroup) -> set[tuple[object, ...]]:
    return {
        (one.type, one.name, frozenset((code.system, code.code) for code in one.codes or ()), one.start, one.end)
        for one in group.filter or ()
    }


def _pruned(value: Any) -> Any:
    """Return a JSON value without nulls, which some servers write and others leave out."""
    if isinstance(value, dict):
        return {key: _pruned(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_pruned(inner) for inner in value]
    return value
