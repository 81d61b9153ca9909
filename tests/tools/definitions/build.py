"""Makes ``fhir.schema.json`` and ``rules.json``: ``python -m tests.tools.definitions.build SOURCE_DIR``.

``SOURCE_DIR`` holds three files of FHIR R4 (4.0.1); ``README.md`` of ``DEFINITIONS`` names their sources:
``fhir.schema.json``, ``profiles-resources.xml`` and ``profiles-types.xml``. The same input gives the same bytes.

``fhir.schema.json``
    The published JSON schema without descriptions, and without what 4.0.1 does not define: a property or type that the
    StructureDefinitions do not know (a packager's own additions) is dropped and named on stdout.
``rules.json``
    What the schema cannot say, from the StructureDefinitions: required elements, choice types, invariants.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from deployments.sandbox.common.definitions.schema import DEFINITIONS

VERSION = "4.0.1"
_REFERENCE = "#/definitions/"
_FHIR = "{http://hl7.org/fhir}"
_TYPES = "http://hl7.org/fhir/StructureDefinition/"
_BEST_PRACTICE = f"{_TYPES}elementdefinition-bestpractice"
_KEYWORDS = frozenset({"$ref", "type", "items", "enum", "const", "pattern", "properties", "required", "oneOf"})

Json = dict[str, Any]


@dataclass(frozen=True)
class Constraint:
    """An invariant, as an element of a StructureDefinition names it."""

    key: str
    severity: str
    human: str
    expression: str
    source: str
    """URL of the type that it is inherited from, or of the type itself."""
    best_practice: bool


@dataclass(frozen=True)
class StructureElement:
    """An element of a snapshot, as far as it is of use here."""

    path: str
    required: bool
    types: list[str]
    constraints: list[Constraint]


@dataclass(frozen=True)
class Structure:
    """A StructureDefinition of a resource or a complex type."""

    name: str
    is_resource: bool
    is_abstract: bool
    elements: list[StructureElement]


class SourceError(Exception):
    """The source files do not fit together; the message says where."""


def build(source: Path, target: Path) -> list[str]:
    """Write both files; returns the names of what was dropped. Raises ``SourceError``."""
    published = json.loads((source / "fhir.schema.json").read_text(encoding="utf-8"))
    structures = list(_structures(source))
    schema, rules, dropped = assemble(published, structures)
    write(target / "fhir.schema.json", schema)
    write(target / "rules.json", rules)
    return dropped


def assemble(published: Json, structures: list[Structure]) -> tuple[Json, Json, list[str]]:
    """Return the trimmed schema, the rules, and the names of what was dropped."""
    definitions: dict[str, Json] = {name: _bare(body) for name, body in published["definitions"].items()}
    collected = _Collector(definitions)
    for structure in sorted(structures, key=lambda each: each.name):
        collected.add_structure(structure)
    kept, dropped = collected.trimmed()
    types = sorted(each.name for each in structures if each.is_resource and not each.is_abstract)
    kept["ResourceList"] = {"oneOf": [{"$ref": _REFERENCE + name} for name in types]}
    schema = {key: published[key] for key in ("$schema", "id")} | {"definitions": dict(sorted(kept.items()))}
    rules = {"resources": types, "types": collected.types, "invariants": collected.invariants}
    return schema, rules, dropped


class _Collector:
    """Collector of StructureDefinitions along the schema: an element's path leads to the schema's definition."""

    def __init__(self, definitions: dict[str, Json]) -> None:
        self._definitions = definitions
        self._known: dict[str, set[str]] = {}
        self.types: dict[str, Json] = {}
        self.invariants: dict[str, Json] = {}

    def add_structure(self, structure: Structure) -> None:
        """Add the elements of one type. Raises ``SourceError``."""
        if structure.name not in self._definitions:
            if structure.is_abstract:
                return  # an abstract type has no instances, hence no place in the schema
            raise SourceError(f"the schema does not know {structure.name}")
        root, *elements = structure.elements
        at = {root.path: structure.name}
        self._begin(structure.name, root)
        for element in elements:
            above, _, name = element.path.rpartition(".")
            owner = at[above]
            keys = self._add(owner, name, element)
            target = self._definitions[owner]["properties"][keys[0]]
            reference = str(target.get("items", target).get("$ref", "")).removeprefix(_REFERENCE)
            if _is_backbone(element):
                at[element.path] = reference
                self._begin(reference, element)

    def _begin(self, definition: str, element: StructureElement) -> None:
        if definition in self.types:
            raise SourceError(f"{definition} stands for two elements, one of them {element.path}")
        self._known[definition] = set()
        names = self._name_invariants(element)
        entry: Json = {"path": element.path, "required": [], "choices": {}, "invariants": names, "of_elements": {}}
        self.types[definition] = entry

    def _add(self, owner: str, name: str, element: StructureElement) -> list[str]:
        """Add an element to its owner; returns its names in JSON, several for a choice. Raises ``SourceError``."""
        entry, properties = self.types[owner], self._definitions[owner]["properties"]
        base = name.removesuffix("[x]")
        keys = [base]
        if name != base:
            keys = [base + code[0].upper() + code[1:] for code in element.types]
            entry["choices"][base] = dict(zip(keys, element.types, strict=True))
        if missing := [key for key in keys if key not in properties]:
            raise SourceError(f"{element.path}: the schema has no {missing}")
        self._known[owner].update(keys, (f"_{key}" for key in keys))
        if element.required:
            entry["required"].append(base)
        if not _is_backbone(element) and (names := self._name_invariants(element)):
            entry["of_elements"][base] = names
        return keys

    def _name_invariants(self, element: StructureElement) -> list[str]:
        """Put the invariants of an element into the common list; returns their names there.

        At the root these are the type's and its ancestors'. Below it those that come with the element's type are left
        to that type. ``ele-1`` is left to the structural check: it holds for every element there is.
        """
        names = []
        is_root = "." not in element.path
        for each in element.constraints:
            inherited = each.source not in ("", _TYPES + element.path.partition(".")[0])
            if each.key == "ele-1" or (inherited and not is_root):
                continue
            body = {key: value for key, value in asdict(each).items() if key not in ("key", "source")}
            name = each.key
            if self.invariants.setdefault(name, body) != body:
                name = f"{name}@{element.path}"
                self.invariants[name] = body
            names.append(name)
        return names

    def trimmed(self) -> tuple[dict[str, Json], list[str]]:
        """Return the definitions that the StructureDefinitions know, and the names of the others."""
        kept: dict[str, Json] = {}
        dropped: list[str] = []
        for name, body in self._definitions.items():
            if "properties" not in body:
                kept[name] = body
            elif name not in self._known:
                dropped.append(name)
            else:
                known = self._known[name] | {"resourceType"}
                dropped += [f"{name}.{key}" for key in body["properties"] if key not in known]
                kept[name] = body | {"properties": {k: v for k, v in body["properties"].items() if k in known}}
        return kept, sorted(dropped)


def _is_backbone(element: StructureElement) -> bool:
    """Return whether the element's own children are defined in place."""
    return element.types in (["BackboneElement"], ["Element"])


