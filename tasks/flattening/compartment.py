"""Where a resource names its patient: the column ``patient`` of a view (document 3 §5)."""

from __future__ import annotations

from typing import Final

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
"""FHIRPath of the reference to the patient, by resource type. Without: Patient itself, types outside the Patient
compartment of FHIR R4 (4.0.1), and those of its types that have no such element, as a group or an appointment with
several patients: a path that a type does not have makes the flattening service refuse the view."""
