"""The body of a request: Parameters with one view and its resources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.sandbox.flattening.problem import RequestError
from deployments.sandbox.flattening.request import read_request
from tests.deployments.sandbox.flattening.support import one, parameters

VIEW = {"name": "viewDefinition", "resource": one("id")}
PATIENT = {"name": "resources", "resource": {"resourceType": "Patient", "id": "kanarienvogel"}}


def body(*parameter: Any, kind: Any = "Parameters") -> bytes:
    return json.dumps({"resourceType": kind, "parameter": list(parameter)}).encode()


def test_resources_come_in_order_wherever_the_view_stands() -> None:
    other = {"name": "resources", "resource": {"resourceType": "Patient", "id": "2"}}
    request = read_request(body(PATIENT, VIEW, other))
    assert len(request) == 2
    assert [each.data["id"] for each in request.resources()] == ["kanarienvogel", "2"]
    assert json.loads(request.view) == one("id")


def test_a_pretty_printed_body_is_as_good() -> None:
    request = read_request(json.dumps(json.loads(body(VIEW, PATIENT)), indent=2).encode())
    assert [each.data["id"] for each in request.resources()] == ["kanarienvogel"]


def test_no_resource_is_no_error() -> None:
    assert list(read_request(body(VIEW)).resources()) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        parameters(one("id"), [b'{"a":' * 5000 + b"1" + b"}" * 5000]),
        body(VIEW, PATIENT)[:-5],
        body(VIEW, kind="Bundle"),
        body(VIEW, kind=7),
        b'{"parameter":[]}',
        b'{"resourceType":"Parameters","parameter":{}}',
        body(),
        body(PATIENT),
        body(VIEW, VIEW, PATIENT),
        body(VIEW, {"name": "resource", "resource": {"resourceType": "Patient"}}),
        body(VIEW, {"name": "resources"}),
        body(VIEW, {"name": "resources", "valueString": "kanarienvogel"}),
        body(VIEW, {"resource": {"resourceType": "Patient", "id": "kanarienvogel"}}),
        body(VIEW, "kanarienvogel"),
    ],
)
def test_what_is_no_such_body_is_an_error_without_data(text: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(text)
    assert "kanarienvogel" not in caught.value.diagnostics


@pytest.mark.parametrize("resource", [b"[]", b"7", b"null", b'{"value":1E999999999}'])
def test_a_resource_that_cannot_be_read_is_named_by_its_number(resource: bytes) -> None:
    text = parameters(one("id"), [PATIENT["resource"], resource])  # type: ignore[list-item]
    with pytest.raises(RequestError, match=r"resources\[1\]"):
        list(read_request(text).resources())
