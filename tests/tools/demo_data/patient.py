"""One invented person of the demo data, with everything that refers to it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import Any, TypeVar

import msgspec

from tests.tools.demo_data import codes as c

T = TypeVar("T")
Resource = dict[str, Any]

PEOPLE = (
    ("Änne", "Müsterlich", "female", "1948-03-17"),
    ("Jürgen", "Beispielhuber", "male", "1955-11-02"),
    ("Zoë", "Erfunden", "female", "1990-07-29"),
    ("Götz", "Probefall", "male", "1962-01-05"),
    ("Käthe", "Phantasius", "female", "1971-09-21"),
    ("Björn", "Nirgendwo", "male", "1983-04-12"),
    ("Maßlieb", "Platzhalter", "other", "1999-12-31"),
    ("Ödön", "Testgruber", "male", "1939-06-08"),
    ("Sünje", "Attrappe", "female", "2004-02-29"),
    ("Çetin", "Beispieloğlu", "male", "1967-10-14"),
    ("Łucja", "Wymyślona-Muster", "female", "1978-05-25"),
    ("Père", "d’Invention", "male", "1951-08-30"),
)
MAIDEN_NAMES = (
    "Erdichtet", "Ausdenk", "Fabulé", "Luftschloss", "Märchenhaft", "Seifenblas", "Wolkenheim", "Traumwald", "Nebelung",
    "Hayaloğlu", "Zmyślona", "Chimère",
)  # fmt: skip
"""Maiden names of the mothers. The bundled rules omit their extension, so the release report has a stop."""

MAIDEN_NAME = "http://hl7.org/fhir/StructureDefinition/patient-mothersMaidenName"

_PERMITS = "2.16.840.1.113883.3.1937.777.24.5.3"
_DAY_ZERO = date(2025, 1, 7)


class _Dice:
    """Reproducible choices. Only ``random()`` is promised to give the same numbers in every Python version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], count: int) -> list[T]:
        start = self.below(len(items))
        return [items[(start + offset) % len(items)] for offset in range(count)]


def concept(system: str, code: c.Code | c.Lab) -> Resource:
    """Return a CodeableConcept with one coding."""
    return {"coding": [{"system": system, "code": code.code, "display": code.display}], "text": code.display}


def _quantity(lab: c.Lab, dice: _Dice) -> Resource:
    digits = str(lab.low + lab.step * dice.below(lab.steps))
    # Spelled by hand: a decimal in FHIR keeps its trailing zeros, a float would lose them.
    spelled = f"{digits[: -lab.digits]}.{digits[-lab.digits :].zfill(lab.digits)}" if lab.digits else digits
    spelled = f"0{spelled}" if spelled.startswith(".") else spelled
    return {"value": msgspec.Raw(spelled.encode()), "unit": lab.unit, "system": c.UCUM, "code": lab.unit}


def resource(kind: str, identity: str, profile: str, **fields: Any) -> Resource:
    """Return a resource that claims a profile of the core data set."""
    return {"resourceType": kind, "id": identity, "meta": {"profile": [c.PROFILES + profile]}} | fields


def _day(dice: _Dice) -> date:
    return _DAY_ZERO + timedelta(days=dice.below(400))


