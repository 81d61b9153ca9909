"""Patients of a resource: the Patient compartment of R4, and resources of several patients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.extraction.types import OWNERS, is_patients
from tests.deployments.sandbox.extraction.conftest import (
    Start,
    attribute,
    ccdl,
    code,
    concept,
    criterion,
    crtdl,
    group,
    patient,
    resource,
    write,
)
from tests.deployments.sandbox.extraction.test_extraction import GONE

PEOPLE = (patient("a", gender="female"), patient("b", gender="male"), patient("c", gender="male"))

COMPARTMENT = frozenset(
    """
    Patient Account AdverseEvent AllergyIntolerance Appointment AppointmentResponse AuditEvent Basic BodyStructure
    CarePlan CareTeam ChargeItem Claim ClaimResponse ClinicalImpression Communication CommunicationRequest Composition
    Condition Consent Coverage CoverageEligibilityRequest CoverageEligibilityResponse DetectedIssue DeviceRequest
    DeviceUseStatement DiagnosticReport DocumentManifest DocumentReference Encounter EnrollmentRequest EpisodeOfCare
    ExplanationOfBenefit FamilyMemberHistory Flag Goal Group ImagingStudy Immunization ImmunizationEvaluation
    ImmunizationRecommendation Invoice List MeasureReport Media MedicationAdministration MedicationDispense
    MedicationRequest MedicationStatement MolecularSequence NutritionOrder Observation Person Procedure Provenance
    QuestionnaireResponse RelatedPerson RequestGroup ResearchSubject RiskAssessment Schedule ServiceRequest Specimen
    SupplyDelivery SupplyRequest VisionPrescription
    """.split()  # noqa: SIM905 - one type per line would be 65 lines
)
"""https://hl7.org/fhir/R4/compartmentdefinition-patient.html"""


def test_the_types_are_those_of_the_patient_compartment() -> None:
    assert {kind for kind in RESOURCE_TYPES if is_patients(kind)} == COMPARTMENT
    assert set(OWNERS) == COMPARTMENT - {"Patient"}


def to(*people: str) -> list[dict[str, str]]:
    return [{"reference": f"Patient/{key}"} for key in people]


def shared(*people: str) -> list[dict[str, Any]]:
    """Create one resource of every type that can have several patients; return the extracted ones of each."""
    return [
        resource("Account", "x", subject=to(*people), status="active"),
        resource("Appointment", "x", participant=[{"actor": item} for item in to(*people)], status="booked"),
        resource("AuditEvent", "x", agent=[{"who": item} for item in to(*people)], action="R"),
        resource("AuditEvent", "y", entity=[{"what": item} for item in to(*people)], action="R"),
        resource("Group", "x", member=[{"entity": item} for item in to(*people)], actual=True),
        resource("Person", "x", link=[{"target": item} for item in to(*people)], gender="female"),
        resource("Provenance", "x", target=to(*people), recorded="2026-01-01T00:00:00Z"),
        resource("Schedule", "x", actor=to(*people), active=True),
    ]


PATHS = ("Account.status", "Appointment.status", "AuditEvent.action", "Group.actual", "Person.gender",
         "Provenance.recorded", "Schedule.active")  # fmt: skip
QUERY = crtdl(*(group(path, path.partition(".")[0], attribute(path)) for path in PATHS))


def of(bundle: dict[str, Any]) -> dict[str, Any]:
    """Return the resources of a Bundle without generated Provenances."""
    found = (item["resource"] for item in bundle["entry"])
    return {f"{item['resourceType']}/{item['id']}": item for item in found if not item["id"].startswith("prov-")}


@pytest.mark.parametrize("batchsize", [1, 500])
def test_a_resource_of_two_patients_is_in_both_bundles_and_names_only_one_in_each(
    start: Start, tmp_path: Path, batchsize: int
) -> None:
    data = write(tmp_path / "data", *PEOPLE, *shared("a", "b"))
    bundles = {item["id"]: of(item) for item in start(data, batchsize=batchsize).extract(QUERY).bundles}
    keys = {f"{item['resourceType']}/{item['id']}" for item in shared()}
    for me, other in (("a", "b"), ("b", "a")):
        assert set(bundles[me]) == {f"Patient/{me}"} | keys
        text = str(bundles[me])
        assert f"'Patient/{me}'" in text
        assert f"'Patient/{other}'" not in text
    assert set(bundles["c"]) == {"Patient/c"}
    assert bundles["a"]["Group/x"]["member"] == [{"entity": {"reference": "Patient/a"}}, {"entity": GONE}]
    assert bundles["b"]["Schedule/x"]["actor"] == [GONE, {"reference": "Patient/b"}]


def test_a_group_of_nobody_in_the_cohort_is_nowhere(start: Start, tmp_path: Path) -> None:
    data = write(tmp_path / "data", *PEOPLE, *shared("a", "b"), *shared())
    result = start(data).extract(QUERY, "c")
    assert set(result.resources) == {"Patient/c"}
    assert "core.ndjson" not in result.texts


def test_a_link_to_what_is_also_mine_is_followed(start: Start, tmp_path: Path) -> None:
    query = crtdl(
        group("visit", "Encounter", attribute("Encounter.appointment", "app", must=True)),
        group("app", "Appointment", attribute("Appointment.status"), includeReferenceOnly=True),
    )
    visits = [resource("Encounter", f"e-{key}", key, appointment=[{"reference": "Appointment/x"}]) for key in "abc"]
    data = write(tmp_path / "data", *PEOPLE, *shared("a", "b"), *visits)
    result = start(data).extract(query)
    found = {item["id"]: set(of(item)) for item in result.bundles}
    assert found == {key: {f"Patient/{key}", f"Encounter/e-{key}", "Appointment/x"} for key in "ab"}
    assert ("RESOURCE_OUTSIDE_BATCH", "visit", "Encounter.appointment", "Appointment/x") in result.excluded()


def test_a_criterion_is_true_of_every_patient_of_a_resource(start: Start, tmp_path: Path) -> None:
    # R4 allows one subject. Data with two, or with a list where FHIR allows none, is read as intended.
    both = resource("Condition", "x", subject=to("a", "b"), code=concept("s", "1"))
    data = write(tmp_path / "data", *PEOPLE, both)
    assert start(data).cohort(ccdl([criterion("Diagnose", code("s", "1"))])) == ["a", "b"]


@pytest.mark.parametrize("element", ["performer", "asserter", "recorder", "focus"])
def test_who_performed_or_wrote_a_resource_does_not_own_it(start: Start, tmp_path: Path, element: str) -> None:
    data = write(tmp_path / "data", *PEOPLE, resource("Observation", "o", "a", **{element: to("b")}))
    found = start(data).extract(crtdl(group("g", "Observation", attribute(f"Observation.{element}"))))
    assert {item["id"]: set(of(item)) for item in found.bundles}["b"] == {"Patient/b"}
    assert found.resources["Observation/o"][element] == [GONE]


def test_a_subject_without_a_literal_reference_leaves_no_empty_element(start: Start, tmp_path: Path) -> None:
    # The resource belongs to no patient and reaches the result like a contained or linked one.
    stray = resource("Observation", "o", status="final", subject={"display": "A Name"})
    mixed = resource("Account", "x", status="active", subject=[*to("a"), {"display": "A Name"}])
    result = start(write(tmp_path / "data", *PEOPLE, stray, mixed)).extract(
        crtdl(
            group("o", "Observation", attribute("Observation.status")),
            group("acc", "Account", attribute("Account.status")),
        )
    )
    assert "Observation/o" not in result.resources
    assert "A Name" not in "".join(result.texts.values())
