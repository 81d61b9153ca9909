"""The short way through simple paths gives what the library gives, on any resource."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.sandbox.flattening import fhirpath
from deployments.sandbox.flattening.definition import read_definition
from deployments.sandbox.flattening.request import read_request
from deployments.sandbox.flattening.run import run
from deployments.sandbox.flattening.shortcut import compile_route
from deployments.sandbox.flattening.view import View
from tests.deployments.sandbox.flattening.support import Json, column, parameters, view

PATHS = [
    "id",
    "$this.id",
    "Observation.status",
    "status",
    "subject.reference",
    "subject.getReferenceKey()",
    "subject.getReferenceKey(Patient)",
    "getResourceKey()",
    "code.coding.code",
    "code.coding[1].code",
    "code.coding.first().code",
    "code.coding.where(system = 'a').code",
    "code.coding.where(system = 'a' and code = 'b').display",
    "code.coding.where(system = %system).where(userSelected = true).code",
    "code.coding.where($this.code = 'b')",
    "code.where(coding.code = 'b').text",
    "value",
    "value.ofType(Quantity)",
    "value.ofType(Quantity).value",
    "value.ofType(CodeableConcept).coding.code",
    "value.ofType(string)",
    "effective.ofType(dateTime)",
    "component.value.ofType(Quantity).value",
    "component.where(code.text = 'b').value.ofType(Quantity).unit",
    "component.code.coding.display",
    "extension('a').value.ofType(string)",
    "extension.where(url = 'a').value.ofType(Coding).code",
    "extension.value.ofType(Quantity).unit",
    "component.extension('a').extension('b').value.ofType(boolean)",
    "nonsense.code",
    "contained",
]
LONG_WAY = [
    "code.coding.exists()",
    "code.coding.code | id",
    "code.coding[0 + 1]",
    "code.coding['a']",
    "code.where(text = 1)",
    "code.where(text)",
    "component.where(value.ofType(Quantity) = 'a')",
    "contained.name",
    "extension(url)",
    "extension(1)",
    "extension.value.ofType(string).first()",
    "status & id",
    "status.extension('a')",
    "status.length()",
    "status.length",
    "value.code",
    "value.first()",
    "value.ofType(Nothing)",
    "value[0]",
    "%resource.id",
]

words = st.sampled_from(["a", "b", "Patient/1", "urn:uuid:1"])
numbers = st.sampled_from([0, 1, 7, 1.5])
codings = st.fixed_dictionaries(
    {}, optional={"system": words, "code": words, "display": words, "userSelected": st.booleans()}
)
concepts = st.fixed_dictionaries({}, optional={"coding": st.lists(codings, max_size=3), "text": words})
quantities = st.fixed_dictionaries({}, optional={"value": numbers, "unit": words})
values: dict[str, st.SearchStrategy[Any]] = {
    "valueQuantity": quantities,
    "valueCodeableConcept": concepts,
    "valueString": words,
    "valueBoolean": st.booleans(),
}
extensions: st.SearchStrategy[Json] = st.deferred(
    lambda: st.fixed_dictionaries(
        {"url": words},
        optional={"extension": st.lists(extensions, max_size=2), "valueString": words, "valueCoding": codings}
        | {"valueBoolean": st.booleans(), "valueQuantity": quantities, "valueCount": quantities, "valueCode": words},
    )
)
components = st.fixed_dictionaries(
    {}, optional={"code": concepts, "extension": st.lists(extensions, max_size=2), **values}
)
observations = st.fixed_dictionaries(
    {"resourceType": st.just("Observation")},
    optional={
        "id": words,
        "status": words,
        "code": concepts,
        "subject": st.fixed_dictionaries({}, optional={"reference": words, "type": words}),
        "effectiveDateTime": st.just("2020-01-01"),
        "effectivePeriod": st.just({"start": "2020-01-01"}),
        "component": st.lists(components, max_size=3),
        "extension": st.lists(extensions, max_size=3),
        "contained": st.just([{"resourceType": "Patient", "id": "c"}]),
        "nonsense": st.one_of(words, st.just({"code": "x"}), st.just([{"code": "x"}, 7])),
        **values,
    },
)


@pytest.mark.parametrize("path", PATHS)
def test_these_paths_have_a_short_way(path: str) -> None:
    assert compile_route(fhirpath.read(path), "Observation", {"system": "a"}) is not None


@pytest.mark.parametrize("path", LONG_WAY)
def test_these_paths_are_the_librarys(path: str) -> None:
    assert compile_route(fhirpath.read(path), "Observation", {}) is None


def test_a_path_begins_with_the_type_of_the_resource_only_at_its_start() -> None:
    assert compile_route(fhirpath.read("Observation.status"), "Observation", {}) is not None
    assert compile_route(fhirpath.read("Observation.status"), "Patient", {}) is None
    assert compile_route(fhirpath.read("where(Observation.status = 'a')"), "Observation", {}) is None


def every_path(prefix: Json, paths: list[str]) -> Json:
    named = [column(f"c{number}", path, collection=True) for number, path in enumerate(paths)]
    return view({**prefix, "column": named}, resource="Observation", constant=[{"name": "system", "valueUri": "a"}])


TOP = every_path({}, PATHS)
BELOW = every_path({"forEach": "component"}, ["code.coding.code", "value.ofType(Quantity).value", "extension('a').url"])
PRIMITIVE = every_path({"forEach": "code.coding.code"}, ["$this", "$this.first()"])


def both_ways(definition: Json) -> tuple[View, View]:
    read = read_definition(json.dumps(definition).encode())
    return View(read), View(read, short=False)


COMPILED = [both_ways(definition) for definition in (TOP, BELOW, PRIMITIVE)]


def lines(compiled: View, resource: Json) -> bytes:
    request = read_request(parameters({}, [resource]))
    return b"".join(run(compiled, request, null_columns=False))


@settings(max_examples=200, deadline=None)
@given(observations)
def test_both_ways_give_the_same(observation: Json) -> None:
    for short, long in COMPILED:
        assert lines(short, observation) == lines(long, observation)


# Whole elements are left out: they would show what they contain.
WHOLE = {"value", "value.ofType(Quantity)", "code.coding.where($this.code = 'b')", "contained"}
SIMPLE = both_ways(every_path({}, [path for path in PATHS if path not in WHOLE]))[0]


@settings(max_examples=50, deadline=None)
@given(observations, st.data())
def test_ids_and_extensions_of_primitives_change_nothing(observation: Json, data: st.DataObject) -> None:
    companion = st.one_of(st.just({"id": "x"}), st.just({"extension": [{"url": "a", "valueString": "no"}]}))
    dressed = json.loads(json.dumps(observation))
    for each in [dressed, *dressed.get("component", []), *dressed.get("code", {}).get("coding", [])]:
        for name in [key for key, item in each.items() if isinstance(item, str) and key != "resourceType"]:
            if data.draw(st.booleans()):
                each[f"_{name}"] = data.draw(companion)
    assert lines(SIMPLE, dressed) == lines(SIMPLE, observation)
