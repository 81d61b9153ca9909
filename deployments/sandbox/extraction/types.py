"""Resource types, and the contexts of CCDL criteria that stand for them.

Lists the elements with a resource's patients, dates and codes, and those that a criterion can filter by. Sources: the
Patient compartment of FHIR R4 (4.0.1), document 3 §3 and §5.
"""

from __future__ import annotations

from dataclasses import dataclass

ElementPath = tuple[str, ...]

PATIENT = "Patient"

_BY_PATIENT = """
AllergyIntolerance BodyStructure Claim ClaimResponse Consent CoverageEligibilityRequest CoverageEligibilityResponse
DetectedIssue EpisodeOfCare ExplanationOfBenefit FamilyMemberHistory Immunization ImmunizationEvaluation
ImmunizationRecommendation MolecularSequence NutritionOrder RelatedPerson SupplyDelivery VisionPrescription
"""
_BY_SUBJECT = """
Account AdverseEvent Basic CarePlan CareTeam ChargeItem ClinicalImpression Communication CommunicationRequest
Composition Condition DeviceRequest DeviceUseStatement DiagnosticReport DocumentManifest DocumentReference Encounter
Flag Goal ImagingStudy Invoice List MeasureReport Media MedicationAdministration MedicationDispense MedicationRequest
MedicationStatement Observation Procedure QuestionnaireResponse RequestGroup RiskAssessment ServiceRequest Specimen
"""

OWNERS: dict[str, tuple[ElementPath, ...]] = {
    **dict.fromkeys(_BY_SUBJECT.split(), (("subject",),)),
    **dict.fromkeys(_BY_PATIENT.split(), (("patient",),)),
    "Appointment": (("participant", "actor"),),
    "AppointmentResponse": (("actor",),),
    "AuditEvent": (("agent", "who"), ("entity", "what")),
    "Coverage": (("beneficiary",),),
    "EnrollmentRequest": (("candidate",),),
    "Group": (("member", "entity"),),
    "Person": (("link", "target"),),
    "Provenance": (("target",),),
    "ResearchSubject": (("individual",),),
    "Schedule": (("actor",),),
    "SupplyRequest": (("deliverTo",),),
}
"""Types of the Patient compartment, with the elements that refer to a resource's patients. A resource with several
patients there, such as a Group, belongs to each of them. Performers and authors do not count."""


def is_patients(kind: str) -> bool:
    """Return True if resources of this type belong to patients (and so never to the core file)."""
    return kind == PATIENT or kind in OWNERS


@dataclass(frozen=True)
class CodeElements:
    """Element of a type with the code that a criterion compares."""

    path: ElementPath
    reference: ElementPath | None = None
    """Element that refers to the Medication with the code."""


_MEDICATION = CodeElements(("medicationCodeableConcept",), ("medicationReference",))

CODES: dict[str, CodeElements] = {
    "Condition": CodeElements(("code",)),
    "Observation": CodeElements(("code",)),
    "Procedure": CodeElements(("code",)),
    "Medication": CodeElements(("code",)),
    "MedicationAdministration": _MEDICATION,
    "MedicationRequest": _MEDICATION,
    "MedicationStatement": _MEDICATION,
    "Specimen": CodeElements(("type",)),
    "Encounter": CodeElements(("class",)),
    "Consent": CodeElements(("provision", "provision", "code")),
}

