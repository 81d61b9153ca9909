"""The step over a service that does what it should (docs/steps.md)."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.errors import DataError, InputError
from tests.peers import data
from tests.peers.data import grouped_person
from tests.peers.server import Reply, ScriptedServer
from tests.peers.services import view_run
from tests.tasks.flattening.place import (
    DIAGNOSES,
    PATIENTS,
    FlatteningPlace,
    GroupSpec,
    columns,
    sent,
)

SMALL = {"batch_size_mb": 1}
"""350 kB for each of the three groups."""


def test_every_cell_is_what_a_plain_loop_over_the_ndjson_gives(place: FlatteningPlace, service: ScriptedServer) -> None:
    lines = [grouped_person(number, 2 + number % 3) for number in range(9)]
    place.write("a.ndjson", *lines[:4])
    place.write("b.ndjson.zst", *lines[4:])
    report = place.run(service.url)
    resources = [entry["resource"] for line in lines for entry in line["entry"]]
    assert place.rows("Patient") == [
        {"id": one["id"], "gender": one["gender"]} for one in resources if one["resourceType"] == "Patient"
    ]
    assert place.rows("Diagnosen") == [
        {"id": one["id"], "patient": one["subject"]["reference"], **one["code"]["coding"][0]}
        for one in resources if one["resourceType"] == "Condition"
    ]  # fmt: skip
    assert place.rows("Labor") == [
        {"id": one["id"], "patient": one["subject"]["reference"], "value": str(one["valueQuantity"]["value"])}
        for one in resources if one["resourceType"] == "Observation"
    ]  # fmt: skip
    tables = place.tables()
    assert sorted(tables) == ["Diagnosen.csv", "Labor.csv", "Patient.csv"]
    assert (report.output, report.files, report.lines_in, report.lines_out) == ("csv", 3, 9, None)
    assert report.resources_in == sum(one["resourceType"] != "Provenance" for one in resources)
    assert report.bytes_in == sum(path.stat().st_size for path in place.input.iterdir())
    assert report.bytes_out == sum(map(len, tables.values()))
    assert report.warnings == ()


def test_cells_are_quoted_as_rfc_4180_says_and_numbers_keep_their_spelling(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    coding = [{"system": "icd", "code": 'Größe, "quer"\nzweite Zeile'}, {"code": "1.50\r"}]
    condition = data.of_patient("Condition", "c", "p", code={"coding": coding})
    number = (
        b'{"resourceType":"Observation","id":"o","subject":{"reference":"Patient/p"},"valueQuantity":{"value":1.50}}'
    )
    line = data.bundle(condition, data.provenance("g-cond", condition), data.provenance("g-obs", "Observation/o"))
    text = data.as_line(line).replace(b'"entry":[', b'"entry":[{"resource":%b},' % number)
    place.write("a.ndjson", text)
    place.run(service.url)
    assert place.tables()["Diagnosen.csv"].decode() == (
        'id,patient,system,code\nc,Patient/p,icd,"Größe, ""quer""\nzweite Zeile"\n"c","Patient/p","","1.50\r"\n'
    )
    assert place.tables()["Labor.csv"] == b"id,patient,value\no,Patient/p,1.50\n"
    assert any(number in seen.body for seen in service.seen)  # as it came in


def test_the_request_has_the_exact_headers_url_and_view(place: FlatteningPlace, service: ScriptedServer) -> None:
    place.write("a.ndjson", grouped_person(1))
    place.run(service.url + "/")
    kept = {path.stem: json.loads(path.read_bytes()) for path in (place.job / "viewdefinitions").iterdir()}
    for seen in service.seen:
        assert seen.target == "/fhir/ViewDefinition/$run?_format=ndjson"
        assert seen.headers["content-type"] == "application/fhir+json"
        assert seen.headers["accept"] == "application/x-ndjson"
        body = json.loads(seen.body)
        assert body["resourceType"] == "Parameters"
        assert [one["name"] for one in body["parameter"]] == [
            "viewDefinition",
            *["resources"] * (len(body["parameter"]) - 1),
        ]
        assert body["parameter"][0]["resource"] in kept.values()
    assert set(kept) == {"Patient", "Diagnosen", "Labor"}


def test_a_group_without_rows_gets_a_file_with_the_header_only(place: FlatteningPlace, service: ScriptedServer) -> None:
    place.write("a.ndjson", grouped_person(1, values=0))
    report = place.run(service.url)
    assert place.tables()["Labor.csv"] == b"id,patient,value\n"
    row = next(row for row in report.details["groups"] if row["group"] == "Labor")
    assert (row["resources"], row["rows"], row["batches"], row["bytes"]) == (0, 0, 0, 17)


def test_the_record_says_for_each_group_what_became_of_it(place: FlatteningPlace, service: ScriptedServer) -> None:
    place.write(
        "a.ndjson", *[grouped_person(number, 5, 30_000) for number in range(10)], grouped_person(10, 0, conditions=0)
    )
    report = place.run(service.url, **SMALL)
    by_group = {row["group"]: row for row in report.details["groups"]}
    assert list(by_group) == ["Patient", "Diagnosen", "Labor"]
    for row in by_group.values():
        assert all(isinstance(value, int | str) for value in row.values())
        assert row["bytes"] == len(place.tables()[row["file"]])
        assert row["rows"] == row["resources"] == row["with_rows"] == len(place.ids(row["group"]))
    assert by_group["Diagnosen"]["columns"] == 4
    assert by_group["Labor"]["batches"] == sum(sent(seen)[0] == "Observation" for seen in service.seen) > 3
    assert report.details["rows"] == 71


def test_no_batch_is_larger_than_its_share_unless_a_single_resource_is(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    share = (1 << 20) // 3
    lines = [grouped_person(number, 3, 400_000 if number % 4 == 0 else 90_000) for number in range(8)]
    place.write("a.ndjson", *lines)
    place.run(service.url, **SMALL)
    batches = [(len(seen.body), *sent(seen)) for seen in service.seen]
    values = sorted(((ids, size) for size, kind, ids in batches if kind == "Observation"), key=lambda one: _at(one[0]))
    assert [one for ids, _ in values for one in ids] == place.ids("Labor")
    assert max(len(ids) for ids, _ in values) > 1
    assert all(size <= share or len(ids) == 1 for ids, size in values)
    # Greedy: the first resource of the next batch would not have fitted.
    sizes = {one["resource"]["id"]: len(data.as_line(one["resource"])) for line in lines for one in line["entry"]}
    for (_, size), (following, _) in pairwise(values):
        assert size + sizes[following[0]] > share


def _at(ids: list[str]) -> tuple[int, int]:
    patient, number = ids[0].removeprefix("p").split("-o")
    return int(patient), int(number)


def test_two_requests_are_under_way_and_never_three(place: FlatteningPlace, service: ScriptedServer) -> None:
    together, lock, under_way, most = threading.Barrier(2, timeout=30), threading.Lock(), [0], [0]
    passed = iter(range(2))

    def script(_: Any) -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        if next(passed, None) is not None:
            together.wait()  # passes only when two are under way
        service.closing.wait(0.01)  # time for a third, if it could
        with lock:
            under_way[0] -= 1

    service.script = script
    place.write("a.ndjson", *[grouped_person(number, 4, 90_000) for number in range(8)])
    place.run(service.url, **SMALL)
    assert most == [2]


def test_tables_have_their_names_only_when_all_are_done(place: FlatteningPlace, service: ScriptedServer) -> None:
    seen: list[list[str]] = []
    service.script = lambda _: seen.append([path.name for path in (place.job / "csv").glob("*")])
    place.write("a.ndjson", *[grouped_person(number, 4, 90_000) for number in range(8)])
    place.run(service.url, **SMALL)
    assert len(seen) > 6
    assert {name for names in seen for name in names} == {".parts"}
    assert sorted(path.name for path in (place.job / "csv").iterdir()) == ["Diagnosen.csv", "Labor.csv", "Patient.csv"]


def test_files_are_private(place: FlatteningPlace, service: ScriptedServer) -> None:
    place.write("a.ndjson", grouped_person(1))
    modes: set[tuple[bool, int]] = set()

    def script(_: Any) -> None:
        for path in place.job.rglob("*"):
            if not path.is_relative_to(place.input):
                modes.add((path.is_dir(), path.stat().st_mode & 0o777))

    service.script = script
    place.run(service.url)
    script(None)
    assert modes == {(True, 0o700), (False, 0o600)}


def test_names_that_differ_in_case_only_do_not_overwrite_each_other(tmp_path: Path, service: ScriptedServer) -> None:
    names = ["Labor", "labor", "LABOR", "a/b", "a_b"]
    groups = [GroupSpec(f"g{n}", "Observation", columns(value="value"), name) for n, name in enumerate(names)]
    place = FlatteningPlace(tmp_path, (PATIENTS, *groups))
    values = [data.observation(f"o{n}") for n in range(len(names))]
    place.write("a.ndjson", data.bundle(*values, *[data.provenance(f"g{n}", one) for n, one in enumerate(values)]))
    files = [row["file"] for row in place.run(service.url).details["groups"]][1:]
    assert files == ["Labor.csv", "labor-2.csv", "LABOR-3.csv", "a_b.csv", "a_b-2.csv"]
    for number, name in enumerate(files):
        assert place.tables()[name] == f"id,patient,value\no{number},Patient/p,\n".encode()


def test_keys_without_a_column_are_ignored_and_the_view_sets_the_order(
    place: FlatteningPlace, service: ScriptedServer
) -> None:
    def script(seen: Any) -> Any:
        _, (one,) = view_run(seen.body)
        row = b'{"secret":"x","value":1,"gender":"f","patient":"p","id":"%b"}\n' % json.loads(one)["id"].encode()
        return Reply(200, row)

    service.script = script
    place.write("a.ndjson", grouped_person(1, 1))
    report = place.run(service.url)
    assert place.tables()["Patient.csv"] == b"id,gender\np1,f\n"
    assert report.warnings == ()


@pytest.mark.parametrize(("clause", "expected"), [("forEach", 1), ("forEachOrNull", 2)])
def test_a_view_that_iterates_has_rows_for_some_or_for_all(
    tmp_path: Path, service: ScriptedServer, clause: str, expected: int
) -> None:
    group = GroupSpec("g-cond", "Condition", {clause: "code.coding"} | columns(code="code"), "Diagnosen")
    place = FlatteningPlace(tmp_path, (PATIENTS, group))
    two = data.of_patient("Condition", "two", "p", code={"coding": [{"code": "a"}, {"code": "b"}]})
    none = data.of_patient("Condition", "none", "p", code={"coding": []})
    place.write("a.ndjson", data.bundle(two, none, data.provenance("g-cond", two, none)))
    _, row = place.run(service.url).details["groups"]
    assert (row["resources"], row["with_rows"], row["rows"]) == (2, expected, 1 + expected)


def test_what_cannot_be_flattened_is_an_error_before_any_request(tmp_path: Path, service: ScriptedServer) -> None:
    with pytest.raises(DataError) as nothing:
        FlatteningPlace(tmp_path / "a").run(service.url)
    assert nothing.value.reference == "flattening-no-input"
    place = FlatteningPlace(tmp_path / "b", (GroupSpec("g-pat", "Patient", None),))
    place.write("a.ndjson", grouped_person(1))
    with pytest.raises(InputError) as no_views:
        place.run(service.url)
    assert no_views.value.reference == "flattening-no-views"
    place = FlatteningPlace(tmp_path / "c")
    place.write("a.ndjson", grouped_person(1))
    place.lookup.write_text("[7]")
    with pytest.raises(InputError) as wrong:
        place.run(service.url)
    assert wrong.value.reference == "lookup-schema-violation"
    assert service.seen == []


def test_what_is_missing_in_the_lookup_file_is_a_warning_of_the_report(tmp_path: Path, service: ScriptedServer) -> None:
    place = FlatteningPlace(tmp_path, (PATIENTS, DIAGNOSES, GroupSpec("g-obs", "Observation", None)))
    place.write("a.ndjson", grouped_person(1))
    report = place.run(service.url)
    assert [warning.partition(":")[0] for warning in report.warnings] == [
        "attribute group g-obs", "resources that belong only to groups that get no CSV",
    ]  # fmt: skip
    assert sorted(place.tables()) == ["Diagnosen.csv", "Patient.csv"]
