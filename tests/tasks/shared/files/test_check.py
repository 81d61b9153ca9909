"""Resources are counted as resources from the import on, whatever shares a line (``4-product.md`` §5)."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.errors import DataError
from tasks.shared.fhir.sources import SourceNotes
from tasks.shared.files.check import LineCheck
from tests.tasks.shared.fhir.json_text import bundles, damaged

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
def test_a_bundle_counts_the_resources_in_its_entries_and_everything_else_one(
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


# Long lines


def checked(text: bytes, size: int, *, long: int = 8 << 20, **options: Any) -> Any:
    """Lines and resources, or reference and place of the error, with lines above ``long`` bytes read in parts."""
    with (
        mock.patch("tasks.shared.files.check._LONG", long),
        mock.patch("tasks.shared.fhir.cutter._PART", 20),
        mock.patch("tasks.shared.fhir.cutter._MOST", 80),
    ):
        check = LineCheck("a.ndjson", **options)
        try:
            for start in range(0, len(text), size):
                check.feed(text[start : start + size])
            check.finish()
        except DataError as error:
            return error.reference, error.context
    return check.lines, check.resources, check.notes


@pytest.mark.slow
@given(st.lists(st.one_of(bundles().map(lambda one: one.line), damaged()), max_size=4), st.integers(1, 90))
def test_a_line_that_is_read_in_parts_is_judged_as_one_that_is_read_whole(lines: list[bytes], size: int) -> None:
    text = b"\n".join(lines)
    for options in ({}, {"resources": True}):
        whole, parts = checked(text, size, **options), checked(text, size, long=0, **options)
        # A line that begins with something else than an object is cut off before it can be parsed.
        assert parts == whole or (parts[0], whole[0], parts[1]) == ("not-json", "not-object", whole[1])


@pytest.mark.slow
@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.sampled_from([",", ", ", "\t,"]), st.integers(1, 400))
def test_entries_of_any_size_are_counted(sizes: list[int], comma: str, size: int) -> None:
    inner = {"resourceType": "Bundle", "entry": [{"fullUrl": "x", "resource": PATIENT}] * 3}
    entries = [{"fullUrl": "y" * n, "resource": inner if n % 7 == 0 else PATIENT} for n in sizes]
    line = f'{{"resourceType":"Bundle","entry":[{comma.join(map(json.dumps, entries))}],"type":"batch"}}'
    assert checked(line.encode(), size, long=100)[:2] == (1, len(sizes))


@pytest.mark.parametrize("size", [1000, 1 << 18])
@pytest.mark.parametrize(
    "line",
    [
        b'{"resourceType":"Patient","id":"%b"}' % (b"x" * 3_000_000),
        b'{"resourceType":"Patient","id":"%b' % (b"\\" * 3_000_000),
        b'{"resourceType":"Patient","name":[%b]}' % b",".join([b"{}"] * 1_000_000),
        b'{"resourceType":"Bundle","entry":[{"resource":{"id":"%b"}}]}' % (b"x" * 3_000_000),
        b'{"resourceType":"Bundle","entry":[{"resource":{}},{"resource":%b"%b' % (b'{"a":' * 900, b"x" * 3_000_000),
        b'{"resourceType":"Bundle","entry":[],"meta":{"a":"%b"}}' % (b"x" * 3_000_000),
        b'{"resourceType":"List","entry":[%b]}' % b",".join([b'{"item":{}}'] * 300_000),
        b'{"entry":[%b],"resourceType":"Basic"}' % b",".join([b'{"resource":{}}'] * 300_000),
        b" " * 3_000_000,
    ],
    ids=["a text", "an open text", "a list", "an entry", "an open entry", "around", "a List", "a Basic", "blanks"],
)
def test_one_resource_above_the_limit_is_named_wherever_it_is_large(line: bytes, size: int) -> None:
    text = b'{"resourceType":"Patient"}\n' + line
    assert checked(text, size, largest=1 << 20) == ("resource-too-large", "a.ndjson:2")
    assert checked(text + b"\n{}\n", size, largest=1 << 20) == ("resource-too-large", "a.ndjson:2")


def test_brackets_without_end_are_no_json() -> None:
    text = b'{"resourceType":"Patient","name":' + b"[" * 3_000_000
    assert checked(text, 1 << 18) == checked(text, 1 << 18, long=100) == ("not-json", "a.ndjson:1")


@pytest.mark.slow
def test_a_bundle_of_any_length_is_read_in_parts() -> None:
    entries = b",".join(b'{"resource":{"resourceType":"Basic","id":"%d"}}' % number for number in range(300_000))
    for line in (
        b'{"resourceType":"Bundle","entry":[%b]}' % entries,
        b'{"entry":[%b],"resourceType":"Bundle"}' % entries,
    ):
        check = LineCheck("a.ndjson", largest=1 << 20)
        tracemalloc.start()
        try:
            for start in range(0, len(line), 1 << 16):
                check.feed(line[start : start + (1 << 16)])
            check.finish()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (check.lines, check.resources) == (1, 300_000)
        assert peak < 2_000_000 + 64_000 * 2 + 3_000_000, "a part of the entries, and what is made of it"


# Incomplete sources


def page(total: int | None, matches: int, *, following: bool = False, included: int = 0) -> dict[str, Any]:
    entries = [
        {"resource": PATIENT, "search": {"mode": "match"}} if n % 2 else {"resource": PATIENT} for n in range(matches)
    ]
    entries += [{"resource": PATIENT, "search": {"mode": "include"}} for _ in range(included)]
    link = [{"relation": "self", "url": "x"}] + ([{"relation": "next", "url": "y"}] if following else [])
    return {"resourceType": "Bundle", "type": "searchset", "link": link, "entry": entries} | (
        {} if total is None else {"total": total}
    )


@pytest.mark.parametrize("long", [0, 8 << 20])
@pytest.mark.parametrize(
    ("pages", "incomplete"),
    [
        ([page(3, 3)], False),
        ([page(3, 3, included=5)], False),
        ([page(None, 3)], False),
        ([page(0, 0)], False),
        ([page(3, 2)], True),
        ([page(3, 2, included=1)], True),
        ([page(3, 0)], True),
        ([page(3, 3, following=True)], True),
        ([page(None, 3, following=True)], True),
        ([page(5, 3, following=True), page(5, 2)], False),
        ([page(5, 2), page(5, 3, following=True)], False),
        ([page(5, 3, following=True), page(5, 1)], True),
        ([page(5, 2, following=True), page(5, 2, following=True)], True),
        ([page(None, 3, following=True), page(None, 1)], False),
        ([page(5, 3, following=True), page(5, 2), page(7, 7)], False),
        ([page(5, 3, following=True), page(5, 2), page(7, 6)], True),
        ([page(5, 3, following=True), page(7, 7)], True),
        ([page(5, 3, following=True), page(5, 2)] * 2, False),
        ([page(5, 3, following=True), page(None, 2)], False),  # the first page alone has the total
        ([page(None, 3, following=True), page(5, 2)], False),  # it was not known yet with the first page
        ([page(None, 3, following=True), page(7, 2, following=True), page(7, 2)], False),
        ([page(5, 3, following=True), page(None, 1)], True),
        ([page(None, 3, following=True), page(5, 1)], True),
        ([page(5, 2, following=True), page(None, 3, following=True)], True),
        ([page(5, 3), page(None, 2)], True),
        ([page(4, 3) | {"type": "history"}], False),
        ([page(4, 3) | {"type": "collection"}], False),
        ([page(4, 3) | {"total": "4"}], False),
    ],
)
def test_a_search_is_complete_when_all_its_pages_are_there(
    pages: list[dict[str, Any]], incomplete: bool, long: int
) -> None:
    text = "\n".join(map(json.dumps, pages)).encode()
    _, _, notes = checked(text, 100, long=long, source=True)
    assert bool(notes.incomplete()) is incomplete
    together = SourceNotes()
    for one in pages:  # the same pages, each in a file of its own
        together.add(checked(json.dumps(one).encode(), 100, long=long, source=True)[2])
    assert bool(together.incomplete()) is incomplete
    assert msgspec.json.decode(msgspec.json.encode(notes), type=SourceNotes) == notes


@pytest.mark.parametrize("long", [0, 8 << 20])
def test_outcomes_and_deletions_are_counted(long: int) -> None:
    def outcome(*severities: str) -> dict[str, Any]:
        return {"resourceType": "OperationOutcome", "issue": [{"severity": severity} for severity in severities]}

    lines = [
        bundle(PUT, {"resource": outcome("information", "warning")}, DELETE),
        bundle({"resource": outcome("information")}, {"resource": {"resourceType": "OperationOutcome", "issue": 7}}),
        bundle(DELETE, DELETE, PUT),
        outcome("error"),
        PATIENT,
    ]
    text = "\n".join(map(json.dumps, lines)).encode()
    _, resources, notes = checked(text, 100, long=long, source=True)
    assert resources == 7
    assert notes.outcomes == {"warning": 1, "information": 1, "other": 1, "error": 1}
    assert notes.deletions == 3
    outcomes, deletions = notes.warnings()
    assert "(error: 1, information: 1, other: 1, warning: 1)" in outcomes
    assert "(3 entries)" in deletions
    for severity in ("error", "fatal"):
        line = json.dumps(bundle(PUT, {"resource": outcome("information", severity)})).encode()
        assert checked(line, 100, long=long, source=True) == ("source-error", "a.ndjson:1")
        assert checked(line, 100, long=long)[:2] == (1, 2), "what a job made of it is no source"
