"""The R4 tables that tell the measuring pass which element is at a path.

``tasks/release_report/measure/r4_types.json`` is made of the sandbox's definitions: ``python -m
tests.tasks.release_report.measure.test_r4_types`` prints it. ``r4_named.json`` is made of the package that ``python
tests/real/get.py examples`` fetches: the same command with its directory prints that one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from tasks.release_report.measure import kinds
from tasks.shared.fhir.r4 import NAMED, PERSONS, PRACTITIONERS

_LEFT_OUT = {"boolean", "decimal", "integer", "number", "unsignedInt", "positiveInt", "uri", "canonical", "oid", "uuid"}
"""Types of which a reader of the table needs to know nothing: they stand there as ``""``."""
_EVERYWHERE = {"id", "extension", "modifierExtension", "contained"}


def made() -> str:
    """The table, as it must be: by type, or by part of one, the types of elements; ``|value`` is a choice's name."""
    schema = json.loads((DEFINITIONS / "fhir.schema.json").read_bytes())["definitions"]
    types = json.loads((DEFINITIONS / "rules.json").read_bytes())["types"]
    lines = []
    for name in sorted(types):
        chosen = {key: (kind, choice) for choice, keys in types[name]["choices"].items() for key, kind in keys.items()}
        found = {}
        for key, value in schema.get(name, {}).get("properties", {}).items():
            if key.startswith("_") or key in _EVERYWHERE or (key == "resourceType" and "_" not in name):
                continue
            if key in chosen:
                kind, choice = chosen[key]
                found[key] = f"{kind}|{choice}"
                continue
            inside = value.get("items", value)
            kind = "code" if "enum" in inside else inside.get("$ref", "").rpartition("/")[2]
            found[key] = "" if kind in _LEFT_OUT or (key, kind) == ("language", "code") else kind
        if found:
            lines.append(f"  {json.dumps(name)}: " + json.dumps(found, separators=(",", ":")))
    return "{\n" + ",\n".join(lines) + "\n}\n"


_PERSONS = PERSONS | PRACTITIONERS
_THINGS = {"Group", "Device", "Location", "Specimen", "Substance"}


def made_named(package: Path) -> str:
    """The table of references that may be to a person or an organization, by type: ``patient`` where of all those it
    can only be the patient, ``person`` where it is always a person, else ``name``."""
    types = json.loads((DEFINITIONS / "rules.json").read_bytes())["types"]
    within = {rule["path"]: name for name, rule in types.items()}
    found: dict[str, dict[str, str]] = {}
    for file in sorted(package.glob("StructureDefinition-*.json")):
        definition = json.loads(file.read_bytes())
        if definition.get("derivation") == "constraint":
            continue
        for element in definition["snapshot"]["element"]:
            head, _, name = element["path"].rpartition(".")
            for kind in element.get("type", ()):
                targets = {profile.rpartition("/")[2] for profile in kind.get("targetProfile", ())}
                if kind["code"] == "Reference" and targets & NAMED and head in within:
                    key = name.replace("[x]", "Reference")
                    word = "person" if targets <= _PERSONS else "name"
                    found.setdefault(within[head], {})[key] = "patient" if targets - _THINGS == {"Patient"} else word
    lines = (f"  {json.dumps(name)}: " + json.dumps(found[name], separators=(",", ":")) for name in sorted(found))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_the_table_is_that_of_the_definitions() -> None:
    assert kinds.TABLE.read_text() == made()


def test_what_refers_to_people_is_a_reference() -> None:
    """That the table is what the published package says is tested beside the sandbox's tables (tests/real)."""
    types = json.loads(kinds.TABLE.read_bytes())
    named = json.loads(kinds.NAMED.read_bytes())
    assert {types[within][name].partition("|")[0] for within, names in named.items() for name in names} == {"Reference"}
    assert {word for names in named.values() for word in names.values()} == {"patient", "person", "name"}


if __name__ == "__main__":
    print(made_named(Path(sys.argv[1])) if sys.argv[1:] else made(), end="")
