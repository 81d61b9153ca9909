"""Read a query and refuse parts that the sandbox cannot support (document 3 §3).

Without profiles, the sandbox identifies an element by its path only: it supports type slices of choice elements
(``value[x]:valueQuantity``) and refuses other slices. Without a terminology server, a code matches only if system and
code are equal; it does not include narrower codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel

from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.extraction.dates import DayRange, days_of
from deployments.sandbox.extraction.parameters import SearchElements, search_elements
from deployments.sandbox.extraction.query_model import (
    Attribute,
    AttributeFilter,
    AttributeGroup,
    CohortCriterion,
    CohortDefinition,
    CrtdlDocument,
    QueryCoding,
    model_findings,
)
from deployments.sandbox.extraction.tree import CHOICES
from deployments.sandbox.extraction.types import (
    AGE,
    ATTRIBUTES,
    CONTEXT_SYSTEM,
    CONTEXTS,
    GENDER,
    PATIENT,
    UNITS_OF_AGE,
    ElementPath,
    is_patients,
)
from tasks.shared.fhir.crtdl_model import type_of

BASE_PROFILE = "http://hl7.org/fhir/StructureDefinition/"
MAX_DEPTH = 10
"""Maximum depth of criteria that refer to criteria."""
ONE_LINE = 120
"""Maximum length of a quoted piece of a query."""
_STEP = re.compile(r"[A-Za-z][A-Za-z0-9]*(\[x\])?(:[^.:]+)?")
_HARMLESS = frozenset({"display", "name", "id", "comment", "version"})
"""Keys that do not narrow a query."""

Model = TypeVar("Model", bound=BaseModel)
Code = tuple[str, str]
"""System and code."""


class QueryError(Exception):
    """A CRTDL or CCDL that the sandbox cannot support; ``findings`` give each location and reason."""

    def __init__(self, findings: Iterable[str]) -> None:
        self.findings = tuple(findings)
        super().__init__(f"{len(self.findings)} findings")


@dataclass(frozen=True)
class TokenFilter:
    """A search parameter's value must have one of the codes."""

    looks: SearchElements
    codes: frozenset[Code]


@dataclass(frozen=True)
class DateFilter:
    """The days of a search parameter's value must overlap these days."""

    looks: SearchElements
    days: DayRange


@dataclass(frozen=True)
class RequestedElement:
    """An element to extract; ``linked`` are the ids of the groups that its references can lead to."""

    ref: str
    path: ElementPath
    must_have: bool
    linked: tuple[str, ...]


@dataclass(frozen=True)
class ExtractionGroup:
    """An attribute group: conditions for resources, and the elements to extract."""

    id: str
    label: str
    """Name in reports: the group's name, or its id if it has no name or shares it with another group."""
    type: str
    profile: str
    """Profile without a version."""
    attributes: tuple[RequestedElement, ...]
    reference_only: bool = False
    tokens: tuple[TokenFilter, ...] = ()
    date: DateFilter | None = None

    @property
    def takes_all(self) -> bool:
        """True if the profile is the base profile of the type, to which every resource conforms."""
        return self.profile == BASE_PROFILE + self.type

    @property
    def of_patients(self) -> bool:
        """True if the group's resources belong to patients."""
        return is_patients(self.type)

    @property
    def must_have(self) -> bool:
        """True if any attribute is required (``mustHave``)."""
        return any(attribute.must_have for attribute in self.attributes)


@dataclass(frozen=True)
class ExtractionQuery:
    """A CRTDL that the sandbox supports."""

    cohort: CohortDefinition
    groups: tuple[ExtractionGroup, ...]
    by_id: dict[str, ExtractionGroup]

    @property
    def needs_consent(self) -> bool:
        """True if the extraction needs consent: an Einwilligung criterion is among the inclusion criteria."""
        rows = self.cohort.inclusion_criteria
        return any(CONTEXTS[criterion.context.code].type == "Consent" for row in rows for criterion in row)


def read_query(body: bytes) -> ExtractionQuery:
    """Read a CRTDL. Raises ``QueryError`` with all malformed or unsupported parts."""
    document = _document(body)
    query = _read(CrtdlDocument, document, "")
    checks = _Checks()
    checks.cohort(query.cohort_definition, document["cohortDefinition"], "cohortDefinition")
    groups = checks.groups(query.data_extraction.attribute_groups, document["dataExtraction"]["attributeGroups"])
    checks.finish()
    return ExtractionQuery(query.cohort_definition, groups, {group.id: group for group in groups})


def read_cohort(body: bytes) -> CohortDefinition:
    """Read the cohort of a CRTDL, or a bare CCDL (document 2, ``$evaluate-cohort``). Raises ``QueryError``."""
    document = _document(body)
    if "cohortDefinition" in document:
        document, place = document["cohortDefinition"], "cohortDefinition"
    elif "inclusionCriteria" in document:
        place = ""
    else:
        raise QueryError(["neither a CRTDL (cohortDefinition) nor a CCDL (inclusionCriteria)"])
    cohort = _read(CohortDefinition, document, place)
    checks = _Checks()
    checks.cohort(cohort, document, place)
    checks.finish()
    return cohort


