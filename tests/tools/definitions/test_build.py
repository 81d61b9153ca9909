"""The definitions are made from published files, the same way every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.definitions import build as module
from tests.tools.definitions.build import SourceError, build, main

SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-06/schema#",
    "id": "http://hl7.org/fhir/json-schema/4.0",
    "description": "to be dropped",
    "definitions": {
        "string": {"type": "string", "pattern": "^.+$", "description": "to be dropped"},
        "ResourceList": {"oneOf": [{"$ref": "#/definitions/Thing"}, {"$ref": "#/definitions/Extra"}]},
        "Element": {"properties": {"id": {"$ref": "#/definitions/string"}}, "additionalProperties": False},
        "Extra": {"properties": {}, "additionalProperties": False},
        "Thing": {
            "properties": {
                "resourceType": {"const": "Thing"},
                "description": {"$ref": "#/definitions/string", "description": "of an element called description"},
                "_description": {"$ref": "#/definitions/Element"},
                "valueString": {"type": "string", "pattern": "^.+$"},
                "_valueString": {"$ref": "#/definitions/Element"},
                "part": {"type": "array", "items": {"$ref": "#/definitions/Thing_Part"}},
                "addition": {"$ref": "#/definitions/string"},
            },
            "required": ["resourceType"],
            "additionalProperties": False,
        },
        "Thing_Part": {"properties": {"name": {"$ref": "#/definitions/string"}}, "additionalProperties": False},
    },
}


def constraint(key: str, source: str) -> str:
    return f"""<constraint><key value="{key}"/><severity value="error"/><human value="Rule {key}"/>
      <expression value="{key}.exists()"/><source value="http://hl7.org/fhir/StructureDefinition/{source}"/></constraint>"""


def structure(name: str, kind: str, elements: str, version: str = "4.0.1", abstract: str = "false") -> str:
    return f"""<entry><resource><StructureDefinition><name value="{name}"/><fhirVersion value="{version}"/>
      <kind value="{kind}"/><abstract value="{abstract}"/><derivation value="specialization"/>
      <snapshot>{elements}</snapshot></StructureDefinition></resource></entry>"""


def element(path: str, minimum: int, types: tuple[str, ...], rules: str = "") -> str:
    listed = "".join(f'<type><code value="{each}"/></type>' for each in types)
    return f'<element><path value="{path}"/><min value="{minimum}"/>{listed}{rules}</element>'


THING = structure(
    "Thing",
    "resource",
    element("Thing", 0, (), constraint("dom-1", "DomainResource") + constraint("thi-1", "Thing"))
    + element("Thing.description", 1, ("string",), constraint("ele-1", "Element") + constraint("thi-2", "Thing"))
    + element("Thing.value[x]", 1, ("string",), constraint("ele-1", "Element"))
    + element("Thing.part", 0, ("BackboneElement",), constraint("thi-3", "Thing") + constraint("ele-1", "Element"))
    + element("Thing.part.name", 1, ("string",), constraint("str-1", "string")),
)
ELEMENT = structure("Element", "complex-type", element("Element", 0, ()) + element("Element.id", 0, ("string",)))


def source(directory: Path, resources: str = THING, types: str = ELEMENT, schema: Any = SCHEMA) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "fhir.schema.json").write_text(json.dumps(schema))
    for name, entries in (("profiles-resources.xml", resources), ("profiles-types.xml", types)):
        (directory / name).write_text(f'<Bundle xmlns="http://hl7.org/fhir">{entries}</Bundle>')
    return directory


def made(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    schema = json.loads((tmp_path / "fhir.schema.json").read_text())
    rules = json.loads((tmp_path / "rules.json").read_text())
    return schema, rules


def test_it_keeps_the_schema_without_descriptions_and_without_a_packagers_additions(tmp_path: Path) -> None:
    dropped = build(source(tmp_path / "source"), tmp_path)
    schema, _ = made(tmp_path)
    assert dropped == ["Extra", "Thing.addition"]
    assert schema["id"] == SCHEMA["id"]
    assert schema["definitions"]["ResourceList"] == {"oneOf": [{"$ref": "#/definitions/Thing"}]}
    assert schema["definitions"]["string"] == {"type": "string", "pattern": "^.+$"}
    thing = schema["definitions"]["Thing"]
    assert thing["properties"]["description"] == {"$ref": "#/definitions/string"}
    assert thing["additionalProperties"] is False
    assert set(thing["properties"]) == set(SCHEMA["definitions"]["Thing"]["properties"]) - {"addition"}


def test_required_elements_choices_and_invariants_come_from_structure_definitions(tmp_path: Path) -> None:
    build(source(tmp_path / "source"), tmp_path)
    _, rules = made(tmp_path)
    assert rules["resources"] == ["Thing"]
    assert rules["types"]["Thing"] == {
        "path": "Thing",
        "required": ["description", "value"],
        "choices": {"value": {"valueString": "string"}},
        "invariants": ["dom-1", "thi-1"],
        "of_elements": {"description": ["thi-2"]},
    }
    assert rules["types"]["Thing_Part"]["path"] == "Thing.part"
    assert rules["types"]["Thing_Part"]["invariants"] == ["thi-3"]
    assert rules["types"]["Thing_Part"]["of_elements"] == {}
    assert rules["invariants"]["thi-1"] == {
        "severity": "error",
        "human": "Rule thi-1",
        "expression": "thi-1.exists()",
        "best_practice": False,
    }


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    outputs = []
    for name in ("a", "b"):
        target = tmp_path / name
        build(source(tmp_path / "source"), source(target))
        outputs.append([(target / file).read_bytes() for file in ("fhir.schema.json", "rules.json")])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"resources": THING.replace("4.0.1", "4.3.0")}, "Thing is of version 4.3.0"),
        ({"resources": THING.replace("Thing.part.name", "Thing.part.other")}, "has no ['other']"),
        ({"resources": THING + structure("Unknown", "resource", element("Unknown", 0, ()))}, "does not know Unknown"),
        ({"resources": "<entry>"}, "profiles-resources.xml: "),
        ({"schema": {**SCHEMA, "definitions": {"x": {"type": "string", "format": "date"}}}}, "['format']"),
    ],
)
def test_sources_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError) as caught:
        build(source(tmp_path / "source", **changes), tmp_path)
    assert said in str(caught.value)


def test_the_command_names_what_was_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "DEFINITIONS", tmp_path)
    assert main([str(source(tmp_path / "source"))]) == 0
    assert capsys.readouterr().out == "dropped Extra\ndropped Thing.addition\n"
    assert main([]) == 2
    assert main([str(tmp_path / "nowhere")]) == 1
