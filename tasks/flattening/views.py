"""The view of an attribute group: its ViewDefinition, from the CRTDL and the lookup file (docs/steps.md).

The columns are ``id``, the patient, and the attributes of the group in their order, each with the elements below it. An
attribute that is below another one is not repeated. An element that iterates becomes a select clause of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tasks.flattening.lookup import ColumnDefinition, LookupTable, SelectClause
from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import AttributeGroup, Crtdl

_RESOURCE_TYPE: Final = "https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition"

_LONGEST_NAME: Final = 255  # of a computable name in FHIR
_SUBJECT: Final = """
Account AdverseEvent Basic CarePlan CareTeam ChargeItem ClinicalImpression Communication CommunicationRequest
Composition Condition DeviceRequest DeviceUseStatement DiagnosticReport DocumentManifest DocumentReference Encounter
Flag Goal ImagingStudy Invoice List MeasureReport Media MedicationAdministration MedicationDispense MedicationRequest
MedicationStatement Observation Procedure QuestionnaireResponse RequestGroup RiskAssessment ServiceRequest Specimen
"""
_PATIENT: Final = """
AllergyIntolerance BodyStructure Claim ClaimResponse Consent CoverageEligibilityRequest CoverageEligibilityResponse
DetectedIssue EpisodeOfCare ExplanationOfBenefit FamilyMemberHistory Immunization ImmunizationEvaluation
ImmunizationRecommendation MolecularSequence NutritionOrder RelatedPerson SupplyDelivery VisionPrescription
"""

PATIENT_PATH: Final[dict[str, str]] = {
    **dict.fromkeys(_SUBJECT.split(), "subject.reference"),
    **dict.fromkeys(_PATIENT.split(), "patient.reference"),
    "Coverage": "beneficiary.reference",
}
"""Resource type → FHIRPath of the reference to the patient, from the Patient compartment of FHIR R4 (4.0.1). The
service refuses a view with a path that its type does not have."""


@dataclass(frozen=True)
class GroupView:
    """The view of one attribute group: the ViewDefinition as it is sent, and the names of the columns in their order.
    The first one is ``id``, the plain id of the resource.
    """

    group_id: str
    group_name: str
    reference: str
    resource_type: str
    definition: dict[str, Any]
    columns: tuple[str, ...]


def views(crtdl: Crtdl, lookup: Mapping[str, LookupTable]) -> tuple[tuple[GroupView, ...], tuple[str, ...]]:
    """Return the view of every group that has a table, in the order of the CRTDL, and the warnings about what is
    missing in the lookup file."""
    made: list[GroupView] = []
    warnings: list[str] = []
    for group in crtdl:
        table = lookup.get(group.reference)
        if table is None:
            warnings.append(f"{_called(group)}: no lookup table has its profile {group.reference}; it gets no CSV")
            continue
        view, odd = _view(group, table)
        made.append(view)
        warnings += (f"{_called(group)}: {what}" for what in odd)
    return tuple(made), tuple(warnings)


def no_views() -> InputError:
    """Return the error that no group has a view, so that there would be no table."""
    what = "flattening: no attribute group of the CRTDL has a table in the lookup file"
    hint = "the url of a table must equal the groupReference of a group"
    return InputError("flattening-no-views", what, context="services.flattening.lookup_path", hint=hint)


def _view(group: AttributeGroup, table: LookupTable) -> tuple[GroupView, list[str]]:
    select, warnings = _select(group, table)
    warnings += (
        f"several columns are called {old}; one of them becomes {new}" for old, new in select.make_names_unique()
    )
    columns = tuple(column.name for column in select.walk())
    name = group.name or group.id
    definition = view_definition(view_name(name), table.resource_type, [part.document() for part in select.select])
    return GroupView(group.id, name, group.reference, table.resource_type, definition, columns), warnings


def view_definition(name: str, resource_type: str, select: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a ViewDefinition without optional keys: the service refuses unknown ones (docs/steps.md)."""
    first = {"resourceType": _RESOURCE_TYPE, "name": name, "status": "active", "resource": resource_type}
    return first | {"select": select}


def view_name(name: str) -> str:
    """Return a name for a ViewDefinition, ``[A-Za-z][A-Za-z0-9_]*``, that resembles the name of a group."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    return (plain if plain[:1].isalpha() else f"group_{plain}".rstrip("_"))[:_LONGEST_NAME]


def _select(group: AttributeGroup, table: LookupTable) -> tuple[SelectClause, list[str]]:
    """Return a clause with the select clauses of a view, and warnings about attributes without columns."""
    refs = [attribute.ref for attribute in group.attributes]
    requested = [ref for ref in refs if ref in table.elements]
    without = "the lookup table has no entry for the attribute"
    warnings = [f"{without} {ref}; it gets no column" for ref in refs if ref not in table.elements]
    first = [ColumnDefinition(name="id", path="id", type="id")]
    if table.resource_type in PATIENT_PATH:
        first.append(ColumnDefinition(name="patient", path=PATIENT_PATH[table.resource_type], type="string"))
    select = SelectClause(select=[SelectClause(column=first)])
    contexts: dict[str, SelectClause] = {}
    for name in dict.fromkeys(requested):
        ancestors = list(_ancestors(table, name))
        if any(ancestor in requested for ancestor in ancestors):
            continue
        whole = _whole(table, name)
        if not whole.prune():
            warnings.append(f"the lookup table gives no column for the attribute {name}")
            continue
        context = _context(select, table, ancestors, contexts)
        if context is select:
            select.select.append(whole)
        else:
            context.attach(whole)
    return select, warnings


def _ancestors(table: LookupTable, name: str) -> Iterator[str]:
    """Yield the ids of the ancestors of an element, the nearest first."""
    while (parent := table.elements[name].parent) is not None:
        yield parent
        name = parent


def _whole(table: LookupTable, name: str) -> SelectClause:
    """Return a copy of an element's clause with everything below it."""
    element = table.elements[name]
    clause = element.definition.model_copy(deep=True)
    for child in element.children:
        clause.attach(_whole(table, child))
    return clause


def _context(
    select: SelectClause, table: LookupTable, ancestors: list[str], contexts: dict[str, SelectClause]
) -> SelectClause:
    """Return the clause for an element: it iterates as the ancestors of the element do, without their columns.

    Attributes below one ancestor share its clause. Two clauses would multiply their rows, and put the code of one
    coding beside the display of another.
    """
    context = select
    for ancestor in reversed(ancestors):
        definition = table.elements[ancestor].definition
        if definition.iterated is None:
            continue
        if ancestor not in contexts:
            contexts[ancestor] = definition.model_copy(update={"columns": [], "select": []})
            context.select.append(contexts[ancestor])
        context = contexts[ancestor]
    return context


def _called(group: AttributeGroup) -> str:
    return f"attribute group {group.name} ({group.id})" if group.name else f"attribute group {group.id}"