def codes_of(codings: Iterable[QueryCoding]) -> tuple[Code, ...]:
    """Return system and code of each, once."""
    return tuple(dict.fromkeys((coding.system, coding.code) for coding in codings))


def days_between(first: str | None, last: str | None) -> DayRange:
    """Return the days from one date to another, both inclusive."""
    return days_of({"start": first, "end": last}) or DayRange()


def quoted(text: object) -> str:
    """Return a piece of the query on one line, cut where it is long."""
    line = " ".join(str(text).split())
    return line if len(line) <= ONE_LINE else line[: ONE_LINE - 1] + "…"


def _document(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise QueryError(["the query is not a JSON object"]) from None


def _read(model: type[Model], document: Any, place: str) -> Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        found = [(_join(place, at), message) for _, message, at in model_findings(error)]
        raise QueryError(f"{at}: {message}" for at, message in found) from None


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place and key else place or key


class _Checks:
    """Collects the unsupported parts of a well-formed query, each with its location."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, place: str, text: str) -> None:
        self._found.append(f"{place}: {text}")

    def finish(self) -> None:
        """Raise ``QueryError`` if anything was found."""
        if self._found:
            raise QueryError(self._found)

    def cohort(self, cohort: CohortDefinition, document: dict[str, Any], place: str) -> None:
        self._check_keys(cohort, document, place)
        for key, rows in (
            ("inclusionCriteria", cohort.inclusion_criteria),
            ("exclusionCriteria", cohort.exclusion_criteria or ()),
        ):
            for number, row in enumerate(rows):
                for at, criterion in enumerate(row):
                    self._criterion(criterion, _join(place, f"{key}[{number}][{at}]"), 0)

    def _check_keys(self, part: Any, document: Any, place: str) -> None:
        """Refuse unknown keys that could narrow the query."""
        if isinstance(part, tuple):
            for number, (one, item) in enumerate(zip(part, document, strict=True)):
                self._check_keys(one, item, f"{place}[{number}]")
        elif isinstance(part, BaseModel):
            fields = {to_camel(name): name for name in type(part).model_fields}
            for key, value in document.items():
                if key in fields:
                    self._check_keys(getattr(part, fields[key]), value, _join(place, key))
                elif key not in _HARMLESS:
                    self.add(_join(place, quoted(key)), "the sandbox does not support this key")

    def _criterion(self, criterion: CohortCriterion, place: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.add(place, f"criteria are nested more than {MAX_DEPTH} levels deep")
            return
        for number, coding in enumerate(criterion.term_codes):
            if not (coding.display or "").strip():
                self.add(f"{place}.termCodes[{number}].display", "must be a text")
            if criterion.context.code == "Einwilligung" and coding.system.startswith("fdpg.consent"):
                text = "combined consent codes are not supported; use the provisions' codes"
                self.add(f"{place}.termCodes", text)
        if criterion.context.system != CONTEXT_SYSTEM:
            self.add(f"{place}.context.system", f"must be {CONTEXT_SYSTEM}")
        context = CONTEXTS.get(criterion.context.code)
        if context is None:
            known = ", ".join(CONTEXTS)
            self.add(f"{place}.context", f"{quoted(criterion.context.code)} is not supported; known are {known}")
        elif context.type == PATIENT:
            self._person(criterion, place)
        else:
            if criterion.value_filter is not None and not context.has_value:
                self.add(f"{place}.valueFilter", f"{context.name} has no value to filter by")
            for number, condition in enumerate(criterion.attribute_filters or ()):
                self._attribute(condition, context.type, f"{place}.attributeFilters[{number}]", depth)

    def _person(self, criterion: CohortCriterion, place: str) -> None:
        codes, value = codes_of(criterion.term_codes), criterion.value_filter
        for key, given in (
            ("attributeFilters", criterion.attribute_filters),
            ("timeRestriction", criterion.time_restriction),
        ):
            if given:
                self.add(f"{place}.{key}", "is not supported for the context Patient")
        if codes not in ((GENDER,), (AGE,)):
            text = "the context Patient supports one code: SNOMED CT 263495000 or 424144002"
            self.add(f"{place}.termCodes", text)
        elif value is not None and (value.type == "concept") != (codes == (GENDER,)):
            wanted = "a concept filter" if codes == (GENDER,) else "a quantity filter"
            self.add(f"{place}.valueFilter", f"must be {wanted}")
        elif value is not None and codes == (AGE,) and (value.unit is None or value.unit.code not in UNITS_OF_AGE):
            self.add(f"{place}.valueFilter.unit", f"an age must have one of the units {', '.join(UNITS_OF_AGE)}")

    def _attribute(self, condition: AttributeFilter, kind: str, place: str, depth: int) -> None:
        code, criteria = condition.attribute_code.code, condition.criteria
        known = ATTRIBUTES.get(kind, {})
        attribute = known.get(code)
        if attribute is None:
            text = f"{quoted(code)} is not supported for {kind}; known are {', '.join(sorted(known))}"
            self.add(f"{place}.attributeCode", text)
        elif attribute.is_reference != (condition.type == "reference"):
            wanted = "a reference: a filter of type reference is expected" if attribute.is_reference else "no reference"
            self.add(place, f"{attribute.name} is {wanted}")
        for number, criterion in enumerate(criteria or ()):
            if criterion.context.code == PATIENT:
                self.add(f"{place}.criteria", "the context Patient cannot be referred to")
            self._criterion(criterion, f"{place}.criteria[{number}]", depth + 1)

    def groups(
        self, groups: tuple[AttributeGroup, ...], documents: list[dict[str, Any]]
    ) -> tuple[ExtractionGroup, ...]:
        place = "dataExtraction.attributeGroups"
        names = [group.name for group in groups]
        ids = [group.id for group in groups]
        read: list[ExtractionGroup] = []
        for number, (group, document) in enumerate(zip(groups, documents, strict=True)):
            where = f"{place}[{number}]"
            if ids.index(group.id) != number:
                self.add(f"{where}.id", f"{quoted(group.id)} is used twice")
            self._check_keys(group.filter, document.get("filter"), f"{where}.filter")
            label = group.name if group.name and names.count(group.name) == 1 else group.id
            read.append(self._group(group, label, where))
            for attribute in group.attributes:
                for linked in attribute.linked_groups:
                    if linked not in ids:
                        text = f"{quoted(attribute.ref)} links to the group {quoted(linked)}, which does not exist"
                        self.add(where, text)
        patients = [group for group in read if group.type == PATIENT]
        if len(patients) != 1:
            self.add(place, f"exactly one Patient group is required, {len(patients)} found")
        if any(group.reference_only for group in patients):
            self.add(place, "the Patient group cannot be includeReferenceOnly")
        return tuple(read)

    def _group(self, group: AttributeGroup, label: str, place: str) -> ExtractionGroup:
        kinds = sorted({type_of(attribute.ref) for attribute in group.attributes}) or [group.resource_type]
        kind, profile = kinds[0], group.reference.partition("|")[0]
        if not group.attributes and profile.removeprefix(BASE_PROFILE) not in RESOURCE_TYPES:
            why = "the sandbox has no profiles and supports a group without attributes for a base profile only"
            self.add(f"{place}.attributes", f"at least one entry is required to determine the group's type: {why}")
        if len(kinds) > 1:
            self.add(f"{place}.attributes", f"are of several types: {', '.join(kinds)}")
        elif profile.startswith(BASE_PROFILE) and profile.removeprefix(BASE_PROFILE) in RESOURCE_TYPES - {kind}:
            self.add(f"{place}.groupReference", f"is the profile of another type than the attributes' {kind}")
        tokens, dates = self._filters(group, kind, place)
        return ExtractionGroup(
            id=group.id,
            label=label,
            type=kind,
            profile=profile,
            attributes=tuple(
                self._element(attribute, f"{place}.attributes[{number}].attributeRef")
                for number, attribute in enumerate(group.attributes)
            ),
            reference_only=bool(group.reference_only),
            tokens=() if kind == PATIENT else tuple(tokens),
            date=dates[0] if dates and kind != PATIENT else None,
        )

    def _element(self, attribute: Attribute, place: str) -> RequestedElement:
        kind, *steps = attribute.ref.split(".")
        path: list[str] = []
        if kind not in RESOURCE_TYPES or not steps:
            self.add(place, f"{quoted(attribute.ref)} is not an element of a resource type")
        elif not all(_STEP.fullmatch(step) for step in steps):
            self.add(place, f"{quoted(attribute.ref)} is not an element path")
        else:
            for step in steps:
                name, _, slice_name = step.partition(":")
                if slice_name and not (
                    name.endswith("[x]") and slice_name in {name[:-3] + choice for choice in CHOICES}
                ):
                    text = "is a slice, which the sandbox cannot look up without profiles"
                    self.add(place, f"{quoted(attribute.ref)} {text}")
                path.append(slice_name or name)
        return RequestedElement(attribute.ref, tuple(path), attribute.must_have, attribute.linked_groups)

    def _filters(self, group: AttributeGroup, kind: str, place: str) -> tuple[list[TokenFilter], list[DateFilter]]:
        tokens: list[TokenFilter] = []
        dates: list[DateFilter] = []
        for number, one in enumerate(group.filter or ()):
            looks = search_elements(kind, one.type, one.name)
            if not looks and kind != PATIENT and kind in RESOURCE_TYPES:
                text = f"R4 has no {one.type} search parameter {quoted(one.name)} for {kind}"
                self.add(f"{place}.filter[{number}].name", text)
            if one.type == "token":
                tokens.append(TokenFilter(looks, frozenset(codes_of(one.codes))))
            else:
                dates.append(DateFilter(looks, days_between(one.start, one.end)))
        if len(dates) > 1:
            self.add(f"{place}.filter", "at most one date filter is allowed")
        return tokens, dates
