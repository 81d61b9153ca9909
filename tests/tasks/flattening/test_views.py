"""The view of an attribute group (docs/steps.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.extraction.vocabulary import OWNERS
from tasks.flattening.views import PATIENT_PATH, GroupView, view_name, views
from tests.tasks.flattening.lookups import URL, Json, column, crtdl, element, group, lookup_of, table

FIRST = {
    "column": [
        {"name": "id", "path": "id", "type": "id"},
        {"name": "patient", "path": "subject.reference", "type": "string"},
    ]
}


BY_PATIENT = """
AllergyIntolerance BodyStructure Claim ClaimResponse Consent CoverageEligibilityRequest CoverageEligibilityResponse
DetectedIssue EpisodeOfCare ExplanationOfBenefit FamilyMemberHistory Immunization ImmunizationEvaluation
ImmunizationRecommendation MolecularSequence NutritionOrder RelatedPerson SupplyDelivery VisionPrescription
"""


def view_of(directory: Path, elements: Json, *attributes: str) -> tuple[GroupView, tuple[str, ...]]:
    """Return the view of one group with these attributes, and the warnings."""
    (view,), warnings = views(crtdl(group(*attributes)), lookup_of(directory, table(elements)))
    return view, warnings


def select_of(directory: Path, elements: Json, *attributes: str) -> list[Json]:
    """Return the select clauses after the first; there must be no warning."""
    view, warnings = view_of(directory, elements, *attributes)
    assert warnings == ()
    select: list[Json] = view.definition["select"]
    assert select[0] == FIRST
    return select[1:]


def names(view: GroupView) -> list[str]:
    return list(view.columns)


CODING = {"forEachOrNull": "code.coding"} | column("system", "code")


def test_the_definition_is_bare(tmp_path: Path) -> None:
    view, _ = view_of(tmp_path, {"Condition.code": element(column("text"))}, "Condition.code")
    assert view.definition == {
        "resourceType": "https://sql-on-fhir.org/ig/StructureDefinition/ViewDefinition",
        "name": "Diagnoses",
        "status": "active",
        "resource": "Condition",
        "select": [FIRST, column("text")],
    }
    assert (view.group_id, view.group_name, view.reference, view.resource_type) == (
        "g-1",
        "Diagnoses",
        URL,
        "Condition",
    )


def test_a_group_without_a_name_is_called_by_its_id(tmp_path: Path) -> None:
    lookup = lookup_of(tmp_path, table({}))
    (first, second), _ = views(crtdl(group("x", name=None), group("x", name="", key="7")), lookup)
    assert (first.group_name, first.definition["name"]) == ("g-1", "g_1")
    assert (second.group_name, second.definition["name"]) == ("7", "group_7")


@pytest.mark.parametrize("name", ["Diagnosen (ICD-10)", "Übergrößen", "_x_", "42", "患者", "", "a" * 300, "é" * 9])
def test_a_view_has_a_name_of_letters_digits_and_underscores(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", view_name(name))
    assert len(view_name(name)) <= 255


def test_a_group_whose_profile_has_no_table_is_named_and_gets_no_view(tmp_path: Path) -> None:
    lookup = lookup_of(tmp_path, table({"Condition.code": element()}))
    groups = (group("Condition.code", reference=f"{URL}|1.0", name="Old", key="g-0"), group("Condition.code"))
    (view,), warnings = views(crtdl(*groups), lookup)
    assert view.group_id == "g-1"
    assert warnings == (f"attribute group Old (g-0): no lookup table has its profile {URL}|1.0; it gets no CSV",)


def test_an_attribute_without_an_entry_is_named(tmp_path: Path) -> None:
    elements = {"Condition.code": element(column("text"))}
    view, warnings = view_of(tmp_path, elements, "Condition.onset[x]", "Condition.code", "Condition.onset[x]:onsetAge")
    lost = "attribute group Diagnoses (g-1): the lookup table has no entry for the attribute"
    assert warnings == (
        f"{lost} Condition.onset[x]; it gets no column",
        f"{lost} Condition.onset[x]:onsetAge; it gets no column",
    )
    assert names(view) == ["id", "patient", "text"]


@pytest.mark.parametrize(
    ("kinds", "path"),
    [
        ("Observation Condition Encounter Procedure MedicationAdministration Specimen DiagnosticReport", "subject"),
        (BY_PATIENT, "patient"),
        ("Coverage", "beneficiary"),
        ("Patient", None),
        ("Medication Organization Practitioner Location Device Substance Library", None),
        ("Group Person Appointment Provenance", None),
    ],
)
def test_the_patient_is_the_second_column_of_types_in_the_patient_compartment(
    tmp_path: Path, kinds: str, path: str | None
) -> None:
    tables = [table({}, url=f"https://example.org/{kind}", kind=kind) for kind in kinds.split()]
    groups = [group("x", reference=f"https://example.org/{kind}", key=kind) for kind in kinds.split()]
    made, _ = views(crtdl(*groups), lookup_of(tmp_path, *tables))
    identity = {"name": "id", "path": "id", "type": "id"}
    patient = {"name": "patient", "path": f"{path}.reference", "type": "string"}
    for view, kind in zip(made, kinds.split(), strict=True):
        assert view.resource_type == kind
        assert view.definition["select"] == [{"column": [identity, *([patient] if path else [])]}]


def test_every_type_with_a_patient_column_has_that_element_in_the_compartment() -> None:
    named = {kind: path.removesuffix(".reference") for kind, path in PATIENT_PATH.items()}
    one = {kind: ".".join(*paths) for kind, paths in OWNERS.items() if len(paths) == 1}
    assert {kind for kind in named if one.get(kind) != named[kind]} == set()
    assert {kind for kind, path in one.items() if path in {"subject", "patient", "beneficiary"}} == set(named)


NESTED: Json = {"forEach": "d"} | column("d")
DEEP: Json = {"forEachOrNull": "b.c"} | column("c")
UP, OWN = "Condition.code.coding", "Observation.value[x]:valueQuantity"
SELECTS: dict[str, tuple[Json, tuple[str, ...], list[Json]]] = {
    "attributes come in the order of the group": (
        {"a": element(column("a")), "b": element(CODING), "c": element(column("c"))},
        ("c", "b", "a"),
        [column("c"), CODING, column("a")],
    ),
    "an attribute that is asked for twice is covered once": ({"a": element(column("a"))}, ("a", "a"), [column("a")]),
    "an attribute is matched as it is written, slices included": (
        {"Observation.value[x]": element(column("any")), OWN: element(column("value"))},
        (OWN,),
        [column("value")],
    ),
    "an element brings its children and theirs": (
        {
            "a": element(column("a"), "a.b", "a.d"),
            "a.b": element(column("b"), "a.b.c"),
            "a.b.c": element(column("c")),
            "a.d": element(column("d")),
        },
        ("a",),
        [column("a", "b", "c", "d")],
    ),
    "a child with its own forEach becomes a nested select, others are merged flat": (
        {
            "a": element(column("a") | {"select": [column("own")]}, "a.coding", "a.b", "a.d"),
            "a.coding": element(CODING),
            "a.b": element(column("b") | {"select": [column("deep")]}),
            "a.d": element(NESTED),
        },
        ("a",),
        [column("a", "b") | {"select": [column("own"), CODING, column("deep"), NESTED]}],
    ),
    "a child below one that iterates is part of its clause": (
        {"a": element({"forEach": "a"}, "a.b"), "a.b": element({}, "a.b.c"), "a.b.c": element(DEEP)},
        ("a",),
        [{"forEach": "a", "select": [DEEP]}],
    ),
    "an id that only looks like an ancestor takes nothing away": (
        {"a": element(column("a")), "a.b": element(column("b"))},
        ("a", "a.b"),
        [column("a"), column("b")],
    ),
    "a column without a path is what its clause iterates over": (
        {"a": element({"forEach": "name.given", "column": [{"name": "given"}]})},
        ("a",),
        [{"forEach": "name.given", "column": [{"name": "given", "path": "$this"}]}],
    ),
    "attributes below one iterating ancestor share its context, so their rows do not multiply": (
        {
            UP: element(CODING, f"{UP}.code", f"{UP}.display", f"{UP}.extension"),
            f"{UP}.code": element(column("one")),
            f"{UP}.display": element(column("two")),
            f"{UP}.extension": element(NESTED),
            "Condition.date": element(column("date")),
        },
        (f"{UP}.code", "Condition.date", f"{UP}.extension", f"{UP}.display"),
        [{"forEachOrNull": "code.coding"} | column("one", "two") | {"select": [NESTED]}, column("date")],
    ),
}


@pytest.mark.parametrize(("elements", "asked", "expected"), SELECTS.values(), ids=SELECTS)
def test_select_clauses(tmp_path: Path, elements: Json, asked: tuple[str, ...], expected: list[Json]) -> None:
    assert select_of(tmp_path, elements, *asked) == expected


@pytest.mark.parametrize("order", [("a", "a.b.c"), ("a.b.c", "a"), ("a.b", "a.b.c", "a")])
def test_an_attribute_whose_ancestor_is_asked_for_too_is_skipped(tmp_path: Path, order: tuple[str, ...]) -> None:
    elements = {
        "a": element(column("a"), "a.b"),
        "a.b": element({"forEach": "b"} | column("b"), "a.b.c"),
        "a.b.c": element(column("c")),
    }
    assert select_of(tmp_path, elements, *order) == [column("a") | {"select": [{"forEach": "b"} | column("b", "c")]}]


def test_an_element_below_iterating_ancestors_has_their_contexts_not_their_columns(
    tmp_path: Path,
) -> None:
    elements = {
        "a": element({"forEach": "a", "select": [column("x")]} | column("a"), "a.b", "a.other"),
        "a.other": element(column("other")),
        "a.b": element(column("b"), "a.b.c"),
        "a.b.c": element({"forEachOrNull": "b.c"} | column("c"), "a.b.c.d", "a.b.c.e"),
        "a.b.c.d": element(column("d")),
        "a.b.c.e": element({"forEach": "e"} | column("e")),
    }
    wrapped = {"forEach": "a", "select": [{"forEachOrNull": "b.c"} | column("d")]}
    assert select_of(tmp_path, elements, "a.b.c.d") == [wrapped]
    nested = {"forEachOrNull": "b.c", "select": [{"forEach": "e"} | column("e")]}
    assert select_of(tmp_path, elements, "a.b.c.e") == [{"forEach": "a", "select": [nested]}]
    assert select_of(tmp_path, elements, "a.b") == [
        {
            "forEach": "a",
            "column": column("b")["column"],
            "select": [{"forEachOrNull": "b.c"} | column("c", "d") | {"select": [{"forEach": "e"} | column("e")]}],
        }
    ]


def test_an_attribute_that_gives_no_column_is_named_and_leaves_no_empty_clause(tmp_path: Path) -> None:
    elements = {
        "a": element({"forEachOrNull": "a", "select": [{}]}, "a.b"),
        "a.b": element({"forEach": "b"}),
        "c": element(column("c"), "c.d"),
        "c.d": element({"forEach": "d", "select": []}),
    }
    view, warnings = view_of(tmp_path, elements, "a.b", "a", "c")
    assert view.definition["select"] == [FIRST, column("c")]
    assert warnings == ("attribute group Diagnoses (g-1): the lookup table gives no column for the attribute a",)
    assert view_of(tmp_path, elements, "a.b")[0].definition["select"] == [FIRST]


def test_a_name_that_an_earlier_column_has_gets_a_number_and_a_warning(tmp_path: Path) -> None:
    elements = {
        "a": element(column("id", "code", "code_2")),
        "b": element({"forEach": "b"} | column("code") | {"select": [column("code", "patient")]}),
    }
    view, warnings = view_of(tmp_path, elements, "a", "b")
    assert names(view) == ["id", "patient", "id_2", "code", "code_2", "code_3", "code_4", "patient_2"]
    clash = "attribute group Diagnoses (g-1): several columns are called"
    assert warnings == (
        f"{clash} id; one of them becomes id_2",
        f"{clash} code; one of them becomes code_3",
        f"{clash} code; one of them becomes code_4",
        f"{clash} patient; one of them becomes patient_2",
    )
    renamed = view.definition["select"][2]
    assert renamed["column"] == [{"name": "code_3", "path": "code"}]
    assert renamed["select"] == [
        {"column": [{"name": "code_4", "path": "code"}, {"name": "patient_2", "path": "patient"}]}
    ]


def test_a_number_takes_no_name_away_that_stands_in_the_lookup(tmp_path: Path) -> None:
    view, _ = view_of(tmp_path, {"a": element(column("code", "code", "code_2"))}, "a")
    assert names(view) == ["id", "patient", "code", "code_3", "code_2"]


def test_columns_are_those_of_the_output_in_its_order(tmp_path: Path) -> None:
    clause: dict[str, Any] = {
        "select": [{"forEach": "b", "column": [{"name": "c", "path": "c", "type": "decimal"}]}],
        "column": [{"name": "a", "path": "a", "type": "code", "collection": True, "description": "all of them"}],
    }
    view, _ = view_of(tmp_path, {"a": element(clause)}, "a")
    assert view.columns[2:] == ("a", "c")
    assert view.definition["select"][1] == clause
    assert list(view.definition["select"][1]) == ["column", "select"]


def test_two_groups_of_one_profile_get_a_view_each(tmp_path: Path) -> None:
    elements = {"a": element(column("x")), "b": element(column("x"))}
    (first, second), warnings = views(
        crtdl(group("a", "b", key="g-1"), group("a", key="g-2")), lookup_of(tmp_path, table(elements))
    )
    assert (names(first), names(second)) == (["id", "patient", "x", "x_2"], ["id", "patient", "x"])
    assert len(warnings) == 1
