"""Whether a job on the server was asked what this one asks.

The manifest's job extension holds the whole state of the job (document 2), and servers write into its ``parameters``
what they were asked: the patients, and the CRTDL, as it came or with paths and a few attributes of the server's own
(TORCH). The answer is no only where that is beyond doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tasks.extractor.json_values import object_of, parse_json
from tasks.shared.fhir.crtdl_model import type_of

_PATIENTS = ("patient", "paramBatch")
"""What the list of patients is called, by server; it is empty when the cohort of the CRTDL decides."""

_ADDED = frozenset({"id", "meta.profile", "patient", "subject"})
"""Attributes that a server adds to every group, or widens where they are there already."""

_PATH = "fhirPath"
"""What a server that adds attributes writes into each of them."""


class _Attribute(msgspec.Struct, rename="camel"):
    attribute_ref: str
    must_have: bool = False
    linked_groups: list[str] | None = None

    @property
    def added(self) -> bool:
        return self.attribute_ref.removeprefix(type_of(self.attribute_ref) + ".") in _ADDED

    def asks_like(self, other: _Attribute) -> bool:
        links, others = set(self.linked_groups or ()), set(other.linked_groups or ())
        if self.added:
            return links <= others
        return self.must_have == other.must_have and links == others


class _Code(msgspec.Struct, frozen=True):
    system: str
    code: str


class _Filter(msgspec.Struct):
    type: str
    name: str
    codes: list[_Code] | None = None
    start: str | None = None
    end: str | None = None

    def key(self) -> tuple[Any, ...]:
        return (self.type, self.name, frozenset(self.codes or ()), self.start, self.end)


class _Group(msgspec.Struct, rename="camel"):
    id: str
    group_reference: str
    attributes: list[_Attribute]
    filter: list[_Filter] | None = None
    include_reference_only: bool | None = None

    def asks_like(self, other: _Group) -> bool:
        mine, others = ({a.attribute_ref: a for a in group.attributes} for group in (self, other))
        return (
            self.group_reference == other.group_reference
            and bool(self.include_reference_only) == bool(other.include_reference_only)
            and {f.key() for f in self.filter or ()} == {f.key() for f in other.filter or ()}
            and all(ref in others and attribute.asks_like(others[ref]) for ref, attribute in mine.items())
            and all(attribute.added for ref, attribute in others.items() if ref not in mine)
        )


class _Extraction(msgspec.Struct, rename="camel"):
    attribute_groups: list[_Group]


class _Query(msgspec.Struct, rename="camel"):
    data_extraction: _Extraction

    def groups(self) -> dict[str, _Group]:
        return {group.id: group for group in self.data_extraction.attribute_groups}


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
        asked, wanted = (msgspec.convert(document, _Query).groups() for document in (theirs, ours))
    except msgspec.ValidationError:
        return None
    if asked.keys() != wanted.keys():
        return False
    annotated = any(_PATH in attribute for attribute in _attributes(theirs))
    return True if annotated and all(group.asks_like(asked[name]) for name, group in wanted.items()) else None


def _attributes(document: dict[str, Any]) -> list[dict[str, Any]]:
    groups = document["dataExtraction"]["attributeGroups"]
    return [attribute for group in groups for attribute in group["attributes"]]


def _pruned(value: Any) -> Any:
    """A JSON value without its nulls: some servers write them, some leave them out."""
    if isinstance(value, dict):
        return {key: _pruned(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_pruned(inner) for inner in value]
    return value