def _bare(node: Any) -> Any:
    """A part of the schema without descriptions. Raises ``SourceError`` for a keyword the service does not know."""
    if "properties" in node:
        properties = {name: _bare(value) for name, value in node["properties"].items()}
        rest = {key: value for key, value in node.items() if key not in ("properties", "description")}
        if rest.pop("additionalProperties", False) is not False or rest.keys() - {"required"}:
            raise SourceError(f"unknown keywords {sorted(rest)}")
        return {"type": "object", "properties": properties, "additionalProperties": False} | rest
    bare = {key: value for key, value in node.items() if key != "description"}
    if unknown := bare.keys() - _KEYWORDS:
        raise SourceError(f"unknown keywords {sorted(unknown)}")
    return bare


def _structures(source: Path) -> Iterator[Structure]:
    """Yield the StructureDefinitions that are types, not profiles or logical models. Raises ``SourceError``."""
    for name in ("profiles-resources.xml", "profiles-types.xml"):
        try:
            document = ET.parse(source / name)
        except ET.ParseError as error:
            raise SourceError(f"{name}: {error}") from None
        for found in document.iter(f"{_FHIR}StructureDefinition"):
            if (version := _value(found, "fhirVersion")) != VERSION:
                raise SourceError(f"{name}: {_value(found, 'name')} is of version {version}, expected {VERSION}")
            kind = _value(found, "kind")
            if kind in ("resource", "complex-type") and _value(found, "derivation") != "constraint":
                elements = [_element(each) for each in found.iterfind(f"{_FHIR}snapshot/{_FHIR}element")]
                is_abstract = _value(found, "abstract") == "true"
                yield Structure(_value(found, "name"), kind == "resource", is_abstract, elements)


def _element(found: ET.Element) -> StructureElement:
    return StructureElement(
        path=_value(found, "path"),
        required=_value(found, "min") != "0",
        types=[_value(each, "code") for each in found.iterfind(f"{_FHIR}type")],
        constraints=[_constraint(each) for each in found.iterfind(f"{_FHIR}constraint")],
    )


def _constraint(found: ET.Element) -> Constraint:
    return Constraint(
        key=_value(found, "key"),
        severity=_value(found, "severity"),
        human=_value(found, "human"),
        expression=_value(found, "expression"),
        source=_value(found, "source"),
        best_practice=any(each.get("url") == _BEST_PRACTICE for each in found.iterfind(f"{_FHIR}extension")),
    )


def _value(found: ET.Element, name: str) -> str:
    child = found.find(_FHIR + name)
    return "" if child is None else child.get("value", "")


def write(path: Path, document: Json) -> None:
    """One entry per line, so that a new version shows its differences."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"{json.dumps(name)}:{_compact(body)}" for name, body in value.items())
            lines.append(f"{json.dumps(key)}:{{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}:{_compact(value)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    if len(words) != 1:
        sys.stderr.write("usage: python -m tests.tools.definitions.build SOURCE_DIR\n")
        return 2
    try:
        dropped = build(Path(words[0]), DEFINITIONS)
    except (OSError, SourceError) as error:
        sys.stderr.write(f"build: {error}\n")
        return 1
    sys.stdout.writelines(f"dropped {name}\n" for name in dropped)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
