"""Small lookup files and CRTDLs for the tests of the views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.flattening.lookup import LookupTable, read_lookup
from tasks.shared.fhir.crtdl import Attribute, AttributeGroup, Crtdl

URL = "https://example.org/StructureDefinition/diagnosis"

Json = dict[str, Any]


def column(*names: str) -> Json:
    """Return a clause with columns whose paths are their names."""
    return {"column": [{"name": name, "path": name} for name in names]}


def element(definition: Json | None = None, *children: str, parent: str | None = None) -> Json:
    """Return an element of a lookup table."""
    written: Json = {"viewDefinition": definition if definition is not None else column("x")}
    if children:
        written["children"] = list(children)
    return written | ({"parent": parent} if parent is not None else {})


def table(elements: Json, *, url: str = URL, kind: str = "Condition") -> Json:
    """Return a table of a lookup file."""
    return {"url": url, "resourceType": kind, "elements": elements}


def write(directory: Path, document: Any) -> Path:
    """Write a lookup file with this content."""
    path = directory / "lookup.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def lookup_of(directory: Path, *tables: Json) -> dict[str, LookupTable]:
    """Return the lookup that these tables make; there must be nothing wrong with them."""
    read = read_lookup(write(directory, list(tables)))
    assert read.findings == []
    return read.tables


def group(*attributes: str, reference: str = URL, name: str | None = "Diagnoses", key: str = "g-1") -> AttributeGroup:
    """Return an attribute group."""
    return AttributeGroup(key, name, reference, tuple(Attribute(ref, must_have=False) for ref in attributes))


def crtdl(*groups: AttributeGroup) -> Crtdl:
    """Return a CRTDL with these groups."""
    return groups
