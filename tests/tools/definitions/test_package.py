"""Search parameters and codes are made from a published package, the same way every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from tests.tools.definitions.build import SourceError
from tests.tools.definitions.codes import code_lists
from tests.tools.definitions.package import NAME, VERSION, main, make
from tests.tools.definitions.parameters import search_parameters

Json = dict[str, Any]


def parameter(base: str, expression: str, kind: str = "token", **more: Any) -> Json:
    return {"base": [base], "code": "x", "type": kind, "expression": expression} | more


def paths(base: str, expression: str) -> Any:
    table, _ = search_parameters([parameter(base, expression)])
    return table["parameters"][base]["token"]["x"]


@pytest.mark.parametrize(
    ("base", "expression", "expected"),
    [
        ("Substance", "Substance.code | (Substance.ingredient.substance as CodeableConcept)",
         [{"path": ["code"]}, {"path": ["ingredient", "substanceCodeableConcept"]}]),
        ("Observation", "Observation.component.value", [{"path": ["component", "value[x]"]}]),
        ("Condition", "Condition.onset.as(Period) | Observation.code", [{"path": ["onsetPeriod"]}]),
        ("Patient", "Patient.telecom.where(system='email')",
         [{"path": ["telecom"], "where": ["system", "email"], "then": []}]),
        ("Device", "Device.extension('http://example.org/x')",
         [{"path": ["extension"], "where": ["url", "http://example.org/x"], "then": ["value[x]"]}]),
        ("Resource", "Resource.meta.tag", [{"path": ["meta", "tag"]}]),
        ("Resource", "id", [{"path": ["id"]}]),
    ],
)  # fmt: skip
def test_the_forms_of_published_expressions_become_element_paths(base: str, expression: str, expected: Any) -> None:
    assert paths(base, expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "Patient.name.first()",
        "Patient.colour",
        "Patient.birthDate.day",
        "(Patient.deceased as Quantity)",
        "Person.name",
    ],
)
def test_another_form_and_an_element_that_is_not_there_are_refused(expression: str) -> None:
    with pytest.raises(SourceError):
        paths("Patient", expression)


def test_parameters_of_other_kinds_and_of_examples_are_omitted_silently() -> None:
    published = [
        parameter("Patient", "Patient.name", "string"),
        parameter("Patient", "Patient.active", derivedFrom="http://example.org/x"),
        {"code": "y", "type": "token", "base": ["Patient"]},
    ]
    assert search_parameters(published) == (
        {"parameters": {}},
        ["the search parameter Patient.y: it has no expression"],
    )


def structure(*bindings: tuple[str, str, str], **more: Any) -> Json:
    elements = [{"path": path, "binding": {"strength": how, "valueSet": url}} for path, how, url in bindings]
    return {"kind": "resource", "abstract": False, "snapshot": {"element": elements}} | more


def value_set(url: str, *include: Json, **more: Any) -> Json:
    return {"url": url, "compose": {"include": list(include)} | more}


HOLDER = {"code": "h", "property": [{"code": "notSelectable", "valueBoolean": True}], "concept": [{"code": "c"}]}
SYSTEM = {"url": "s", "content": "complete", "concept": [{"code": "a", "concept": [{"code": "b"}]}, HOLDER]}


def test_codes_come_from_the_value_set_from_whole_systems_and_from_other_value_sets() -> None:
    made, unlisted = code_lists(
        [structure(("T.a", "required", "v|4.0.1"), ("T.b", "required", "w"), ("T.c", "extensible", "v"))],
        [
            value_set("v", {"system": "s"}, {"system": "t", "concept": [{"code": "z"}]}),
            value_set("w", {"valueSet": ["v|4.0.1"]}),
        ],
        [SYSTEM],
    )
    codes = {"s": ["a", "b", "c"], "t": ["z"]}
    assert made == {"bindings": {"T.a": "v", "T.b": "w"}, "value_sets": {"v": codes, "w": codes}, "unlisted": {}}
    assert unlisted == []


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "no such value set"),
        ([value_set("v", {"system": "unknown"})], "does not hold the codes of unknown"),
        ([value_set("v", {"system": "s", "filter": [{}]})], "filters"),
        ([value_set("v", {"system": "s"}, exclude=[{}])], "excludes"),
        ([value_set("v", {"system": "s", "valueSet": ["w"]})], "intersects"),
    ],
)
def test_a_value_set_that_does_not_name_its_codes_is_said_with_its_elements(given: list[Json], why: str) -> None:
    made, (said,) = code_lists([structure(("T.a", "required", "v"))], given, [SYSTEM])
    assert made == {"bindings": {}, "value_sets": {}, "unlisted": {"v": ["T.a"]}}
    assert why in said
    assert "1 elements" in said


def test_profiles_and_abstract_types_bind_nothing() -> None:
    bound = ("T.a", "required", "v")
    made, _ = code_lists(
        [structure(bound, derivation="constraint"), structure(bound, abstract=True), structure(bound, kind="logical")],
        [],
        [],
    )
    assert made["unlisted"] == {}


def test_the_same_package_gives_the_same_bytes_and_another_one_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    described = {"name": NAME, "version": VERSION, "license": "CC0-1.0"}
    (given / "package.json").write_text(json.dumps(described))
    (given / "SearchParameter-x.json").write_text(json.dumps(parameter("Patient", "Patient.active")))
    written = []
    for name in ("a", "b"):
        target = tmp_path / name
        target.mkdir()
        assert make(given, target) == []
        written.append([(target / file).read_bytes() for file in ("search-parameters.json", "codes.json")])
    assert written[0] == written[1]
    (given / "package.json").write_text(json.dumps(described | {"version": "5.0.0"}))
    with pytest.raises(SourceError, match=r"hl7.fhir.r4.examples 5.0.0, expected"):
        make(given, tmp_path)
    assert main([]) == 2
    assert main([str(given)]) == 1


def test_what_is_checked_in_names_package_version_and_licence() -> None:
    for name in ("search-parameters.json", "codes.json"):
        source = json.loads((DEFINITIONS / name).read_bytes())["source"]
        assert source == {"package": NAME, "version": VERSION, "license": "CC0-1.0"}
