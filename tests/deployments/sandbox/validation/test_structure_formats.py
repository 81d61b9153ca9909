"""Formats of primitive values (FHIR R4, data types; the published schema's patterns)."""

from __future__ import annotations

import base64
import re
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from deployments.sandbox.validation.structure import has_json_type, is_well_formed

PUBLISHED = msgspec.json.decode((DEFINITIONS / "fhir.schema.json").read_bytes())["definitions"]
BASE64_PATTERN = PUBLISHED["Extension"]["properties"]["valueBase64Binary"]["pattern"]


def well_formed(kind: str, value: object) -> bool:
    return is_well_formed(kind, PUBLISHED[kind].get("pattern"), value)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("id", ["a", "A-1.b", "x" * 64], ["", "a_b", "ä", "x" * 65, "a\n"]),
        ("code", ["a", "a b", "ä"], ["", " a", "a ", "a  b"]),
        ("uri", ["http://a.b", "urn:uuid:1", "ä", ""], ["a b", "a\n"]),
        ("oid", ["urn:oid:1.2.3"], ["1.2.3", "urn:oid:3.1", "urn:oid:1.02"]),
        ("date", ["2024", "2024-12", "2024-02-29"], ["24", "2024-13", "2023-02-29", "2024-1-1", "0000", "2024-01-01T"]),
        (
            "dateTime",
            ["2024", "2024-01-01T24:00:00Z".replace("24:00", "23:59")],
            ["2024-01-01T10:00Z", "2024-01-01T10:00:00"],
        ),
        (
            "instant",
            ["2024-01-01T10:00:00.5+14:00"],
            ["2024-01-01", "2024-01-01T10:00:00+15:00", "2024-04-31T10:00:00Z"],
        ),
        ("time", ["00:00:00", "23:59:60.1"], ["24:00:00", "10:00", "10:00:00Z"]),
        ("string", ["a", " ", "zwölf", "a\tb\r\n", "a b"], ["", "\x0b"]),
        ("markdown", ["a\nb"], [""]),
        ("integer", [0, -5, 2**31 - 1, -(2**31)], [2**31, 1.5, 1.0]),
        ("unsignedInt", [0, 7], [-1, 2**31]),
        ("positiveInt", [1], [0, -1]),
        ("decimal", [0, 1.5, -2], []),
        ("boolean", [True, False], []),
    ],
)
def test_formats(kind: str, good: list[object], bad: list[object]) -> None:
    assert [each for each in good if not (has_json_type(kind, each) and well_formed(kind, each))] == []
    assert [each for each in bad if well_formed(kind, each)] == []


def test_the_json_type_is_that_of_the_primitive() -> None:
    assert has_json_type("decimal", 1)
    assert not has_json_type("decimal", "1")
    assert not has_json_type("integer", True)
    assert not has_json_type("boolean", 0)
    assert not has_json_type("date", 2024)


@given(st.text("AB+/=\n ", max_size=14))
def test_base64_follows_the_published_pattern(text: str) -> None:
    published = re.compile(BASE64_PATTERN, re.ASCII).fullmatch(text) is not None
    assert is_well_formed("base64Binary", BASE64_PATTERN, text) is published


def test_base64_with_an_error_at_its_end_takes_no_time() -> None:
    text = base64.encodebytes(b"x" * 300_000).decode() + "!"
    began = time.process_time()
    assert not is_well_formed("base64Binary", BASE64_PATTERN, text)
    assert time.process_time() - began < 1
