"""Replacing ids and references within resources without changing the rest."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from deployments.sandbox.fhir.resource import local_target, read_new_resource, read_resource, references, resolve

BASE = "http://127.0.0.1:1/fhir"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["Patient/1", "urn:uuid:a", "#x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("reference"), inner, max_size=3),
    max_leaves=12,
)
documents = st.dictionaries(st.text(), values, max_size=5)


@given(documents, st.sampled_from([None, "old"]), st.sampled_from([None, 1, "\t"]))
def test_a_created_resource_is_its_source_with_the_new_id(
    document: dict[str, Any], own: str | None, indent: str | None
) -> None:
    document = document | {"resourceType": "Basic"} | ({"id": own} if own else {})
    if not own:
        document.pop("id", None)
    body = json.dumps(document, indent=indent).encode()
    made = read_new_resource(body, "Basic", "new")
    assert json.loads(made.body) == document | {"id": "new"}


@given(documents, st.booleans())
def test_a_stored_resource_keeps_its_bytes(document: dict[str, Any], ascii_only: bool) -> None:
    body = json.dumps(document | {"resourceType": "Basic", "id": "a"}, ensure_ascii=ascii_only)
    encoded = body.encode("utf-8", "surrogatepass") if ascii_only else body.encode("utf-8", "replace")
    assert read_resource(encoded, "Basic", "a").body == encoded


@given(documents)
def test_resolving_changes_the_named_references_and_nothing_else(document: dict[str, Any]) -> None:
    body = json.dumps(document).encode()
    resolved = resolve(body, {"urn:uuid:a": "Patient/9"})

    def expect(node: Any) -> Any:
        if isinstance(node, dict):
            return {
                name: "Patient/9" if name == "reference" and value == "urn:uuid:a" else expect(value)
                for name, value in node.items()
            }
        return [expect(item) for item in node] if isinstance(node, list) else node

    assert json.loads(resolved) == expect(document)


def test_text_that_looks_like_a_reference_is_left_alone() -> None:
    body = json.dumps({"div": 'say "reference": "urn:uuid:a" aloud'}).encode()
    assert resolve(body, {"urn:uuid:a": "Patient/9"}) == body


def test_the_path_of_a_reference_is_the_element_that_holds_it() -> None:
    document = {"participant": [{"individual": {"reference": "Practitioner/1"}}], "subject": {"reference": "Patient/2"}}
    assert list(references(document)) == [
        (("participant", "individual"), "Practitioner/1"),
        (("subject",), "Patient/2"),
    ]


def test_references_are_local_by_their_form() -> None:
    assert local_target("Patient/1", BASE) == "Patient/1"
    assert local_target(f"{BASE}/Patient/1/_history/2", BASE) == "Patient/1"
    assert local_target("http://127.0.0.1:2/fhir/Patient/1", BASE) is None
    assert local_target("#p", BASE) is None
    assert local_target("urn:uuid:a", BASE) == "urn:uuid:a"
