"""Patients of a resource: the Patient compartment of R4, and resources of several patients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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


def test_a_criterion_is_true_of_every_patient_of_a_resource(start: Start, tmp_path: Path) -> None:
    # R4 allows one subject. Data with two, or with a list where FHIR allows none, is read as intended.
    both = resource("Condition", "x", subject=to("a", "b"), code=concept("s", "1"))
    data = write(tmp_path / "data", *PEOPLE, both)
    assert start(data).cohort(ccdl([criterion("Diagnose", code("s", "1"))])) == ["a", "b"]
