"""The kind of the values at a path, by the names of its elements (docs/review.md).

The elements of persons are those of the leak check (``fhir/persons.py``). In other resources the name of the element
gives the kind, because FHIR uses names alike everywhere. A value of an unknown element is free text if it has a space.
Organizations, locations, medications and devices identify nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tasks.shared.fhir.persons import ELEMENTS, NO_VALUES, PERSONS, SHARED_PLACES, Kind
from tasks.shared.fhir.resource import TYPE

ATTACHMENT: Final = "attachment data"
DISPLAY: Final = "display"
TEXT: Final = "free text"
CODE_TEXT: Final = "text of a code"
MAYBE_TEXT: Final = "free text?"
"""Kind of an unknown element: its value is free text if it has a space."""

STOPS: Final = frozenset({Kind.NAME, Kind.ADDRESS, Kind.TELECOM, Kind.PHOTO, Kind.NARRATIVE, ATTACHMENT})
"""Kinds of values that must not leave, at any path."""

_IMPERSONAL_NAMES: Final = """
ActivityDefinition CapabilityStatement ChargeItemDefinition CodeSystem CompartmentDefinition ConceptMap Device
DeviceDefinition DeviceMetric Endpoint GraphDefinition HealthcareService ImplementationGuide InsurancePlan Library
Location Measure Medication MedicationKnowledge MessageDefinition MessageHeader NamingSystem ObservationDefinition
OperationDefinition OperationOutcome Organization OrganizationAffiliation PlanDefinition Provenance Questionnaire
ResearchStudy SearchParameter SpecimenDefinition StructureDefinition StructureMap Substance TerminologyCapabilities
ValueSet
"""
IMPERSONAL: Final = frozenset(_IMPERSONAL_NAMES.split())
"""Resource types that are about no person."""

_CODINGS: Final = frozenset({"coding", "valueCoding", "security", "tag", "class", "event", "subtype", "modality"})
_ORGANIZATION_NAMES: Final = """
assigner serviceProvider managingOrganization organization custodian location manufacturer insurer facility
"""
_ORGANIZATIONS: Final = frozenset(_ORGANIZATION_NAMES.split())
"""Elements that refer to organizations and places: their identifiers are no person's."""
_PLACES_NAMES: Final = """
payor onBehalfOf origin destination medicationReference device focalDevice specimen encounter context episodeOfCare
condition basedOn partOf hasMember derivedFrom reasonReference result diagnosis item insurance coverage focus
"""
_PLACES: Final = _ORGANIZATIONS | frozenset(_PLACES_NAMES.split())
"""Elements that refer to no person. They count only if the reference does not name a type."""
_PEOPLE: Final = frozenset({"Patient", "Practitioner", "PractitionerRole", "RelatedPerson", "Person", "CareTeam"})
_NO_ATTACHMENT: Final = frozenset({"valueSampledData", "signature", "valueSignature", "sourceSignature"})
_NOTES: Final = frozenset({"note", "valueAnnotation", "dosage", "dosageInstruction"})
_PHOTO: Final = frozenset({"data", "url", "title", "hash"})
_IDENTIFIERS: Final = re.compile(r"[iI]dentifier\Z|requisition\Z|udiCarrier\Z")
_OTHER_NUMBERS: Final = frozenset({"subscriberId", "preAuthRef", "serialNumber", "deviceIdentifier"})
_FREE_NAMES: Final = """
comment comments conclusion contentString description detail details instruction note patientInstruction
preparationInstruction reasonString recurrence relationshipString summary title valueMarkdown valueString
"""
_FREE: Final = frozenset(_FREE_NAMES.split())
_NO_TEXT_NAMES: Final = """
_ authorReference authoredOn batchNumber birthDate clinicalStatus code comparator created criticality data date
denominator display end expression gender implicitRules intent issued lang language lastUpdated linkId lotNumber mode
modelNumber path priority profile publisher recorded reference resourceType source start uid unit version versionId
"""
_NO_TEXT: Final = NO_VALUES | frozenset(_NO_TEXT_NAMES.split())
"""Elements of type ``string``, ``code`` or ``dateTime`` that hold no free text."""
_TYPED: Final = re.compile(r"value|effective|onset|abatement|performed|occurrence|deceased|multipleBirth|timing|due")
_NAMES: Final = re.compile(r"maiden|surname|family-?name|given-?name|own-(name|prefix)|nick-?name|alias", re.IGNORECASE)
_STREET: Final = re.compile(r"street|house-?number|ADXP|geolocation|address", re.IGNORECASE)


def kind_of(resource: str, names: Sequence[str], url: str = "") -> str:
    """Return the kind of the value at a leaf; blank if it identifies nobody.

    ``names`` are the elements from the resource to the leaf, ``url`` is that of the innermost extension around it.
    """
    if not names or (resource in IMPERSONAL and names[-1] != "data"):
        return ""
    kind = (_personal(names, url) if resource in PERSONS else "") or _other(resource, names, url)
    of_organization = any(of in _ORGANIZATIONS and name == "identifier" for of, name in pairwise(names))
    return "" if kind == Kind.IDENTIFIER and of_organization else kind


