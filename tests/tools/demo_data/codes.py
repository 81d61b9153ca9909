"""Codes the demo data is made of: plausible ones of the terminologies German hospitals use."""

from __future__ import annotations

from dataclasses import dataclass

ICD = "http://fhir.de/CodeSystem/bfarm/icd-10-gm"
OPS = "http://fhir.de/CodeSystem/bfarm/ops"
ATC = "http://fhir.de/CodeSystem/bfarm/atc"
LOINC = "http://loinc.org"
SNOMED = "http://snomed.info/sct"
UCUM = "http://unitsofmeasure.org"
ACT = "http://terminology.hl7.org/CodeSystem/v3-ActCode"
PROFILES = "https://www.medizininformatik-initiative.de/fhir/"


@dataclass(frozen=True)
class Code:
    """A code and what it is called."""

    code: str
    display: str


@dataclass(frozen=True)
class Lab:
    """A measured quantity: values run from ``low`` in ``steps`` of ``step``, spelled with ``digits`` decimals."""

    code: str
    display: str
    unit: str
    low: int
    step: int
    steps: int
    digits: int


DIAGNOSES = (
    Code("E11.90", "Diabetes mellitus, Typ 2: Ohne Komplikationen: Nicht als entgleist bezeichnet"),
    Code("I10.90", "Essentielle Hypertonie, nicht näher bezeichnet: Ohne Angabe einer hypertensiven Krise"),
    Code("J18.9", "Pneumonie, nicht näher bezeichnet"),
    Code("N18.3", "Chronische Nierenkrankheit, Stadium 3"),
    Code("I48.0", "Vorhofflimmern, paroxysmal"),
    Code("E78.0", "Reine Hypercholesterinämie"),
    Code("K21.0", "Gastroösophageale Refluxkrankheit mit Ösophagitis"),
    Code("K80.20", "Gallenblasenstein ohne Cholezystitis: Ohne Angabe einer Gallenwegsobstruktion"),
)
PROCEDURES = (
    Code("5-511.11", "Cholezystektomie: Einfach, laparoskopisch: Ohne laparoskopische Revision der Gallengänge"),
    Code("1-632.0", "Diagnostische Ösophagogastroduodenoskopie: Bei normalem Situs"),
    Code("3-200", "Native Computertomographie des Schädels"),
)
DRUGS = (
    Code("A10BA02", "Metformin"),
    Code("C07AB02", "Metoprolol"),
    Code("C09AA05", "Ramipril"),
    Code("J01CA04", "Amoxicillin"),
    Code("N02BB02", "Metamizol-Natrium"),
    Code("B01AB05", "Enoxaparin"),
)
LABS = (
    Lab("718-7", "Hemoglobin [Mass/volume] in Blood", "g/dL", 1050, 15, 40, 2),
    Lab("2160-0", "Creatinine [Mass/volume] in Serum or Plasma", "mg/dL", 70, 5, 30, 2),
    Lab("2345-7", "Glucose [Mass/volume] in Serum or Plasma", "mg/dL", 75, 3, 40, 0),
    Lab("4548-4", "Hemoglobin A1c/Hemoglobin.total in Blood", "%", 50, 1, 45, 1),
    Lab("2823-3", "Potassium [Moles/volume] in Serum or Plasma", "mmol/L", 330, 10, 20, 2),
    Lab("2951-2", "Sodium [Moles/volume] in Serum or Plasma", "mmol/L", 132, 1, 14, 0),
    Lab("1988-5", "C reactive protein [Mass/volume] in Serum or Plasma", "mg/L", 50, 25, 60, 2),
    Lab("6690-2", "Leukocytes [#/volume] in Blood by Automated count", "10*3/uL", 400, 20, 40, 2),
)
WEIGHT = Lab("29463-7", "Body weight", "kg", 5200, 150, 35, 2)
HEIGHT = Lab("8302-2", "Body height", "cm", 1520, 15, 28, 1)
SYSTOLIC = Lab("8480-6", "Systolic blood pressure", "mm[Hg]", 105, 5, 12, 0)
DIASTOLIC = Lab("8462-4", "Diastolic blood pressure", "mm[Hg]", 60, 5, 8, 0)
