"""The table of R4's elements by which the measuring pass knows what stands at a path.

``tasks/release_report/r4_types.json`` is made of the sandbox's definitions: ``python -m
tests.tasks.release_report.test_r4_types`` prints it.
"""

from __future__ import annotations

import json

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from tasks.release_report import kinds

_LEFT_OUT = {"boolean", "decimal", "integer", "number", "unsignedInt", "positiveInt", "uri", "canonical", "oid", "uuid"}
"""Types of which a reader of the table needs to know nothing: what has no type is looked up like any text."""
_EVERYWHERE = {"id", "extension", "modifierExtension", "contained", "resourceType", "implicitRules"}


def made() -> str:
    """The table, as it must be: by type, or by part of one, the types of elements; ``|value`` is a choice's name."""
    schema = json.loads((DEFINITIONS / "fhir.schema.json").read_bytes())["definitions"]
    types = json.loads((DEFINITIONS / "rules.json").read_bytes())["types"]
    lines = []
    for name in sorted(types):
        chosen = {key: (kind, choice) for choice, keys in types[name]["choices"].items() for key, kind in keys.items()}
        found = {}
        for key, value in schema.get(name, {}).get("properties", {}).items():
            if key.startswith("_") or key in _EVERYWHERE:
                continue
            if key in chosen:
                kind, choice = chosen[key]
                found[key] = f"{kind}|{choice}"
                continue
            inside = value.get("items", value)
            kind = "code" if "enum" in inside else inside.get("$ref", "").rpartition("/")[2]
            if kind and kind not in _LEFT_OUT and (key, kind) != ("language", "code"):
                found[key] = kind
        if found:
            lines.append(f"  {json.dumps(name)}: " + json.dumps(found, separators=(",", ":")))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_the_table_is_that_of_the_definitions() -> None:
    assert kinds.TABLE.read_text() == made()


if __name__ == "__main__":
    print(made(), end="")
