"""Lines cut into resources (document 3 §1 "Numbers keep their spelling", §7)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared.fhir.bundle import CutLine, cut, type_of

PATIENT = b'{"resourceType":"Patient","id":"p1","multipleBirthInteger":1E2,"x":[1.50,-0.0,12345678901234567890.10]}'
OBSERVATION = b'{ "id" : "o-1.A", "valueQuantity":{"value":1.50},\t"resourceType":"Observation" }'


def bundle(kind: str, *entries: bytes) -> bytes:
    return b'{"resourceType":"Bundle","type":"%s","entry":[%s]}' % (kind.encode(), b",".join(entries))


def entry(resource: bytes, **more: Any) -> bytes:
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in more.items())
    return b'{"resource":' + resource + rest.encode() + b"}"


def parts(line: bytes, **options: Any) -> CutLine:
    return cut(line, file="a.ndjson.zst", number=7, **options)


def raws(part: CutLine) -> list[bytes]:
    return [bytes(resource.raw) for resource in part.resources]


def rejections(part: CutLine) -> list[tuple[str, int | None, int]]:
    return [(rejected.reference, rejected.entry, rejected.ordinal) for rejected in part.rejected]


def test_a_plain_line_is_one_resource_with_exactly_its_bytes() -> None:
    part = parts(PATIENT, first=41)
    assert raws(part) == [PATIENT]
    resource = part.resources[0]
    assert (resource.key, resource.file, resource.line, resource.entry, resource.ordinal) == (
        "Patient/p1",
        "a.ndjson.zst",
        7,
        None,
        41,
    )
    assert not part.unwrapped


@pytest.mark.parametrize("kind", ["collection", "searchset", "transaction", "batch"])
def test_envelope_bundles_are_unwrapped_and_every_entry_keeps_its_bytes(kind: str) -> None:
    part = parts(bundle(kind, entry(PATIENT), entry(OBSERVATION, fullUrl="http://old/fhir/Observation/zzz")))
    assert raws(part) == [PATIENT, OBSERVATION]
    assert [(r.key, r.entry, r.ordinal) for r in part.resources] == [("Patient/p1", 0, 0), ("Observation/o-1.A", 1, 1)]
    assert part.unwrapped
    assert part.patients == {"p1"}


@pytest.mark.parametrize("kind", ["document", "message"])
def test_document_and_message_bundles_are_resources(kind: str) -> None:
    line = b'{"resourceType":"Bundle","id":"b1","type":"%s","entry":[%s]}' % (kind.encode(), entry(PATIENT))
    part = parts(line)
    assert raws(part) == [line]
    assert part.resources[0].key == "Bundle/b1"


@pytest.mark.parametrize("kind", ["history", "transaction-response", "batch-response", "nonsense", ""])
def test_bundles_that_hold_versions_or_answers_are_rejected_as_a_whole(kind: str) -> None:
    assert rejections(parts(bundle(kind, entry(PATIENT)), first=3)) == [("bundle-type", None, 3)]


def test_a_bundle_without_a_type_is_rejected() -> None:
    assert rejections(parts(b'{"resourceType":"Bundle","entry":[]}')) == [("bundle-type", None, 0)]


def test_a_bundle_whose_resource_type_stands_far_behind_is_still_a_bundle() -> None:
    line = b'{"language":"%s","type":"batch","entry":[%s],"resourceType":"Bundle"}' % (b"x" * 4000, entry(PATIENT))
    assert raws(parts(line)) == [PATIENT]


def test_a_bundle_without_entries_holds_nothing() -> None:
    part = parts(b'{"resourceType":"Bundle","type":"searchset","total":0}')
    assert part.count == 0
    assert part.skipped == 0


def test_a_bundle_inside_a_bundle_is_a_resource() -> None:
    inner = b'{"resourceType":"Bundle","id":"inner","type":"collection","entry":[%s]}' % entry(PATIENT)
    assert raws(parts(bundle("batch", entry(inner)))) == [inner]


def test_entries_that_carry_nothing_are_counted_and_skipped() -> None:
    outcome = b'{"resourceType":"OperationOutcome","id":"w"}'
    part = parts(
        bundle(
            "searchset",
            b'{"request":{"method":"DELETE","url":"Patient/p0"}}',
            b'{"resource":null}',
            b"{}",
            entry(outcome, search={"mode": "outcome"}),
            entry(PATIENT, search={"mode": "match"}),
            entry(OBSERVATION, request={"method": "DELETE", "url": "Observation/1"}),
            entry(OBSERVATION, request={"method": "POST", "url": "Observation"}),
        )
    )
    assert part.skipped == 5
    assert [(r.key, r.ordinal) for r in part.resources] == [("Patient/p1", 0), ("Observation/o-1.A", 1)]


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        (b"{", "not-json"),
        (b'{"resourceType":"Patient","id":"a"} x', "not-json"),
        (b"[]", "not-a-resource"),
        (b"7", "not-a-resource"),
        (b"{}", "not-a-resource"),
        (b'{"id":"a"}', "not-a-resource"),
        (b'{"resourceType":7,"id":"a"}', "not-a-resource"),
        (b'{"resourceType":"patient","id":"a"}', "invalid-resource-type"),
        (b'{"resourceType":"Pa/tient","id":"a"}', "invalid-resource-type"),
        (b'{"resourceType":"","id":"a"}', "invalid-resource-type"),
        (b'{"resourceType":"Patient","id":""}', "invalid-id"),
        (b'{"resourceType":"Patient","id":null}', "invalid-id"),
        (b'{"resourceType":"Patient","id":12}', "invalid-id"),
        (b'{"resourceType":"Patient","id":"a b"}', "invalid-id"),
        (b'{"resourceType":"Patient","id":"a/../b"}', "invalid-id"),
        (b'{"resourceType":"Patient","id":"a\\n"}', "invalid-id"),
        (b'{"resourceType":"Patient","id":"%s"}' % (b"a" * 65), "invalid-id"),
        (b'{"resourceType":"Patient","id":"\xff"}', "not-utf8"),
        (b'{"resourceType":"Patient","id":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "json-too-deep"),
        (b'{"resourceType":"Bundle","type":"batch","entry":{}}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","type":"batch","entry":[7]}', "not-a-bundle"),
        (b'{"resourceType":"Bundle","type":7}', "not-a-bundle"),
    ],
)
def test_a_line_that_is_no_resource_is_rejected(line: bytes, reference: str) -> None:
    part = parts(line, first=5)
    assert rejections(part) == [(reference, None, 5)]
    assert part.resources == ()
    assert part.count == 1


def test_a_rejection_names_file_line_entry_and_type_but_quotes_nothing() -> None:
    canary = b'{"resourceType":"Patient","id":"Muster mann"}'
    part = parts(bundle("batch", entry(OBSERVATION), entry(canary)))
    error = part.rejected[0].error()
    assert error.context == "a.ndjson.zst:7 entry 1 Patient"
    assert "Muster" not in error.render()


def test_one_bad_entry_does_not_take_the_others_with_it() -> None:
    part = parts(bundle("batch", entry(PATIENT), entry(b'{"resourceType":"Patient","id":"?"}'), entry(OBSERVATION)))
    assert [(r.key, r.ordinal) for r in part.resources] == [("Patient/p1", 0), ("Observation/o-1.A", 2)]
    assert rejections(part) == [("invalid-id", 1, 1)]


def test_ids_inside_a_resource_are_not_its_id() -> None:
    line = (
        b'{"contained":[{"resourceType":"Medication","id":"m"}],"resourceType":"Patient","name":[{"id":"n"}],"id":"p"}'
    )
    assert parts(line).resources[0].key == "Patient/p"
    assert raws(parts(bundle("batch", entry(line)))) == [line]


def test_a_resource_without_id_gets_a_stable_uuid_and_keeps_all_other_bytes() -> None:
    line = b' {"resourceType":"Observation", "value":1.50}'
    part = parts(line)
    resource = part.resources[0]
    assert part.derived_ids == 1
    assert uuid.UUID(resource.id).version == 5
    assert bytes(resource.raw) == b' {"id":"%s","resourceType":"Observation", "value":1.50}' % resource.id.encode()
    assert parts(line).resources[0].id == resource.id


def test_a_derived_id_depends_on_content_and_position_not_on_space_or_compression() -> None:
    def derived(line: bytes, file: str = "a.ndjson", number: int = 1) -> str:
        return cut(line, file=file, number=number).resources[0].id

    base = derived(b'{"resourceType":"Observation","value":1.50}')
    assert derived(b'{ "resourceType": "Observation",\t"value": 1.50 }') == base
    assert derived(b'{"resourceType":"Observation","value":1.50}', file="a.ndjson.zst") == base
    assert derived(b'{"resourceType":"Observation","value":1.5}') != base
    assert derived(b'{"resourceType":"Observation","value":1.50}', number=2) != base
    assert derived(b'{"resourceType":"Observation","value":1.50}', file="b.ndjson") != base
    assert derived(bundle("batch", entry(b'{"resourceType":"Observation","value":1.50}'))) != base


def test_references_to_a_placeholder_of_the_bundle_become_references_to_the_put_id() -> None:
    urn = "urn:uuid:0f5a1d2e-0000-4000-8000-000000000001"
    pointing = b'{"resourceType":"Observation","id":"o","subject":{"reference" : "%s"},"v":1.50}' % urn.encode()
    part = parts(bundle("transaction", entry(pointing), entry(b'{"resourceType":"Patient","id":"p9"}', fullUrl=urn)))
    assert part.resolved_references == 1
    assert raws(part)[0] == b'{"resourceType":"Observation","id":"o","subject":{"reference" : "Patient/p9"},"v":1.50}'


def test_other_urns_and_texts_that_look_like_references_stay_as_they_are() -> None:
    urn = "urn:uuid:0f5a1d2e-0000-4000-8000-000000000001"
    text = json.dumps({"reference": urn})
    line = json.dumps(
        {
            "resourceType": "Basic",
            "id": "b",
            "note": text,
            "identifier": {"value": urn},
            "x": {"reference": "urn:oid:1"},
        }
    ).encode()
    part = parts(bundle("batch", entry(line), entry(PATIENT, fullUrl=urn)))
    assert part.resolved_references == 0
    assert raws(part)[0] == line


def test_the_type_of_a_line_is_read_without_cutting_it() -> None:
    assert type_of(PATIENT) == "Patient"
    assert type_of(bundle("batch")) == "Bundle"
    assert type_of(b"{") is None
    assert type_of(b'{"id":"x"}') is None


numbers = st.sampled_from(["1.50", "1E2", "-0.0", "1e-7", "100000000000000000000.000", "0", "3.14"])
white = st.sampled_from(["", " ", "\t", "  "])
texts = st.text(max_size=12).map(json.dumps)


@st.composite
def resources(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(["Patient", "Observation", "List", "Bundle"]))
    fields = [
        f'"resourceType":{draw(white)}"{kind}"',
        f'"id":"{draw(st.from_regex("[A-Za-z0-9.-]{1,64}", fullmatch=True))}"',
    ]
    if kind == "Bundle":
        fields.append('"type":"document"')
    if kind == "List":
        fields.append('"entry":[{"item":{"id":"e1"}}]')
    fields.append(f'"value":{draw(numbers)}')
    fields.append(f'"text":{draw(texts)}')
    draw(st.randoms(use_true_random=False)).shuffle(fields)
    space = draw(white)
    return ("{" + space + f"{space},{space}".join(fields) + space + "}").encode("utf-8", "surrogatepass")


@pytest.mark.slow
@given(st.lists(resources(), max_size=8), st.sampled_from(["collection", "searchset", "transaction", "batch"]))
def test_unwrapping_gives_every_resource_once_in_order_and_byte_for_byte(given_ones: list[bytes], kind: str) -> None:
    part = parts(bundle(kind, *map(entry, given_ones)), first=100)
    assert part.rejected == ()
    assert raws(part) == given_ones
    assert [resource.ordinal for resource in part.resources] == list(range(100, 100 + len(given_ones)))
    for resource in given_ones:
        assert raws(parts(resource)) == [resource]


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_line_is_either_cut_or_rejected_and_never_raises(line: bytes) -> None:
    assert parts(line).count >= 1
