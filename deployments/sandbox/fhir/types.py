"""The resource types of FHIR R4 (4.0.1) and the syntax of their ids and references."""

from __future__ import annotations

import re

RESOURCE_TYPES = frozenset(
    """
    Account ActivityDefinition AdverseEvent AllergyIntolerance Appointment AppointmentResponse AuditEvent
    Basic Binary BiologicallyDerivedProduct BodyStructure Bundle CapabilityStatement CarePlan CareTeam
    CatalogEntry ChargeItem ChargeItemDefinition Claim ClaimResponse ClinicalImpression CodeSystem
    Communication CommunicationRequest CompartmentDefinition Composition ConceptMap Condition Consent
    Contract Coverage CoverageEligibilityRequest CoverageEligibilityResponse DetectedIssue Device
    DeviceDefinition DeviceMetric DeviceRequest DeviceUseStatement DiagnosticReport DocumentManifest
    DocumentReference EffectEvidenceSynthesis Encounter Endpoint EnrollmentRequest EnrollmentResponse
    EpisodeOfCare EventDefinition Evidence EvidenceVariable ExampleScenario ExplanationOfBenefit
    FamilyMemberHistory Flag Goal GraphDefinition Group GuidanceResponse HealthcareService ImagingStudy
    Immunization ImmunizationEvaluation ImmunizationRecommendation ImplementationGuide InsurancePlan
    Invoice Library Linkage List Location Measure MeasureReport Media Medication MedicationAdministration
    MedicationDispense MedicationKnowledge MedicationRequest MedicationStatement MedicinalProduct
    MedicinalProductAuthorization MedicinalProductContraindication MedicinalProductIndication
    MedicinalProductIngredient MedicinalProductInteraction MedicinalProductManufactured
    MedicinalProductPackaged MedicinalProductPharmaceutical MedicinalProductUndesirableEffect
    MessageDefinition MessageHeader MolecularSequence NamingSystem NutritionOrder Observation
    ObservationDefinition OperationDefinition OperationOutcome Organization OrganizationAffiliation
    Patient PaymentNotice PaymentReconciliation Person PlanDefinition Practitioner PractitionerRole
    Procedure Provenance Questionnaire QuestionnaireResponse RelatedPerson RequestGroup ResearchDefinition
    ResearchElementDefinition ResearchStudy ResearchSubject RiskAssessment RiskEvidenceSynthesis Schedule
    SearchParameter ServiceRequest Slot Specimen SpecimenDefinition StructureDefinition StructureMap
    Subscription Substance SubstanceNucleicAcid SubstancePolymer SubstanceProtein
    SubstanceReferenceInformation SubstanceSourceMaterial SubstanceSpecification SupplyDelivery
    SupplyRequest Task TerminologyCapabilities TestReport TestScript ValueSet VerificationResult
    VisionPrescription
    """.split()  # noqa: SIM905 - a list of 146 lines reads worse
)
"""Every concrete type that has an end point. ``Parameters`` has none."""

ID = re.compile(r"[A-Za-z0-9\-.]{1,64}")
LITERAL = re.compile(r"([A-Z][A-Za-z]+)/([A-Za-z0-9\-.]{1,64})(?:/_history/[A-Za-z0-9\-.]{1,64})?(?:#.*)?")
"""A relative literal reference: type and id, with or without a version or a fragment."""
