"""Paths of a lookup file that real runners refuse (document 3 §5), and the R4 table that finds them.

The table ``tasks/flattening/r4_paths.json`` is made of the sandbox's definitions: ``python -m
tests.tasks.flattening.test_r4_paths`` prints it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from tasks.flattening import lookup_model
from tasks.flattening.lookup import read_lookup
from tests.conftest import ROOT
from tests.tasks.flattening.lookups import Json, element, table, write


def made() -> str:
    """Return the table, as it must be."""
    schema = json.loads((DEFINITIONS / "fhir.schema.json").read_bytes())["definitions"]
    types = json.loads((DEFINITIONS / "rules.json").read_bytes())["types"]
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: {"choices": [], "concepts": []})
    own: dict[str, list[str]] = defaultdict(list)
    """Choices of data types, by type."""
    for rules in types.values():
        kind, _, below = rules["path"].partition(".")
        own[kind] += [f"{below}.{choice}".lstrip(".") for choice in rules["choices"]]
    for name, rules in types.items():
        kind, _, below = rules["path"].partition(".")
        chosen = {key for choice in rules["choices"].values() for key in choice}
        found[kind]["choices"] += [f"{below}.{choice}".lstrip(".") for choice in rules["choices"]]
        for key, value in schema[name].get("properties", {}).items():
            path = f"{below}.{key}".lstrip(".")
            reference = value.get("items", value).get("$ref", "").rpartition("/")[2]
            if key in chosen or reference in ("Extension", "ResourceList", kind):
                continue
            if reference == "CodeableConcept":
                found[kind]["concepts"].append(path)
            elif reference in types and types[reference]["path"] == reference:
                found[kind]["choices"] += [f"{path}.{choice}" for choice in own[reference]]
    lines = [
        f"  {json.dumps(kind)}: " + json.dumps({key: sorted(value) for key, value in found[kind].items() if value})
        for kind in sorted(found)
        if any(found[kind].values())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_the_table_is_that_of_the_definitions() -> None:
    assert (Path(lookup_model.__file__).parent / "r4_paths.json").read_text() == made()


def warned(tmp_path: Path, definition: Json, kind: str = "Observation", **more: Json) -> list[str]:
    elements: dict[str, Any] = {"e": element(definition, *more)} | {key: element(one) for key, one in more.items()}
    warnings = read_lookup(write(tmp_path, [table(elements, kind=kind)]))[2]
    return [one.partition(":")[0] for one in warnings if one.partition(":")[0] in ("bare-choice", "code-of-concept")]


def one(path: str, type_: str | None = None, **more: str) -> Json:
    return {"column": [{"name": "x", "path": path} | ({"type": type_} if type_ else {})], **more}


@pytest.mark.parametrize(
    ("definition", "kind"),
    [
        (one("effective"), "Observation"),
        (one("effective", "dateTime"), "Observation"),
        (one("Observation.value"), "Observation"),
        (one("value.unit"), "Observation"),
        (one("component.value"), "Observation"),
        (one("component[0].value"), "Observation"),
        (one("component.where(code.text = 'x.y').value"), "Observation"),
        (one("value", forEach="component"), "Observation"),
        (one("$this", forEach="effective"), "Observation"),
        (one("asNeeded", forEachOrNull="dosageInstruction"), "MedicationRequest"),
        (one("medication.reference"), "MedicationRequest"),
        (one("extension('http://x.y/z').value"), "Patient"),
        (one("deceased"), "Patient"),
    ],
)
def test_a_bare_choice_is_warned_of(tmp_path: Path, definition: Json, kind: str) -> None:
    assert warned(tmp_path, definition, kind) == ["bare-choice"]


@pytest.mark.parametrize(
    ("definition", "spelling"),
    [
        (one("effective", "dateTime"), "name the type, effective.ofType(dateTime)"),
        (one("effective"), "name the type, effective.ofType(TYPE), as in effective.ofType(dateTime)"),
        (one("value.unit", "string"), "name the type, value.ofType(TYPE).unit, as in effective.ofType(dateTime)"),
        (
            one("component.where(code.text = 'x.y').value", "http://hl7.org/fhirpath/System.String"),
            "name the type, component.where(code.text = 'x.y').value.ofType(TYPE), as in effective.ofType(dateTime)",
        ),
        (one("$this", forEach="effective"), "name the type, effective.ofType(TYPE), as in effective.ofType(dateTime)"),
    ],
)
def test_the_warning_names_the_typed_spelling(tmp_path: Path, definition: Json, spelling: str) -> None:
    (warning,) = read_lookup(write(tmp_path, [table({"e": element(definition)}, kind="Observation")]))[2]
    assert warning.endswith(spelling)


@pytest.mark.parametrize(
    "definition",
    [
        one("code", "code"),
        one("code.first()", "string"),
        one("$this", "code", forEach="category"),
        one("code", "code", forEach="component"),
        one("value.ofType(CodeableConcept)", "code"),
    ],
)
def test_a_code_over_a_codeable_concept_is_warned_of(tmp_path: Path, definition: Json) -> None:
    assert warned(tmp_path, definition) == ["code-of-concept"]


@pytest.mark.parametrize(
    "definition",
    [
        one("effective.ofType(dateTime)", "dateTime"),
        one("value.ofType(Quantity).value", "decimal"),
        one("value.ofType(Quantity).code", "code"),
        one("value.exists()", "boolean"),
        one("(value as Quantity).unit"),
        one("code.coding.code", "code"),
        one("code.text", "string"),
        one("code", "code", forEach="code.coding"),
        one("status", "code"),
        one("code"),
        one("code", "CodeableConcept"),
        one("extension.value.ofType(string)", "string"),
        one("of.something.else", "code"),
        one("subject.getReferenceKey(Patient)", "string"),
    ],
)
def test_what_runners_take_is_not(tmp_path: Path, definition: Json) -> None:
    assert warned(tmp_path, definition) == []


def test_paths_below_an_element_that_iterates_begin_there(tmp_path: Path) -> None:
    each = {"forEach": "component", "column": []}
    assert warned(tmp_path, each, child=one("value")) == ["bare-choice"]
    assert warned(tmp_path, {"forEach": "code.coding", "column": []}, child=one("code", "code")) == []


def test_a_choice_that_is_iterated_over_is_told_once(tmp_path: Path) -> None:
    each = {"forEach": "value", "column": [{"name": "a", "path": "unit"}]}
    assert warned(tmp_path, each, child=one("code", "code")) == ["bare-choice"]


def test_the_lookup_of_the_sandbox_has_none() -> None:
    assert read_lookup(ROOT / "deployments/sandbox/data/lookup.json")[2] == []


if __name__ == "__main__":
    print(made(), end="")
