"""The rules of FHIR R4, read once and made ready for a walk over resources.

The published JSON schema uses few keywords, so each of its definitions becomes a table from a JSON property to what may
stand there; ``rules.json`` adds required elements, choice types and invariants, ``codes.json`` the codes of required
bindings. ``tests/tools/definitions/build.py`` and ``tests/tools/definitions/package.py`` make these files.

The package ``jsonschema`` reports only that a nested resource matches no branch of a ``oneOf``, without a place. The
tables give the exact one, in one pass with the invariants, which need them anyway. On the demo data they check 5,150
resources per second, ``jsonschema`` 500; a Bundle of 11 resources takes 0.4 ms against 169 ms, because ``oneOf`` tries
each of the 146 types. Tests compare the results of both.
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
    """What stands at a JSON property."""

    PRIMITIVE = "a primitive value"
    COMPLEX = "an object of a type"
    RESOURCE = "a whole resource"
    RESOURCE_TYPE = "the name of the resource's type"


@dataclass(frozen=True, slots=True)
class Invariant:
    """A constraint of a StructureDefinition."""

    name: str
    """Its key, for example ``obs-6``; with the element's path where one key stands for two rules."""
    severity: str
    human: str
    expression: str
    best_practice: bool

    @property
    def key(self) -> str:
        """The key as the specification has it."""
        return self.name.partition("@")[0]


@dataclass(frozen=True, slots=True)
class Property:
    """What may stand at one JSON property of a type."""

    content: ElementContent
    type: str
    """FHIR type: a primitive's name, a definition of the schema, empty for a resource."""
    is_list: bool
    step: str
    """The element in FHIRPath, ``value.ofType(Quantity)`` for ``valueQuantity``."""
    partner: str
    """For a primitive the property with its extensions (``_birthDate``), for that one the primitive's; else empty."""
    codes: frozenset[str] | None
    """The required codes, where the specification lists them."""
    concepts: frozenset[tuple[str, str]] | None
    """System and code of the required ones of a CodeableConcept, likewise."""
    pattern: str | None
    """The schema's pattern of a text value."""
    invariants: tuple[Invariant, ...]
    """Those that hold at this element and not for its type everywhere."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A resource, a data type, or an element with children of its own."""

    name: str
    path: str
    """As in a StructureDefinition: ``Observation.component``."""
    properties: Mapping[str, Property]
    required: Mapping[str, tuple[str, ...]]
    """Required elements with the JSON properties that satisfy each."""
    choices: Mapping[str, frozenset[str]]
    """Elements with a choice of types, with their JSON properties."""
    invariants: tuple[Invariant, ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """FHIR R4, as far as the definitions go."""

    resources: frozenset[str]
    definitions: Mapping[str, Definition]
    invariants: tuple[Invariant, ...]
    unlisted: Mapping[str, tuple[str, ...]]
    """Value sets of required bindings whose codes nobody lists, with the elements that they are bound to."""


@functools.cache
def load_schema() -> Schema:
    """The bundled definitions; 0.1 s the first time."""
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
    """The codes of required bindings, each value set once."""

    def __init__(self, lists: Json) -> None:
        self._bindings: dict[str, str] = lists["bindings"]
        self._sets = {
            url: frozenset((system, code) for system, codes in systems.items() for code in codes)
            for url, systems in lists["value_sets"].items()
        }
        self._codes = {url: frozenset(code for _, code in pairs) for url, pairs in self._sets.items()}

    def concepts(self, path: str) -> frozenset[tuple[str, str]] | None:
        """Systems and codes that an element may have; None for one that may have any."""
        return self._sets.get(self._bindings.get(path, ""))

    def codes(self, path: str) -> frozenset[str] | None:
        """The same without the systems, for a code element."""
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
    """The properties that give an element content: a primitive without a value may have extensions instead."""
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
