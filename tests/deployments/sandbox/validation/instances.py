"""Generated instances of FHIR types: structurally valid, otherwise meaningless."""

from __future__ import annotations

import random
from typing import Any

from deployments.sandbox.common.definitions.schema import Definition, ElementContent, Property, load_schema

Json = dict[str, Any]
SCHEMA = load_schema()
VALUES: dict[str, Any] = {
    "base64Binary": "QUJD",
    "boolean": True,
    "canonical": "http://example.org/c|1",
    "code": "some-code",
    "date": "2024-02-29",
    "dateTime": "2024-02-29T10:00:00+01:00",
    "decimal": 1.5,
    "id": "an-id",
    "instant": "2024-02-29T10:00:00.123Z",
    "integer": -7,
    "markdown": "*text*\n",
    "oid": "urn:oid:1.2.3",
    "positiveInt": 1,
    "string": "text",
    "time": "23:59:59",
    "unsignedInt": 0,
    "uri": "http://example.org/u",
    "url": "http://example.org/l",
    "uuid": "urn:uuid:c757873d-ec9a-4326-a141-556f43239520",
    "xhtml": '<div xmlns="http://www.w3.org/1999/xhtml">x</div>',
}


def instance(name: str, chance: random.Random, depth: int = 2) -> Json:
    """Return an instance with the required and some optional elements; ``depth`` limits the optional objects."""
    definition = SCHEMA.definitions[name]
    made: Json = {}
    taken = _closed_choices(definition, chance)
    for key, found in definition.properties.items():
        is_required = any(key == keys[0] for keys in definition.required.values())
        if found.content is ElementContent.RESOURCE_TYPE:
            made[key] = name
        elif (
            key.startswith("_") or found.content is ElementContent.RESOURCE or key in ("extension", "modifierExtension")
        ):
            continue
        elif is_required or (key not in taken and chance.random() < 0.3 and (depth or _is_simple(found))):
            made[key] = _value(found, chance, depth)
    if not made.keys() - {"id"}:
        made["extension"] = [{"url": "http://example.org/e", "valueBoolean": True}]
    return made


def _closed_choices(definition: Definition, chance: random.Random) -> set[str]:
    """Return the choice properties that are not used: all but one of each choice, the first of a required one."""
    closed: set[str] = set()
    for base, keys in definition.choices.items():
        required = definition.required.get(base)
        closed |= keys - {required[0] if required else chance.choice(sorted(keys))}
    return closed


def _is_simple(found: Property) -> bool:
    return found.content is ElementContent.PRIMITIVE


def _value(found: Property, chance: random.Random, depth: int) -> Any:
    value: Any
    if found.codes is not None:
        value = chance.choice(sorted(found.codes))
    elif found.content is ElementContent.PRIMITIVE:
        value = VALUES[found.type]
    elif found.concepts is not None:
        system, code = chance.choice(sorted(found.concepts))
        value = {"coding": [{"system": system, "code": code}]}
    else:
        value = instance(found.type, chance, max(0, depth - 1))
    return [value] if found.is_list else value
