"""All token and date search parameters that R4 defines for a type filter a group, and no others (document 3 §3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from deployments.sandbox.extraction.parameters import search_elements
from deployments.sandbox.extraction.query import ExtractionGroup, read_query
from deployments.sandbox.extraction.selection import belongs
from tests.deployments.sandbox.extraction.conftest import attribute, code, concept, crtdl, group

TABLE = msgspec.json.decode((DEFINITIONS / "search-parameters.json").read_bytes())["parameters"]


def group_of(kind: str, filtered: dict[str, Any]) -> ExtractionGroup:
    """Return the group of a query as the server reads it."""
    query = crtdl(group("g", kind, attribute(f"{kind}.id"), filter=[filtered]))
    return read_query(msgspec.json.encode(query)).by_id["g"]


def token(name: str, *codes: dict[str, str]) -> dict[str, Any]:
    return {"type": "token", "name": name, "codes": list(codes)}


def date(name: str, start: str) -> dict[str, Any]:
    return {"type": "date", "name": name, "start": start}


def test_every_token_and_date_parameter_of_every_type_is_accepted() -> None:
    count = 0
    for kind, sorts in TABLE.items():
        kind = "Basic" if kind == "Resource" else kind
        for sort, known in sorts.items():
            for name in known:
                read = group_of(kind, token(name, code("s", "1")) if sort == "token" else date(name, "2025-01-01"))
                assert (read.tokens or read.date) or kind == "Patient"
                count += 1
    assert count == 812


PHONE = {"system": "phone", "value": "1"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("Substance", token("code", code("s", "1")), {"code": concept("s", "1")}, True),
    ("Substance", token("code", code("s", "1")),
     {"ingredient": [{"substanceCodeableConcept": concept("s", "1")}]}, True),
    ("Substance", token("code", code("s", "1")), {"category": [concept("s", "1")]}, False),
    ("PractitionerRole", date("date", "2025-01-01"), {"period": {"start": "2024-01-01"}}, True),
    ("PractitionerRole", date("date", "2025-01-01"), {"period": {"end": "2024-01-01"}}, False),
    ("PractitionerRole", token("active", code("s", "true")), {"active": True}, True),
    ("PractitionerRole", token("active", code("s", "true")), {"active": False}, False),
    ("PractitionerRole", token("phone", code("phone", "1")), {"telecom": [PHONE]}, True),
    ("PractitionerRole", token("email", code("phone", "1")), {"telecom": [PHONE]}, False),
    ("Encounter", token("identifier", code("s", "1")), {"identifier": [{"system": "s", "value": "1"}]}, True),
    ("Encounter", token("identifier", code("s", "1")), {"identifier": [{"system": "t", "value": "1"}]}, False),
    ("Observation", token("combo-code", code("s", "1")), {"component": [{"code": concept("s", "1")}]}, True),
    ("Observation", date("value-date", "2025-01-01"), {"valueDateTime": "2025-06"}, True),
    ("Observation", token("gene-identifier", code("s", "1")),
     {"extension": [{"url": "http://hl7.org/fhir/StructureDefinition/observation-geneticsGene",
                     "valueCodeableConcept": concept("s", "1")}]}, True),
    ("Observation", token("gene-identifier", code("s", "1")),
     {"extension": [{"url": "http://example.org/other", "valueCodeableConcept": concept("s", "1")}]}, False),
    ("Observation", token("_tag", code("s", "1")), {"meta": {"tag": [{"system": "s", "code": "1"}]}}, True),
    ("Observation", date("_lastUpdated", "2025-01-01"), {"meta": {"lastUpdated": "2024-01-01T00:00:00Z"}}, False),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "filtered", "content", "fits"), CASES)
def test_a_filter_looks_where_r4_says(kind: str, filtered: dict[str, Any], content: dict[str, Any], fits: bool) -> None:
    node = {"resourceType": kind, "id": "x"} | content
    assert belongs(node, group_of(kind, filtered)) is fits


def test_a_parameter_of_another_kind_or_type_is_none() -> None:
    assert search_elements("Substance", "token", "expiry") == ()
    assert search_elements("Substance", "date", "code") == ()
    assert search_elements("Substance", "token", "combo-code") == ()
    assert search_elements("Substance", "token", "_id") == search_elements("Patient", "token", "_id") != ()
