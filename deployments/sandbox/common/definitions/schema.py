"""FHIR R4 definitions, loaded once and prepared for checking resources.

The published JSON schema uses few keywords, so each of its definitions becomes a table of the allowed JSON properties.
``rules.json`` adds required elements, choice types and invariants, ``codes.json`` the codes of required bindings.

The package ``jsonschema`` reports only that a nested resource matches no branch of a ``oneOf``, without a location. The
tables give the exact location, in one pass with the invariants, which need them anyway. On the demo data they check
5,150 resources per second, ``jsonschema`` 500; a Bundle of 11 resources takes 0.4 ms against 169 ms, because ``oneOf``
tries each of the 146 types. Tests compare the results of both.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

DEFINITIONS = Path(__file__).parent
_REFERENCE = "#/definitions/"

Json = dict[str, Any]


class ElementContent(Enum):
    """Kind of content of a JSON property."""

    PRIMITIVE = "a primitive value"
    COMPLEX = "an object of a type"
    RESOURCE = "a whole resource"
    RESOURCE_TYPE = "the name of the resource's type"


@dataclass(frozen=True, slots=True)
class Invariant:
    """A constraint of a StructureDefinition."""

    name: str
    """Key, for example ``obs-6``, with the element's path if two rules share a key."""
    severity: str
    human: str
    expression: str
    best_practice: bool

    @property
    def key(self) -> str:
        """The key as in the specification."""
        return self.name.partition("@")[0]


@dataclass(frozen=True, slots=True)
class Property:
    """Allowed content of one JSON property of a type."""

    content: ElementContent
    type: str
    """FHIR type: a primitive or a definition of the schema; empty for a resource."""
    is_list: bool
    step: str
    """The element in FHIRPath, ``value.ofType(Quantity)`` for ``valueQuantity``."""
    partner: str
    """Name of the property with a primitive's extensions (``_birthDate``), and the reverse; else empty."""
    codes: frozenset[str] | None
    """Required codes, if the specification lists them."""
    concepts: frozenset[tuple[str, str]] | None
    """System and code of the required codes of a CodeableConcept, if the specification lists them."""
    pattern: str | None
    """The schema's pattern for a string value."""
    invariants: tuple[Invariant, ...]
    """Invariants of this element that do not belong to its type."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A resource, a data type, or an element with its own children."""

    name: str
    path: str
    """Path as in a StructureDefinition: ``Observation.component``."""
    properties: Mapping[str, Property]
    required: Mapping[str, tuple[str, ...]]
    """Required elements, with the JSON properties that satisfy each."""
    choices: Mapping[str, frozenset[str]]
    """Elements with a choice of types, with their JSON properties."""
    invariants: tuple[Invariant, ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """The FHIR R4 definitions."""

    resources: frozenset[str]
    definitions: Mapping[str, Definition]
    invariants: tuple[Invariant, ...]
    unlisted: Mapping[str, tuple[str, ...]]
    """Value sets of required bindings without a list of codes, with the elements bound to them."""


@functools.cache
def load_schema() -> Schema:
    """Return the bundled definitions. The first call takes 0.1 s."""
    published = msgspec.json.decode((DEFINITIONS / "fhir.schema.json").read_bytes())["definitions"]
    rules = msgspec.json.decode((DEFINITIONS / "rules.json").read_bytes())
    invariants = {name: Invariant(name=name, **body) for name, body in rules["invariants"].items()}
    lists = msgspec.json.decode((DEFINITIONS / "codes.json").read_bytes())
    bound = _Bound(lists)
    definitions = {
        name: _definition(name, published, entry, invariants, bound) for name, entry in sorted(rules["types"].items())
    }
    unlisted = {url: tuple(paths) for url, paths in lists["unlisted"].items()}
    return Schema(frozenset(rules["resources"]), definitions, tuple(invariants.values()), unlisted)


class _Bound:
    """Codes of required bindings; each value set is stored once."""

    def __init__(self, lists: Json) -> None:
        self._bindings: dict[str, str] = lists["bindings"]
        self._sets = {
            url: frozenset((system, code) for system, codes in systems.items() for code in codes)
            for url, systems in lists["value_sets"].items()
        }
        self._codes = {url: frozenset(code for _, code in pairs) for url, pairs in self._sets.items()}

    def concepts(self, path: str) -> frozenset[tuple[str, str]] | None:
        """Return the allowed systems and codes of an element, or None if any are allowed."""
        return self._sets.get(self._bindings.get(path, ""))

    def codes(self, path: str) -> frozenset[str] | None:
        """Return the allowed codes of a code element, or None if any are allowed."""
        return self._codes.get(self._bindings.get(path, ""))


def _definition(
    name: str, published: Json, entry: Json, invariants: Mapping[str, Invariant], bound: _Bound
) -> Definition:
    choices: dict[str, dict[str, str]] = entry["choices"]
    typed = {key: (base, kind) for base, kinds in choices.items() for key, kind in kinds.items()}
    properties: dict[str, Property] = {}
    for key, body in published[name]["properties"].items():
        element = key.removeprefix("_")
        base, kind = typed.get(element, (element, ""))
        local = () if key.startswith("_") else entry["of_elements"].get(base, ())
        properties[key] = _property(
            key,
            body,
            published,
            kind=kind,
            step=f"{base}.ofType({kind})" if kind else base,
            invariants=tuple(invariants[each] for each in local),
            bound=bound,
            path="" if key.startswith("_") else f"{entry['path']}.{base}",
        )
    return Definition(
        name=name,
        path=entry["path"],
        properties=properties,
        required={base: _satisfying(choices.get(base, (base,)), properties) for base in entry["required"]},
        choices={base: frozenset(_satisfying(kinds, properties)) for base, kinds in choices.items()},
        invariants=tuple(invariants[each] for each in entry["invariants"]),
    )


def _satisfying(keys: Mapping[str, str] | tuple[str, ...], properties: Mapping[str, Property]) -> tuple[str, ...]:
    """Return the properties that satisfy an element. A primitive can have extensions instead of a value."""
    return tuple(each for key in keys for each in (key, f"_{key}") if each in properties)


def _property(
    key: str,
    body: Json,
    published: Json,
    *,
    kind: str,
    step: str,
    invariants: tuple[Invariant, ...],
    bound: _Bound,
    path: str,
) -> Property:
    is_list = body.get("type") == "array"
    inner = body["items"] if is_list else body
    kind = kind if not key.startswith("_") else ""
    named = str(inner.get("$ref", "")).removeprefix(_REFERENCE)
    is_complex = "properties" in published.get(named, {})
    listed = frozenset(inner["enum"]) if "enum" in inner else None
    codes = None if is_complex else bound.codes(path) or listed
    content, pattern = ElementContent.PRIMITIVE, inner.get("pattern")
    if "const" in inner:
        content, kind = ElementContent.RESOURCE_TYPE, "code"
    elif named == "ResourceList":
        content, kind = ElementContent.RESOURCE, ""
    elif codes is not None:
        kind = "code"
    elif is_complex:
        content, kind = ElementContent.COMPLEX, named
    elif named:
        kind, pattern = named, published[named].get("pattern")
    concepts = bound.concepts(path) if kind == "CodeableConcept" else None
    partner = key[1:] if key.startswith("_") else (f"_{key}" if content is ElementContent.PRIMITIVE else "")
    return Property(content, kind, is_list, step, partner, codes, concepts, pattern, invariants)