DATES: dict[str, tuple[ElementPath, ...]] = {
    "AllergyIntolerance": (("recordedDate",), ("onset[x]",)),
    "CarePlan": (("period",),),
    "ClinicalImpression": (("effective[x]",), ("date",)),
    "Composition": (("date",),),
    "Condition": (("recordedDate",), ("onset[x]",)),
    "Consent": (("dateTime",),),
    "DiagnosticReport": (("effective[x]",), ("issued",)),
    "DocumentReference": (("date",),),
    "Encounter": (("period",),),
    "FamilyMemberHistory": (("date",),),
    "Goal": (("startDate",),),
    "ImagingStudy": (("started",),),
    "Immunization": (("occurrence[x]",),),
    "List": (("date",),),
    "MedicationAdministration": (("effective[x]",),),
    "MedicationDispense": (("whenHandedOver",), ("whenPrepared",)),
    "MedicationRequest": (("authoredOn",),),
    "MedicationStatement": (("effective[x]",), ("dateAsserted",)),
    "Observation": (("effective[x]",), ("issued",)),
    "Procedure": (("performed[x]",),),
    "QuestionnaireResponse": (("authored",),),
    "RiskAssessment": (("occurrence[x]",),),
    "ServiceRequest": (("occurrence[x]",), ("authoredOn",)),
    "Specimen": (("collection", "collected[x]"), ("receivedTime",)),
}
"""Date elements for consent: the first with a date counts."""


CONTEXT_SYSTEM = "fdpg.mii.cds"
SNOMED = "http://snomed.info/sct"
GENDER = (SNOMED, "263495000")
AGE = (SNOMED, "424144002")
UNITS_OF_AGE = ("a", "mo", "wk")


@dataclass(frozen=True)
class Context:
    """A context: its name in CCDL and its resource type."""

    name: str
    type: str
    has_value: bool = False
    """True if a criterion can filter by the resource's value."""


CONTEXTS: dict[str, Context] = {
    context.name: context
    for context in (
        Context("Patient", "Patient", has_value=True),
        Context("Diagnose", "Condition"),
        Context("Laboruntersuchung", "Observation", has_value=True),
        Context("Vitaldaten", "Observation", has_value=True),
        Context("Procedure", "Procedure"),
        Context("Medikamentenverabreichung", "MedicationAdministration"),
        Context("Medikamentenanordnung", "MedicationRequest"),
        Context("Medikamentenverordnung", "MedicationStatement"),
        Context("Specimen", "Specimen"),
        Context("Fall", "Encounter"),
        Context("Einwilligung", "Consent"),
    )
}


@dataclass(frozen=True)
class CriterionAttribute:
    """An element that attribute filters can name."""

    name: str
    path: ElementPath
    is_reference: bool = False
    extension: str | None = None
    """URL of the extension with the value; ``path`` then leads to the extensions."""


BIOBANK_DIAGNOSIS = "https://www.medizininformatik-initiative.de/fhir/ext/modul-biobank/StructureDefinition/Diagnose"


def _plain(*names: str) -> dict[str, CriterionAttribute]:
    return {name: CriterionAttribute(name, tuple(name.split("."))) for name in names}


def _references(*names: str) -> dict[str, CriterionAttribute]:
    return {name: CriterionAttribute(name, tuple(name.split(".")), is_reference=True) for name in names}


_OF_MEDICATION = _plain("status", "category") | _references("encounter", "context")

ATTRIBUTES: dict[str, dict[str, CriterionAttribute]] = {
    "Condition": _plain("clinicalStatus", "verificationStatus", "category", "severity", "bodySite")
    | _references("encounter"),
    "Observation": _plain("status", "category", "interpretation", "method", "bodySite")
    | _references("encounter", "specimen"),
    "Procedure": _plain("status", "category", "bodySite") | _references("encounter", "reasonReference"),
    "MedicationAdministration": _OF_MEDICATION,
    "MedicationRequest": _OF_MEDICATION | _plain("intent"),
    "MedicationStatement": _OF_MEDICATION,
    "Specimen": _plain("status", "collection.bodySite", "collection.method")
    | {
        "festgestellteDiagnose": CriterionAttribute(
            "festgestellteDiagnose", ("extension",), is_reference=True, extension=BIOBANK_DIAGNOSIS
        )
    },
    "Encounter": _plain("status", "type", "serviceType") | _references("diagnosis.condition"),
    "Consent": _plain("status", "category"),
}
"""Attributes by type and ``attributeCode.code``: FHIR element names, and the MII's name for a specimen's diagnosis."""
