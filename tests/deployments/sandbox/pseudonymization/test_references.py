"""The id in a reference."""

from __future__ import annotations

import pytest

from deployments.sandbox.pseudonymization.model import child
from deployments.sandbox.pseudonymization.references import holds_reference, referenced_type, with_id


@pytest.mark.parametrize(
    ("reference", "changed"),
    [
        ("Patient/a-1", "Patient/<a-1>"),
        ("Patient/a-1/_history/2", "Patient/<a-1>/_history/2"),
        ("https://my-host.example:8443/fhir/Patient/a.1", "https://my-host.example:8443/fhir/Patient/<a.1>"),
        ("#contained", "#<contained>"),
        ("#", "#"),
        ("urn:uuid:0b3f1c0e-8a57-4f50-9c3c-7ad2f5a1d9a0", "urn:uuid:<0b3f1c0e-8a57-4f50-9c3c-7ad2f5a1d9a0>"),
        ("urn:oid:1.2.840.1", "urn:oid:<1.2.840.1>"),
        ("Patient?identifier=http://x-y.example/sid|4711", "Patient?identifier=http://x-y.example/sid|<4711>"),
        ("identifier=4711", "identifier=<4711>"),
        ("Wombat/1", "<Wombat/1>"),
        ("Patient/a?b=c", "<Patient/a?b=c>"),
        ("Patient/", "<Patient/>"),
    ],
)
def test_only_the_id_changes(reference: str, changed: str) -> None:
    assert with_id(reference, lambda part: f"<{part}>") == changed


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("Patient/1", "Patient"),
        ("http://x/fhir/Observation/1", "Observation"),
        ("Patient?identifier=1", "Patient"),
        ("identifier=1", None),
        ("#x", None),
        ("urn:oid:1.2.3", None),
    ],
)
def test_the_type_a_reference_names(reference: str, kind: str | None) -> None:
    assert referenced_type(reference) == kind


@pytest.mark.parametrize(
    ("path", "key", "value", "expected"),
    [
        ("Reference", "reference", "anything", True),
        ("Bundle.entry", "fullUrl", "http://x/Patient/1", True),
        ("Bundle.entry", "fullUrl", "urn:uuid:0b3f1c0e-8a57-4f50-9c3c-7ad2f5a1d9a0", False),
        ("Bundle.entry.request", "url", "Patient/1", True),
        ("Bundle.entry.request", "url", "Patient", False),
        ("Identifier", "system", "http://x/sid", False),
        ("Identifier", "value", "Patient/1", False),
    ],
)
def test_where_a_value_is_a_reference(path: str, key: str, value: str, expected: bool) -> None:
    element = child(path, key)
    assert element is not None
    assert holds_reference(element, value) is expected