class DemoPatient:
    """One invented person with everything that refers to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.key = f"demo-{number:02d}"
        self.subject = {"reference": f"Patient/{self.key}"}
        self.dice = _Dice(7_000 + number)
        self.admitted = _day(self.dice)

    def resources(self) -> list[Resource]:
        """Return the resources of this person, sorted by type and id."""
        made = [
            self._patient(),
            *self._encounters(),
            *self._conditions(),
            *self._observations(),
            *self._vital_signs(),
            *self._procedures(),
            *self._medication(),
            self._specimen(),
            self._report(),
        ]
        if self.number % 6 != 0:
            made.append(self._consent())
        return sorted(made, key=lambda item: (item["resourceType"], item["id"]))

    def _at(self, days: int, time: str = "08:30:00") -> str:
        return f"{self.admitted + timedelta(days=days)}T{time}+01:00"

    def _id(self, kind: str, number: int = 1) -> str:
        return f"{self.key}-{kind}-{number}"

    def _encounter(self) -> Resource:
        return {"reference": f"Encounter/{self._id('enc')}"}

    def _patient(self) -> Resource:
        given, family, gender, born = PEOPLE[self.number - 1]
        record = {"coding": [{"system": "http://terminology.hl7.org/CodeSystem/v2-0203", "code": "MR"}]}
        return resource(
            "Patient",
            self.key,
            "core/modul-person/StructureDefinition/Patient",
            extension=[{"url": MAIDEN_NAME, "valueString": MAIDEN_NAMES[self.number - 1]}],
            identifier=[
                {
                    "use": "usual",
                    "type": record,
                    "system": "https://sandbox.example/fhir/sid/patient",
                    "value": f"SANDBOX-{self.number:04d}",
                }
            ],
            name=[{"use": "official", "family": family, "given": [given]}],
            gender=gender,
            birthDate=born,
            address=[
                {
                    "type": "both",
                    "line": [f"Straße der Erfindung {self.number}"],
                    "city": "Müsterstädt",
                    "postalCode": "00000",
                    "country": "DE",
                }
            ],
            managingOrganization={"reference": "Organization/demo-hospital"},
        )

    def _encounters(self) -> Iterable[Resource]:
        for number in (1, 2):
            inpatient = number == 1
            code, display = ("IMP", "inpatient encounter") if inpatient else ("AMB", "ambulatory")
            start = 0 if inpatient else 40
            yield resource(
                "Encounter",
                self._id("enc", number),
                "core/modul-fall/StructureDefinition/KontaktGesundheitseinrichtung",
                status="finished",
                **{"class": {"system": c.ACT, "code": code, "display": display}},
                subject=self.subject,
                period={"start": self._at(start), "end": self._at(start + (5 if inpatient else 0), "14:00:00")},
                participant=[{"individual": {"reference": f"Practitioner/demo-doctor-{1 + self.number % 3}"}}],
                serviceProvider={"reference": "Organization/demo-ward"},
            )

    def _conditions(self) -> Iterable[Resource]:
        for number, code in enumerate(self.dice.some(c.DIAGNOSES, 3), 1):
            diagnosis = concept(c.ICD, code)
            diagnosis["coding"][0]["version"] = "2025"
            yield resource(
                "Condition",
                self._id("cond", number),
                "core/modul-diagnose/StructureDefinition/Diagnose",
                clinicalStatus={
                    "coding": [{"system": "http://terminology.hl7.org/CodeSystem/condition-clinical", "code": "active"}]
                },
                code=diagnosis,
                subject=self.subject,
                encounter=self._encounter(),
                recordedDate=str(self.admitted + timedelta(days=number - 1)),
                note=[{"text": "Frei erfunden für den Sandkasten – ohne Anspruch auf Plausibilität."}],
            )

    def _observations(self) -> Iterable[Resource]:
        for number, lab in enumerate(self.dice.some(c.LABS, 5), 1):
            yield self._observation(
                self._id("lab", number),
                "core/modul-labor/StructureDefinition/ObservationLab",
                "laboratory",
                lab,
                valueQuantity=_quantity(lab, self.dice),
                specimen={"reference": f"Specimen/{self._id('spec')}"},
            )

    def _vital_signs(self) -> Iterable[Resource]:
        profile = "ext/modul-icu/StructureDefinition/"
        for number, (name, lab) in enumerate((("koerpergewicht", c.WEIGHT), ("koerpergroesse", c.HEIGHT)), 1):
            value = _quantity(lab, self.dice)
            yield self._observation(self._id("vital", number), profile + name, "vital-signs", lab, valueQuantity=value)
        parts = [
            {"code": concept(c.LOINC, lab), "valueQuantity": _quantity(lab, self.dice)}
            for lab in (c.SYSTOLIC, c.DIASTOLIC)
        ]
        panel = c.Code("85354-9", "Blood pressure panel with all children optional")
        yield self._observation(
            self._id("vital", 3), profile + "blutdruck-generisch", "vital-signs", panel, component=parts
        )

    def _observation(self, identity: str, profile: str, category: str, code: c.Code | c.Lab, **value: Any) -> Resource:
        kind = {"system": "http://terminology.hl7.org/CodeSystem/observation-category", "code": category}
        return resource(
            "Observation",
            identity,
            profile,
            status="final",
            category=[{"coding": [kind]}],
            code=concept(c.LOINC, code),
            subject=self.subject,
            encounter=self._encounter(),
            effectiveDateTime=self._at(self.dice.below(4), "06:45:00"),
            **value,
        )

    def _procedures(self) -> Iterable[Resource]:
        if self.number % 3 != 0:
            code = self.dice.pick(c.PROCEDURES)
            yield resource(
                "Procedure",
                self._id("proc"),
                "core/modul-prozedur/StructureDefinition/Procedure",
                status="completed",
                code=concept(c.OPS, code),
                subject=self.subject,
                encounter=self._encounter(),
                performedPeriod={"start": self._at(1, "09:10:00"), "end": self._at(1, "10:25:00")},
                performer=[{"actor": {"reference": f"Practitioner/demo-doctor-{1 + self.number % 3}"}}],
            )

    def _medication(self) -> Iterable[Resource]:
        drugs = self.dice.some(c.DRUGS, 2)
        profile = "core/modul-medikation/StructureDefinition/"
        for number, drug in enumerate(drugs, 1):
            dose = {
                "value": msgspec.Raw(b"1.50" if number == 1 else b"2.0"),
                "unit": "g",
                "system": c.UCUM,
                "code": "g",
            }
            yield resource(
                "MedicationAdministration",
                self._id("given", number),
                profile + "MedicationAdministration",
                status="completed",
                medicationReference={"reference": f"Medication/demo-{drug.code.lower()}"},
                subject=self.subject,
                context=self._encounter(),
                effectiveDateTime=self._at(number, "12:00:00"),
                dosage={"text": f"nüchtern, {number}× täglich", "dose": dose},
            )
        yield resource(
            "MedicationRequest",
            self._id("order"),
            profile + "MedicationRequest",
            status="active",
            intent="order",
            medicationReference={"reference": f"Medication/demo-{drugs[0].code.lower()}"},
            subject=self.subject,
            encounter=self._encounter(),
            authoredOn=self._at(0, "16:20:00"),
            requester={"reference": f"Practitioner/demo-doctor-{1 + self.number % 3}"},
        )

    def _specimen(self) -> Resource:
        blood = {"system": c.SNOMED, "code": "119297000", "display": "Blood specimen (specimen)"}
        return resource(
            "Specimen",
            self._id("spec"),
            "ext/modul-biobank/StructureDefinition/Specimen",
            status="available",
            type={"coding": [blood]},
            subject=self.subject,
            collection={"collectedDateTime": self._at(0, "07:05:00")},
        )

    def _report(self) -> Resource:
        return resource(
            "DiagnosticReport",
            self._id("report"),
            "core/modul-labor/StructureDefinition/DiagnosticReportLab",
            status="final",
            code={"coding": [{"system": c.LOINC, "code": "11502-2", "display": "Laboratory report"}]},
            subject=self.subject,
            encounter=self._encounter(),
            effectiveDateTime=self._at(1, "11:00:00"),
            result=[{"reference": f"Observation/{self._id('lab', number)}"} for number in range(1, 6)],
        )

    def _consent(self) -> Resource:
        """Permits collection and use; the person with number 5 withdrew, number 11 let it expire."""
        until = "2025-02-01" if self.number == 11 else "2054-12-31"
        kind = "deny" if self.number == 5 else "permit"
        permits = [
            {
                "type": kind,
                "period": {"start": "2024-01-01", "end": until},
                "code": [{"coding": [{"system": f"urn:oid:{_PERMITS}", "code": f"{_PERMITS}.{part}"}]}],
            }
            for part in (6, 8)
        ]
        scope = {"system": "http://terminology.hl7.org/CodeSystem/consentscope", "code": "research"}
        return resource(
            "Consent",
            self._id("consent"),
            "modul-consent/StructureDefinition/mii-pr-consent-einwilligung",
            status="active",
            scope={"coding": [scope]},
            category=[{"coding": [{"system": c.LOINC, "code": "57016-8"}]}],
            patient=self.subject,
            dateTime="2024-01-01T10:00:00+01:00",
            organization=[{"reference": "Organization/demo-hospital"}],
            policy=[{"uri": "urn:oid:2.16.840.1.113883.3.1937.777.24.2.1791"}],
            provision={"type": "deny", "period": {"start": "2024-01-01", "end": until}, "provision": permits},
        )
