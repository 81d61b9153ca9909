"""Allowed paths; others are refused before any resource is processed."""

from __future__ import annotations

import pytest

from deployments.sandbox.pseudonymization.path import ByTypeStep, MemberStep, OfTypeStep, RulePath, read_path
from deployments.sandbox.pseudonymization.problem import RuleFileError


def test_a_path_names_its_resource_type_first() -> None:
    assert read_path("Patient.name.family") == RulePath("Patient", ((MemberStep("name"), MemberStep("family")),))
    assert read_path("nodesByType('HumanName').use") == RulePath(None, ((ByTypeStep("HumanName"), MemberStep("use")),))
    assert read_path("Patient") == RulePath("Patient", ((),))


def test_types_narrow_a_path() -> None:
    chain = (MemberStep("condition"), MemberStep("onset"), OfTypeStep("Age"))
    assert read_path("FamilyMemberHistory.condition.onset as Age").chains == (chain,)
    assert read_path("FamilyMemberHistory.condition.onset.ofType(Age)").chains == (chain,)
    assert read_path("FamilyMemberHistory.condition.onset.ofType(FHIR.Age)").chains == (chain,)


def test_alternatives_are_chains_of_their_own() -> None:
    assert read_path("Patient.(name | contact.name).family").chains == (
        (MemberStep("name"), MemberStep("family")),
        (MemberStep("contact"), MemberStep("name"), MemberStep("family")),
    )


def test_names_in_backticks() -> None:
    assert read_path("Coverage.`class`.value").chains == ((MemberStep("class"), MemberStep("value")),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Patient.",
        "Patient..name",
        "Patient.name given",
        "Patient.name)",
        "(Patient.name",
        "Patient.where(",
        "Patient.name[0]",
        "Patient.name.first()",
        "Patient.name.exists()",
        "Patient.descendants()",
        "Patient.name = 'x'",
        "Patient.name + 'x'",
        "Patient.name is HumanName",
        "nodesByType()",
        "nodesByType(HumanName)",
        "nodesByType('a' + 'b')",
        "nodesByKind('HumanName')",
        "Patient.extension(url)",
        "'Patient'",
        "1",
        "%resource.id",
        "Patient.name.where(resolve().exists())",
        "Patient.name.where(nodesByType('string') = 'x')",
        "Patient.name.where(%resource.id = 'x')",
        "Patient.name.where($index = 0)",
        "Patient.name.where(wombat())",
        "Patient.name.where(given.first(1))",
        "Patient.name.where(period.start < today())",
        "Patient.name.where(trace('x').exists())",
    ],
)
def test_fhirpath_that_is_not_supported_is_refused(text: str) -> None:
    with pytest.raises(RuleFileError):
        read_path(text)
