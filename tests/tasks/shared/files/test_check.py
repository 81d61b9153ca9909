"""Resources are counted as resources from the import on, whatever shares a line (``4-product.md`` §5)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.shared.files.check import LineCheck

PATIENT = {"resourceType": "Patient", "id": "p"}
PUT = {"fullUrl": "urn:uuid:1", "resource": PATIENT, "request": {"method": "PUT", "url": "Patient/p"}}
DELETE = {"request": {"method": "DELETE", "url": "Patient/p"}}


def bundle(*entries: Any) -> dict[str, Any]:
    return {"resourceType": "Bundle", "type": "transaction", "entry": list(entries)}


@pytest.mark.parametrize("resources", [True, False])
@pytest.mark.parametrize(
    ("lines", "count"),
    [
        ([PATIENT, PATIENT], 2),
        ([bundle(PUT, PUT, PUT)], 3),
        ([bundle(PUT, PUT), PATIENT, bundle(PUT)], 4),
        ([{"entry": [PUT, PUT], "id": "keys in another order", "resourceType": "Bundle"}], 2),
        ([bundle()], 0),
        ([{"resourceType": "Bundle", "type": "collection"}], 0),
        ([bundle(DELETE)], 0),
        ([bundle(PUT, PUT, DELETE)], 2),
        ([bundle(DELETE, PUT), bundle(PUT, DELETE, PUT)], 3),
        ([bundle({"resource": None, "response": {}}, PUT)], 1),
        ([{"resourceType": "List", "entry": [{"item": {}}, {"item": {}}]}], 1),
        ([{"resourceType": "Basic", "entry": "of another shape"}], 1),
        ([bundle(*[PUT] * 40)] * 20, 800),
    ],
)
def test_a_bundle_counts_for_the_resources_in_its_entries_and_everything_else_for_one(
    lines: list[dict[str, Any]], count: int, resources: bool
) -> None:
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    for size in (len(text), 7):
        check = LineCheck("a.ndjson", resources=resources)
        for start in range(0, len(text), size):
            check.feed(text[start : start + size])
        check.finish()
        assert (check.lines, check.resources) == (len(lines), count)


def test_in_a_directory_a_line_may_be_any_object_and_counts_for_one() -> None:
    check = LineCheck("a.ndjson")
    check.feed(b'{"a": 1}\n{"resourceType": 7, "entry": []}\n\n{}')
    check.finish()
    assert (check.lines, check.resources) == (3, 3)
