"""The contexts of CCDL criteria: which resources each one is about, and which of their elements can be filtered by.

Source: document 3 §3, "Contexts".
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.sandbox.extraction.types import ElementPath

CONTEXT_SYSTEM = "fdpg.mii.cds"
SNOMED = "http://snomed.info/sct"
GENDER = (SNOMED, "263495000")
AGE = (SNOMED, "424144002")
UNITS_OF_AGE = ("a", "mo", "wk")


@dataclass(frozen=True)
class Context:
    """A context: its name in CCDL and the resource type it stands for."""

    name: str
    type: str
    has_value: bool = False
    """Whether a criterion may filter by the value of the resource."""


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
    """URL of the extension whose value it is; ``path`` then leads to the extensions."""


BIOBANK_DIAGNOSIS = "https://www.medizininformatik-initiative.de/fhir/ext/modul-biobank/StructureDefinition/Diagnose"


def _plain(*names: str) -> dict[str, CriterionAttribute]:
    return {name: CriterionAttribute(name, tuple(name.split("."))) for name in names}


def _references(*names: str) -> dict[str, CriterionAttribute]:
    return {name: CriterionAttribute(name, tuple(name.split(".")), is_reference=True) for name in names}


_MEDICATION = _plain("status", "category") | _references("encounter", "context")

ATTRIBUTES: dict[str, dict[str, CriterionAttribute]] = {
    "Condition": _plain("clinicalStatus", "verificationStatus", "category", "severity", "bodySite")
    | _references("encounter"),
    "Observation": _plain("status", "category", "interpretation", "method", "bodySite")
    | _references("encounter", "specimen"),
    "Procedure": _plain("status", "category", "bodySite") | _references("encounter", "reasonReference"),
    "MedicationAdministration": _MEDICATION,
    "MedicationRequest": _MEDICATION | _plain("intent"),
    "MedicationStatement": _MEDICATION,
    "Specimen": _plain("status", "collection.bodySite", "collection.method")
    | {
        "festgestellteDiagnose": CriterionAttribute(
            "festgestellteDiagnose", ("extension",), is_reference=True, extension=BIOBANK_DIAGNOSIS
        )
    },
    "Encounter": _plain("status", "type", "serviceType") | _references("diagnosis.condition"),
    "Consent": _plain("status", "category"),
}
"""By type and ``attributeCode.code``: names of FHIR elements, and the MII's name for a specimen's diagnosis."""
