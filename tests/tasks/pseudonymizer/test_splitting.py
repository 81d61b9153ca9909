"""Splitting and reassembly keep every byte (document 3 §1 "Numbers keep their spelling", §4 "Split")."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.pseudonymizer.agreement import Agreement
from tasks.pseudonymizer.deidentification import Deidentification, Reassembly, RequestChunk, chunks
from tasks.shared.errors import DataError, ServiceError
from tasks.shared.fhir.envelope import open_bundle
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer, BusyError, RefusedError
from tests.conftest import examples
from tests.peers.pseudonymization import identity
from tests.peers.services import pseudonyms

_SPACE = st.sampled_from(["", " ", "\t", "  "])
_NUMBERS = st.sampled_from(["1.50", "1E2", "-0.0", "0.10e-5", "12345678901234567890.10", "1e+400"])
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12).map(lambda text: json.dumps(text, ensure_ascii=False))
_ESCAPED = st.text(max_size=8).filter(lambda text: text.isprintable()).map(lambda text: json.dumps(text))
_TRICKS = st.sampled_from(
    ['"],"', '"\\"entry\\":["', '"}{]["', '{"entry":[{"resource":{"resourceType":"Patient"}}]}', '[1,[2,{"total":3}]]']
)
_VALUES = st.one_of(_NUMBERS, _TEXTS, _ESCAPED, _TRICKS, st.sampled_from(["true", "null", "[]", "{}"]))

_METAS = st.sampled_from(["{}", '{"entry":[{}]}', '{"total": 1, "x":[{"entry":[]}]}'])


@st.composite
def entries(draw: st.DrawFn) -> str:
    before, after, inside = draw(_SPACE), draw(_SPACE), draw(_SPACE)
    members = ",".join(f'"k{n}"{inside}:{inside}{value}' for n, value in enumerate(draw(st.lists(_VALUES, max_size=4))))
    more = f",{members}" if members else ""
    number = draw(st.integers(0, 99))
    return (
        f'{before}{{"fullUrl":"urn:uuid:{number}","resource":{{"resourceType":"Observation","id":"o{number}"{more}}}}}'
        f"{after}"
    )


@st.composite
def bundles(draw: st.DrawFn) -> bytes:
    members = [
        '"resourceType":"Bundle"',
        f'"id":"b{draw(st.integers(0, 9))}"',
        f'"type":"{draw(st.sampled_from(["transaction", "collection", "searchset", "history", "document"]))}"',
        '"timestamp" : "2026-01-01T00:00:00Z"',
        f'"entry"{draw(_SPACE)}:{draw(_SPACE)}[{",".join(draw(st.lists(entries(), min_size=1, max_size=12)))}]',
        f'"meta":{draw(_METAS)}',
        '"extra":{"entry":[],"total":1}',
    ]
    if "searchset" in members[2] or "history" in members[2]:
        members.append('"total": 17')
    return ("{" + draw(_SPACE) + ",".join(draw(st.permutations(members))) + "}" + draw(_SPACE)).encode()


def spelled(text: bytes) -> Any:
    """Return JSON with the spelling of its numbers and the order of its members."""
    return json.loads(text, parse_float=str, parse_int=str, object_pairs_hook=list)


def answered(resource: bytes) -> Answer:
    return Answer(200, httpx.Headers({"Content-Type": "application/fhir+json"}), resource)


def refused(status: int = 413) -> RefusedError:
    error = RefusedError("service-too-large", "no", status=status)
    error.answered = status
    error.answer = Answer(status, httpx.Headers({"Content-Type": "application/fhir+json"}), b"")
    return error


def written(path: Path, tmp: Path, threshold: int, call: Any, *, removes: bool = False) -> tuple[bytes, Counter[str]]:
    """Return the bytes written for the file, and the counts."""
    work = Deidentification(call, FailedAnswers(tmp).begin(), Agreement(removes))
    output = io.BytesIO()
    counts: Counter[str] = Counter()
    for chunk in chunks(path, threshold=threshold, spool=tmp):
        done = work(chunk)
        counts.update(done.counts)
        if done.whole is not None:
            output.write(done.whole + b"\n")
            continue
        if done.first:
            line = Reassembly(output)
        for piece in done.pieces:
            line.add(piece)
        if done.last:
            line.end()
            output.write(b"\n")
            counts["ids_differ"] += line.ids_differ
    return output.getvalue(), counts


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(bundles(), min_size=1, max_size=3),
    threshold=st.integers(1, 900),
    limit=st.one_of(st.none(), st.integers(300, 900)),
)
def test_what_comes_out_of_an_identity_service_is_spelled_as_what_went_in(
    tmp_path: Path, lines: list[bytes], threshold: int, limit: int | None
) -> None:
    path = tmp_path / "a.ndjson"
    content = b"".join(line.rstrip(b" \t") + b"\n" for line in lines)
    path.write_bytes(content)

    def call(resource: bytes) -> Answer:
        if limit is not None and len(resource) > limit and len(json.loads(resource)["entry"]) > 1:
            raise refused()
        return answered(identity(resource))

    output, counts = written(path, tmp_path, threshold, call)
    assert [*map(spelled, output.splitlines())] == [*map(spelled, content.splitlines())]
    assert counts["resources_in"] == counts["resources_out"] == sum(len(json.loads(line)["entry"]) for line in lines)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=bundles(), threshold=st.integers(1, 900))
def test_with_rules_split_and_unsplit_runs_give_the_same(tmp_path: Path, line: bytes, threshold: int) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(line)

    def call(resource: bytes) -> Answer:
        return answered(pseudonyms(resource))

    split, _ = written(path, tmp_path, threshold, call)
    unsplit, _ = written(path, tmp_path, 1 << 30, call)
    assert spelled(split) == spelled(unsplit)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=bundles(), threshold=st.integers(1, 900))
def test_chunks_are_greedy_keep_the_envelope_and_only_one_entry_exceeds_the_limit(
    tmp_path: Path, line: bytes, threshold: int
) -> None:
    path = tmp_path / "a.ndjson"
    line = line.rstrip(b" \t")
    path.write_bytes(line)
    parts = list(chunks(path, threshold=threshold, spool=tmp_path))
    whole = json.loads(line)
    if len(line) <= threshold:
        assert [part.text for part in parts] == [line]
        return
    assert [part.part for part in parts] == list(range(len(parts)))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert sum(part.size for part in parts) == len(line) + 1
    count = 0
    for number, part in enumerate(parts):
        document = json.loads(part.text)
        assert [document.get(key) for key in ("id", "type", "timestamp")] == [
            whole.get(key) for key in ("id", "type", "timestamp")
        ]
        assert part.first_entry == count
        count += len(document["entry"])
        assert part.alone == (len(part.text) > threshold)
        assert not part.alone or len(document["entry"]) == 1
        if number + 1 < len(parts):
            following = json.loads(parts[number + 1].text)["entry"]
            # Greedy: the next entry would not have fitted (its white space left out of account).
            with_next = len(part.text) + 1 + len(parts[number + 1].text) - len(_around(parts[number + 1].text))
            assert len(following) > 1 or with_next > threshold


def _around(text: bytes) -> bytes:
    return b"".join(open_bundle(text)[0].around())


def make(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"\n".join(lines))
    return path


def entry(kind: str, identifier: str, size: int = 0) -> str:
    return f'{{"resource":{{"resourceType":"{kind}","id":"{identifier}","text":"{"x" * size}"}}}}'


def bundle(*entries: str, more: str = "", kind: str = "transaction") -> bytes:
    return f'{{"resourceType":"Bundle","id":"b","type":"{kind}"{more},"entry":[{",".join(entries)}]}}'.encode()


def test_a_line_of_exactly_the_threshold_is_not_split(tmp_path: Path) -> None:
    line = bundle(entry("Patient", "p"), entry("Observation", "o"))
    path = make(tmp_path, line)
    assert list(chunks(path, threshold=len(line), spool=tmp_path)) == [RequestChunk("a.ndjson", 1, line, len(line) + 1)]
    assert len(list(chunks(path, threshold=len(line) - 1, spool=tmp_path))) == 2


def test_a_large_entry_and_a_large_line_that_is_no_bundle_travel_alone(tmp_path: Path) -> None:
    plain = b'{"resourceType":"Binary","id":"x","data":"' + b"A" * 900 + b'"}'
    path = make(tmp_path, bundle(entry("Patient", "p"), entry("Binary", "x", 900), entry("Patient", "q")), plain)
    output, counts = written(path, tmp_path, 400, lambda resource: answered(resource))
    assert output == path.read_bytes() + b"\n"
    parts = list(chunks(path, threshold=400, spool=tmp_path))
    assert [part.alone for part in parts] == [False, True, False, True]
    assert counts["alone"] == 2
    assert counts["split"] == 1


def test_nothing_behind_a_line_that_is_done_comes_twice(tmp_path: Path) -> None:
    path = make(tmp_path, b'{"resourceType":"Patient"}', b"", bundle(entry("A", "a"), entry("B", "b")), b'{"x":1}')
    places = [(part.line, part.part) for part in chunks(path, threshold=100, spool=tmp_path, after=1)]
    assert places == [(3, 0), (3, 1), (4, 0)]


@pytest.mark.parametrize(
    "inside",
    [
        '{"resource":{"resourceType":"Observation","id":"o","contained":[{"resourceType":"Patient","id":"c"}]}}',
        '{"resource":{"resourceType":"Observation","id":"o"},"response":{"outcome":{"resourceType":"OperationOutcome"}}}',
        '{"request":{"method":"DELETE","url":"Patient/x"}}',
        '{"resource":{"resourceType":"Parameters","parameter":[{"resource":{"resourceType":"Patient"}}]}}',
    ],
    ids=["contained", "outcome", "none", "inner resource"],
)
def test_a_resource_type_elsewhere_is_no_resource_twice(tmp_path: Path, inside: str) -> None:
    path = make(tmp_path, bundle(entry("Patient", "p"), inside))
    output, _ = written(path, tmp_path, 10_000, answered)
    assert output == path.read_bytes() + b"\n"


@pytest.mark.parametrize("line", [b'{"id":"CANARY"}', b'{"resourceType":1}', b'{"resourceType":"Bundle","entry":{}}'])
def test_a_line_that_is_no_resource_is_refused_before_it_is_sent(tmp_path: Path, line: bytes) -> None:
    def call(_: bytes) -> Answer:
        raise AssertionError

    with pytest.raises(DataError) as caught:
        written(make(tmp_path, line), tmp_path, 10_000, call)
    assert caught.value.reference == "not-a-resource"
    assert caught.value.context == "a.ndjson:1"
    assert "CANARY" not in caught.value.render()


def test_413_halves_a_chunk_until_it_fits_and_is_not_asked_for_again(tmp_path: Path) -> None:
    sizes: list[int] = []

    def call(resource: bytes) -> Answer:
        sizes.append(len(resource))
        if len(resource) > 300:
            raise refused()
        return answered(resource)

    line = bundle(*[entry("Observation", f"o{n}", 40) for n in range(8)])
    path = make(tmp_path, line, line)
    output, counts = written(path, tmp_path, 10_000, call)
    assert output == path.read_bytes() + b"\n"
    assert [size for size in sizes if size > 300] == [len(line)] + [size for size in sizes if 300 < size < len(line)]
    assert sum(size > 300 for size in sizes[len(sizes) // 2 + 1 :]) == 0
    assert counts["split"] == 2


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (bundle(entry("Patient", "p"), entry("Binary", "CANARY", 500)), "a.ndjson:1 entry 1 Binary"),
        (b'{"resourceType":"Binary","id":"CANARY","data":"' + b"A" * 500 + b'"}', "a.ndjson:1 Binary"),
    ],
)
def test_413_on_a_single_entry_is_terminal_and_names_file_line_and_type(
    tmp_path: Path, line: bytes, place: str
) -> None:
    def call(resource: bytes) -> Answer:
        if len(resource) > 400:
            raise refused()
        return answered(resource)

    with pytest.raises(ServiceError) as caught:
        written(make(tmp_path, line), tmp_path, 10_000, call)
    assert caught.value.reference == "pseudonymizer-too-large"
    assert caught.value.context == place
    assert caught.value.status == 413
    assert "CANARY" not in caught.value.render()


@pytest.mark.parametrize("kind", ["transaction", "collection", "searchset", "history"])
@pytest.mark.parametrize("where", ["before", "after", "last"])
def test_a_reassembled_bundle_has_a_total_only_as_searchset_or_history(tmp_path: Path, kind: str, where: str) -> None:
    members = ['"resourceType":"Bundle"', f'"type":"{kind}"', '"meta":{"total":3,"x":1}']
    members.append(f'"entry":[{entry("Patient", "p", 60)},{entry("Patient", "q", 60)}]')
    members.insert({"before": 1, "after": 4, "last": 4}[where], '"total":2')
    if where == "after":
        members.append('"link":[]')
    path = make(tmp_path, ("{" + ",".join(members) + "}").encode())
    output, _ = written(path, tmp_path, 150, answered)
    if kind in ("searchset", "history"):
        assert output.rstrip() == path.read_bytes()
    else:
        members.remove('"total":2')
        assert output.rstrip() == ("{" + ",".join(members) + "}").encode()


def test_the_envelope_is_that_of_the_first_answer(tmp_path: Path) -> None:
    path = make(tmp_path, bundle(*[entry("Patient", f"p{n}", 60) for n in range(4)]))
    number = 0

    def call(resource: bytes) -> Answer:
        nonlocal number
        number += 1
        return answered(resource.replace(b'"id":"b"', b'"id":"b%d"' % number))

    output, counts = written(path, tmp_path, 150, call)
    document = json.loads(output)
    assert document["id"] == "b1"
    assert [one["resource"]["id"] for one in document["entry"]] == ["p0", "p1", "p2", "p3"]
    assert counts["ids_differ"] == 1


@pytest.mark.parametrize("kept", [set(), {0}, {2}, {1, 3}, {0, 1, 2, 3}])
@pytest.mark.parametrize("empty", [b'"entry":[ ]', b'"entry":null', b'"meta":{}'])
def test_chunks_whose_entries_were_all_removed_leave_no_trace(tmp_path: Path, kept: set[int], empty: bytes) -> None:
    path = make(tmp_path, bundle(*[entry("Patient", f"p{n}", 60) for n in range(4)]))

    def call(resource: bytes) -> Answer:
        number = int(json.loads(resource)["entry"][0]["resource"]["id"][1:])
        return answered(resource if number in kept else b'{"resourceType":"Bundle","id":"b",' + empty + b"}")

    output, counts = written(path, tmp_path, 150, call, removes=True)
    document = json.loads(output)
    assert [one["resource"]["id"] for one in document.get("entry") or []] == [f"p{n}" for n in sorted(kept)]
    assert (counts["resources_in"], counts["resources_out"]) == (4, len(kept))


def test_a_busy_service_is_not_a_reason_to_halve(tmp_path: Path) -> None:
    def call(_: bytes) -> Answer:
        error = BusyError("service-busy", "later", status=503)
        error.answer = answered(b"CANARY")
        raise error

    with pytest.raises(BusyError) as caught:
        written(make(tmp_path, bundle(entry("A", "a"), entry("B", "b"))), tmp_path, 10_000, call)
    assert "a.ndjson:1 Bundle" in (caught.value.context or "")
    assert "pseudonymizer" not in (caught.value.context or "")
    assert "failed/0001.txt" in (caught.value.hint or "")


def test_an_emptied_entry_is_blamed_on_the_rules_and_not_on_the_address(tmp_path: Path) -> None:
    path = make(tmp_path, bundle(entry("Patient", "p"), entry("Observation", "o")))
    emptied = bundle(entry("Patient", "p"), "{}")
    with pytest.raises(ServiceError, match="an entry without the resource") as caught:
        written(path, tmp_path, 1 << 20, lambda _: answered(emptied))
    assert "services.pseudonymizer.anonymization_config" in (caught.value.hint or "")
    assert "services.pseudonymizer.url" not in (caught.value.hint or "")
