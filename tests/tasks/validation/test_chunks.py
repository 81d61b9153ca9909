"""Chunks by bytes (document 3 §6; document 1, "The validation step chunks bundles to bundle_chunk_size_mb")."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.validation.chunks import HEAD, TAIL, Item, ItemReader, ResourcePlace, ValidationChunk, pack
from tests.conftest import examples
from tests.peers.data import bundle
from tests.peers.validation import patient, resource


class SentEntry(msgspec.Struct, rename="camel"):
    full_url: str
    resource: msgspec.Raw


class SentChunk(msgspec.Struct, rename="camel"):
    resource_type: str
    type: str
    entry: list[SentEntry]


def items_of(lines: list[bytes]) -> list[list[Item]]:
    return list(ItemReader("a.ndjson").groups(enumerate(lines, 1)))


def chunks_of(groups: list[list[Item]], limit: int, skip: int = 0) -> list[ValidationChunk]:
    return list(pack(((group, 0) for group in groups), file="a.ndjson", limit=limit, skip=skip))


def resources_in(chunk: ValidationChunk) -> list[bytes]:
    parsed = msgspec.json.decode(chunk.body, type=SentChunk)
    assert (parsed.resource_type, parsed.type) == ("Bundle", "collection")
    assert all(entry.full_url for entry in parsed.entry)
    return [bytes(entry.resource) for entry in parsed.entry]


def encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode()


numbers = st.sampled_from(["1.50", "1E2", "-0.0", "0.10", "123456789012345678901234567890"])


@st.composite
def lines(draw: st.DrawFn) -> list[bytes]:
    """Draw lines of plain resources and Bundles, of all sizes, with numbers in spellings that parsing would lose."""
    result: list[bytes] = []
    count = 0
    for _ in range(draw(st.integers(1, 8))):
        parts: list[str] = []
        for _ in range(draw(st.integers(0, 6))):
            text = json.dumps(
                draw(st.text(max_size=40)) + "x" * draw(st.integers(0, 300)), ensure_ascii=draw(st.booleans())
            )
            identity = f'"id":"o{count}",' if draw(st.booleans()) else ""
            count += 1
            parts.append(f'{{"resourceType":"Basic",{identity}"text":{text}, "v" :{draw(numbers)}}}')
        if len(parts) == 1:
            result.append(parts[0].encode("utf-8", "surrogatepass"))
        else:
            blank = draw(st.sampled_from(["", " ", "\t"]))
            entries = f"{blank},{blank}".join(f'{{"resource":{part}}}' for part in parts)
            result.append(
                f'{{"type":"batch","entry":[{entries}],"resourceType":"Bundle"}}'.encode("utf-8", "surrogatepass")
            )
    return result


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None)
@given(lines(), st.integers(100, 3000))
def test_every_resource_is_unchanged_in_one_chunk_in_order_and_within_the_limit(data: list[bytes], limit: int) -> None:
    groups = items_of(data)
    chunks = chunks_of(groups, limit)
    expected = [item.text[item.resource : -1] for group in groups for item in group]
    assert [raw for chunk in chunks if len(chunk) for raw in resources_in(chunk)] == expected
    assert all(len(chunk.body) <= limit or len(chunk) == 1 for chunk in chunks)
    assert [chunk.first for chunk in chunks] == [sum(map(len, chunks[:n])) for n in range(len(chunks))]


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(lines(), st.integers(100, 3000))
def test_a_line_is_not_split_unless_it_is_too_large_alone(data: list[bytes], limit: int) -> None:
    groups = items_of(data)
    chunks = chunks_of(groups, limit)
    for number, group in enumerate(groups, 1):
        holding = [chunk for chunk in chunks if number in chunk.lines]
        size = len(HEAD) + len(TAIL) + sum(len(item.text) + 1 for item in group)
        if size <= limit:
            assert len(holding) <= 1


@settings(max_examples=examples(100), deadline=None)
@given(lines(), st.integers(100, 3000), st.data())
def test_a_run_that_goes_on_behind_any_chunk_makes_the_same_chunks(
    data: list[bytes], limit: int, draw: st.DataObject
) -> None:
    groups = items_of(data)
    chunks = chunks_of(groups, limit)
    done = draw.draw(st.integers(0, len(chunks)))
    skip = sum(map(len, chunks[:done]))
    again = chunks_of(groups, limit, skip)
    assert [(c.first, c.body) for c in again] == [(c.first, c.body) for c in chunks[done:]]


@settings(max_examples=examples(100), deadline=None)
@given(lines(), st.integers(300, 3000))
def test_an_entry_is_mapped_to_its_line_and_halves_keep_bytes_and_places(data: list[bytes], limit: int) -> None:
    groups = items_of(data)
    entries = [item for group in groups for item in group]
    pending = [chunk for chunk in chunks_of(groups, limit) if len(chunk)]
    seen: list[tuple[int, int | None]] = []
    raws: list[bytes] = []
    while pending:
        chunk = pending.pop(0)
        if len(chunk) > 1:
            first, second = chunk.halves()
            assert len(first) + len(second) == len(chunk)
            assert len(first)
            assert len(second)
            pending[:0] = [first, second]
            continue
        place = chunk.place(0)
        assert place is not None
        assert place.type == "Basic"
        seen.append((place.line, place.entry))
        raws += resources_in(chunk)
    assert seen == [(entry.line, entry.index) for entry in entries]
    assert raws == [entry.text[entry.resource : -1] for entry in entries]


def test_a_chunk_tells_the_place_of_its_entries_and_knows_no_others() -> None:
    groups = items_of([encoded(patient("p0")), encoded(bundle(patient("p1"), resource("Observation", "o1")))])
    [chunk] = chunks_of(groups, 10_000)
    assert [*map(chunk.place, range(-1, 4))] == [
        None,
        ResourcePlace(1, None, "Patient", "Patient/p0"),
        ResourcePlace(2, 0, "Patient", "Patient/p1"),
        ResourcePlace(2, 1, "Observation", "Observation/o1"),
        None,
    ]
    assert chunk.where == "a.ndjson:1-2"


def test_halves_are_cut_between_lines_where_there_are_two() -> None:
    lines = [
        bundle(*[resource("Observation", f"o{line}-{n}") for n in range(count)]) for line, count in ((1, 2), (2, 9))
    ]
    [chunk] = chunks_of(items_of([encoded(line) for line in lines]), 100_000)
    first, second = chunk.halves()
    assert (first.span, second.span) == ((1, 1), (2, 2))


def test_the_same_resource_on_two_lines_is_not_made_a_repetition_within_one_bundle() -> None:
    shared = resource("Organization", "org")
    groups = items_of([encoded(bundle(patient(f"p{n}"), shared)) for n in range(3)])
    chunks = chunks_of(groups, 100_000)
    assert [chunk.span for chunk in chunks] == [(1, 1), (2, 2), (3, 3)]


def test_a_repetition_within_one_line_is_the_data_s_own_and_is_shown_to_the_service() -> None:
    [chunk] = chunks_of(items_of([encoded(bundle(patient("p1"), patient("p1")))]), 100_000)
    assert len(chunk) == 2