def _personal(names: Sequence[str], url: str) -> str:
    """Return the kind of a leaf of a person by its identifying element; blank without one."""
    for at, name in enumerate(names):
        kind = ELEMENTS.get(name)
        if kind is None or (kind is Kind.NARRATIVE and (at or names[-1] != "div")):
            continue
        return _within(kind, names[at + 1 :], url)
    return ""


def _within(kind: Kind, names: Sequence[str], url: str) -> str:
    """Return the kind of a leaf below a name, an address, a contact point, an identifier, a photo or a text."""
    last = names[-1] if names else ""
    if kind is Kind.PHOTO:
        return kind if last in _PHOTO else ""
    if kind is Kind.ADDRESS and last in ("code", "display") and "extension" in names:
        return Kind.PLACE  # the code of a town
    if kind is Kind.ADDRESS and last in ("country", "state"):
        return ""
    if kind is Kind.ADDRESS and (last in SHARED_PLACES or any(name in SHARED_PLACES for name in names)):
        return Kind.PLACE if last not in NO_VALUES and not _STREET.search(url) else ""
    return "" if any(name in NO_VALUES for name in names) else kind


def _other(resource: str, names: Sequence[str], url: str) -> str:
    """Return the kind of a leaf by the names of the last elements, which FHIR uses alike in every resource."""
    last, around = names[-1], names[-2] if len(names) > 1 else ""
    if last == "data":
        return "" if around in _NO_ATTACHMENT or "meta" in names else ATTACHMENT
    if last == "div" or (last == "text" and around in _NOTES):
        return TEXT
    if around in _CODINGS or "meta" in names:
        return ""
    if last in ("display", "authorString"):
        return DISPLAY
    for at, name in enumerate(names[:-1]):
        if kind := _typed(name, resource):
            return _within(kind, names[at + 1 :], url)
    if around in ("extension", "modifierExtension"):
        return _of_extension(last, url)
    return _plain(resource, last, around)


def _plain(resource: str, last: str, around: str) -> str:
    """Return the kind of a leaf that is part of no data type with a kind of its own."""
    if resource == "FamilyMemberHistory" and last == "name" and not around:
        return Kind.NAME
    if last in _OTHER_NUMBERS:
        return Kind.IDENTIFIER
    if last == "text":
        return CODE_TEXT if around not in ("", "item") else ""
    if last in _FREE:
        return TEXT
    return _unknown(resource, last)


def _typed(name: str, resource: str) -> Kind | None:
    """Return the kind of an element that has the form of a name, an address, a contact point or an identifier."""
    if name.endswith("HumanName"):
        return Kind.NAME
    if name.endswith("Address") or name == "address":
        return Kind.ADDRESS
    if name in ("telecom", "valueContactPoint"):
        return Kind.TELECOM
    if name == "photo" and resource in PERSONS:
        return Kind.PHOTO
    return Kind.IDENTIFIER if _IDENTIFIERS.search(name) else None


def _of_extension(last: str, url: str) -> str:
    end = url.rstrip("/").rpartition("/")[2]
    if last in ("valueString", "valueMarkdown", "valueDecimal"):
        if _NAMES.search(end):
            return Kind.NAME
        if _STREET.search(url):
            return Kind.ADDRESS
    return TEXT if last in ("valueString", "valueMarkdown") else ""


def _unknown(resource: str, last: str) -> str:
    if last in _NO_TEXT or _TYPED.match(last) or last.endswith(("Date", "DateTime")):
        return ""
    return TEXT if resource in PERSONS else MAYBE_TEXT


def is_persons(reference: Mapping[str, Any], element: str) -> bool:
    """Return whether the display of a reference can be the name of a person: by its type, else by its element."""
    if not {"reference", "identifier", "type"} & reference.keys() and {"code", "system"} & reference.keys():
        return False
    kind, target = reference.get("type"), reference.get("reference")
    if isinstance(target, str) and not target.startswith(("urn:", "#")):
        path, searched, _ = target.partition("/_history/")[0].partition("?")
        kind = (path if searched else path.rpartition("/")[0]).rpartition("/")[2] or kind
    if isinstance(kind, str) and TYPE.fullmatch(kind):
        return kind in _PEOPLE
    return element not in _PLACES


_COLUMNS: Final = {
    Kind.IDENTIFIER: re.compile(r"identifier|mrn|insur(ance|ant)|kvnr|kvid|passport|ssn"),
    Kind.NAME: re.compile(r"family|given|surname|maiden|(patient|last|first|nick)_?name|prefix|suffix"),
    Kind.TELECOM: re.compile(r"telecom|phone|e_?mail|fax"),
    Kind.PLACE: re.compile(r"city|district|postal|zip"),
    Kind.ADDRESS: re.compile(r"address|street"),
    Kind.NARRATIVE: re.compile(r"narrative|_div$"),
    Kind.PHOTO: re.compile(r"photo"),
    ATTACHMENT: re.compile(r"attachment"),
    TEXT: re.compile(r"note|comment|conclusion|free_?text|valuestring|value_string"),
}


def kind_of_column(name: str) -> str:
    """Return the kind of a column of a table by its name, for a column without a view."""
    name = name.lower()
    if name.endswith(("_system", "_use", "_type", "_code", "_display", "_start", "_end")) and "postal" not in name:
        return ""
    return next((kind for kind, pattern in _COLUMNS.items() if pattern.search(name)), "")
