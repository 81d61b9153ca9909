"""The step over a service that does what it should (document 3 §5)."""

from __future__ import annotations

import csv
import io
import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import FlatteningBounds, run
from tasks.shared.errors import DataError, InputError
from tests.peers.data import identified as bundle
from tests.peers.data import of_patient, provenance, resource
from tests.peers.flattening import FakeFlattening, FlatteningJob, patient_line, view
from tests.peers.job import context


def cells(table: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.decode(), newline="")))


def test_every_cell_is_what_a_plain_loop_over_the_ndjson_gives(job: FlatteningJob, service: FakeFlattening) -> None:
    lines = [patient_line(n, 2 + n % 3) for n in range(9)]
    job.write("a.ndjson", *lines[:4])
    job.write("b.ndjson", *lines[4:])
    result = job.run(service.url)
    resources = [entry["resource"] for line in lines for entry in line["entry"]]
    patients = [{"id": one["id"], "gender": one["gender"]} for one in resources if one["resourceType"] == "Patient"]
    conditions = [
        {"id": one["id"], "patient": one["subject"]["reference"], "note": "", "system": "icd",
         "code": one["code"]["coding"][0]["code"], "display": ""}
        for one in resources if one["resourceType"] == "Condition"
    ]  # fmt: skip
    values = [
        {"id": one["id"], "patient": one["subject"]["reference"], "value": str(one["valueQuantity"]["value"])}
        for one in resources if one["resourceType"] == "Observation"
    ]  # fmt: skip
    tables = job.tables()
    assert sorted(tables) == ["Diagnosen.csv", "Labor.csv", "Patient.csv"]
    assert cells(tables["Patient.csv"]) == patients
    assert cells(tables["Diagnosen.csv"]) == conditions
    assert cells(tables["Labor.csv"]) == values
    assert (result.output, result.files, result.lines_in, result.lines_out) == ("csv", 3, 9, None)
    assert result.resources_in == len(patients) + len(conditions) + len(values)
    assert result.bytes_in == sum(path.stat().st_size for path in job.input.iterdir())
    assert result.bytes_out == sum(map(len, tables.values()))
    assert result.warnings == ()


def test_two_codings_give_two_rows_and_cells_are_quoted_as_rfc_4180_says(
    job: FlatteningJob, service: FakeFlattening
) -> None:
    coding = [{"system": "icd", "code": "I10", "display": 'Größe, "quer"\nzweite Zeile'}, {"code": "1.50\r"}]
    condition = of_patient("Condition", "c", "p", code={"coding": coding})
    number = (
        b'{"resourceType":"Observation","id":"o","subject":{"reference":"Patient/p"},"valueQuantity":{"value":1.50}}'
    )
    line = bundle("b", condition, provenance("g-cond", condition), provenance("g-obs", "Observation/o"))
    text = json.dumps(line, ensure_ascii=False).encode().replace(b'"entry": [', b'"entry":[{"resource":%b},' % number)
    job.write("a.ndjson", text)
    job.run(service.url)
    assert job.tables()["Diagnosen.csv"].decode() == (
        "id,patient,note,system,code,display\n"
        'c,Patient/p,,icd,I10,"Größe, ""quer""\nzweite Zeile"\n'
        '"c","Patient/p","","","1.50\r",""\n'
    )
    assert job.tables()["Labor.csv"] == b"id,patient,value\no,Patient/p,1.50\n"
    assert number in service.requests[-1].resources + service.requests[0].resources  # as it came in


def test_the_request_has_the_exact_headers_url_and_view(job: FlatteningJob, service: FakeFlattening) -> None:
    job.write("a.ndjson", patient_line(1))
    job.run(service.url + "/")
    for request in service.requests:
        assert request.target == "/fhir/ViewDefinition/$run?_format=ndjson"
        assert request.headers["content-type"] == "application/fhir+json"
        assert request.headers["accept"] == "application/x-ndjson"
    by_type = {request.type: request.view for request in service.requests}
    assert by_type == {one.resource_type: one.definition for one in job.views}


def test_a_group_without_rows_gets_a_file_with_the_header_only(job: FlatteningJob, service: FakeFlattening) -> None:
    job.write("a.ndjson", patient_line(1, observations=0))
    result = job.run(service.url)
    assert job.tables()["Labor.csv"] == b"id,patient,value\n"
    row = next(row for row in result.details["groups"] if row["group"] == "Labor")
    assert (row["rows"], row["batches"], row["bytes"], row["empty_columns"]) == (0, 0, 17, "id, patient, value")


def test_the_table_of_groups_has_all_counts_bytes_and_empty_columns(
    job: FlatteningJob, service: FakeFlattening
) -> None:
    job.write("a.ndjson", *[patient_line(n, 5) for n in range(10)])
    result = job.run(service.url, batch_size_mb=3, bounds=FlatteningBounds(mebibyte=1000))
    tables = job.tables()
    by_group = {row["group"]: row for row in result.details["groups"]}
    assert list(by_group) == ["Patient", "Diagnosen", "Labor"]
    for row in by_group.values():
        assert all(isinstance(value, int | str) for value in row.values())
        assert row["bytes"] == len(tables[row["file"]])
        assert row["rows"] == row["resources"] == len(cells(tables[row["file"]]))
    assert by_group["Diagnosen"]["empty_columns"] == "note, display"
    assert by_group["Diagnosen"]["columns"] == 6
    batches = [sum(r.type == one.resource_type for r in service.requests) for one in job.views]
    assert [row["batches"] for row in by_group.values()] == batches
    assert batches[2] > 3
    assert result.details["rows"] == 70


def test_no_batch_is_larger_than_its_share_unless_a_single_resource_is(
    job: FlatteningJob, service: FakeFlattening
) -> None:
    job.write("a.ndjson", *[patient_line(n, 3, size=900 if n % 4 == 0 else 100) for n in range(12)])
    job.run(service.url, batch_size_mb=3, bounds=FlatteningBounds(mebibyte=1000))
    assert max(len(one.resources) for one in service.requests) > 1
    large = [request for request in service.requests if len(request.body) > 1000]
    assert large
    assert {len(request.resources) for request in large} == {1}
    # Nothing else fits: greedy, in the order of the input.
    of_group = [request for request in service.requests if request.type == "Observation"]
    for one, following in pairwise(of_group):
        assert len(one.body) + len(following.resources[0]) + len(b',{"name":"resources","resource":}') > 1000


def test_two_groups_at_once_and_one_group_never_twice(tmp_path: Path, service: FakeFlattening) -> None:
    together = threading.Barrier(2, timeout=60)

    def script(number: int, _: Any) -> None:
        if number in (0, 1):
            together.wait()  # passes only when two are under way

    service.script = script
    service.seconds = 0.01  # time for a third, if it could
    job = FlatteningJob(tmp_path)
    job.write("a.ndjson", *[patient_line(n, 4) for n in range(8)])
    job.run(service.url, batch_size_mb=3, bounds=FlatteningBounds(mebibyte=600))
    assert service.busiest == 2
    assert service.overlaps == 0


def test_tables_have_their_names_only_when_all_are_done(job: FlatteningJob, service: FakeFlattening) -> None:
    seen: list[list[str]] = []

    def script(number: int, request: Any) -> None:
        seen.append(sorted(path.name for path in job.output.iterdir()))

    service.script = script
    job.write("a.ndjson", *[patient_line(n, 4) for n in range(8)])
    job.run(service.url, batch_size_mb=3, bounds=FlatteningBounds(mebibyte=600))
    assert len(seen) > 6
    assert all(names == ["Diagnosen.csv.partial", "Labor.csv.partial", "Patient.csv.partial"] for names in seen)
    assert sorted(job.tables()) == ["Diagnosen.csv", "Labor.csv", "Patient.csv"]


def test_files_are_private_and_the_view_definitions_are_kept(job: FlatteningJob, service: FakeFlattening) -> None:
    job.write("a.ndjson", patient_line(1))
    job.run(service.url)
    kept = {path.stem: json.loads(path.read_bytes()) for path in (job.directory / "viewdefinitions").iterdir()}
    assert kept == {one.group_name: one.definition for one in job.views}
    for path in job.directory.rglob("*"):
        if path.is_relative_to(job.input):
            continue
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_names_that_differ_in_case_only_do_not_overwrite_each_other(tmp_path: Path, service: FakeFlattening) -> None:
    names = ["Labor", "labor", "LABOR", "labor-2", "a/b", "a_b"]
    views = [view(f"g{n}", "Patient", {"id": "id"}, name=name) for n, name in enumerate(names)]
    job = FlatteningJob(tmp_path, views)
    people = [resource("Patient", f"p{n}") for n in range(len(names))]
    job.write("a.ndjson", bundle("b", *people, *[provenance(f"g{n}", one) for n, one in enumerate(people)]))
    result = job.run(service.url)
    files = [row["file"] for row in result.details["groups"]]
    assert len({name.casefold() for name in files}) == len(names)
    assert files[0] == "Labor.csv"
    assert files[3] == "labor-2.csv"
    for number, name in enumerate(files):
        assert job.tables()[name] == f"id\np{number}\n".encode()


def test_the_table_of_groups_says_how_many_resources_have_a_row(job: FlatteningJob, service: FakeFlattening) -> None:
    plain = service.rows
    service.rows = lambda view, resource: (
        []
        if b'"p1-c' in resource
        else [row for row in plain(view, resource) for _ in range(2)]
        if b'"Condition"' in resource
        else plain(view, resource)
    )
    job.write("a.ndjson", *[patient_line(n, 1) for n in range(3)])
    by_group = {row["group"]: row for row in job.run(service.url).details["groups"]}
    counts = {name: (row["resources"], row["rows"], row["with_rows"]) for name, row in by_group.items()}
    assert counts["Diagnosen"] == (3, 4, 2)
    assert counts["Patient"] == (3, 3, 3)


def test_keys_without_a_column_are_ignored_with_a_warning_and_views_set_the_order(
    job: FlatteningJob, service: FakeFlattening
) -> None:
    service.rows = lambda definition, resource: [
        b'{"secret":"x","gender":"f","id":"%b"}' % json.loads(resource)["id"].encode()
    ]
    job.write("a.ndjson", patient_line(1, 1))
    result = job.run(service.url)
    assert job.tables()["Patient.csv"] == b"id,gender\np1,f\n"
    assert result.warnings == tuple(
        f"group {group}: the service answered with columns that the view does not have (1 of 1 answers)"
        for group in ("Patient", "Diagnosen", "Labor")
    )


def test_a_line_too_long_to_hold_gives_the_same_tables(tmp_path: Path, service: FakeFlattening) -> None:
    found = []
    for name, bounds in (("held", FlatteningBounds()), ("long", FlatteningBounds(line=2000))):
        job = FlatteningJob(tmp_path / name)
        job.write("a.ndjson", patient_line(1, 50), patient_line(2, 2), patient_line(3, 60))
        result = job.run(service.url, bounds=bounds)
        found.append((job.tables(), result.resources_in, result.lines_in, result.bytes_in, result.warnings))
    assert found[0] == found[1]


def test_nothing_to_flatten_no_service_and_no_views_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError) as nothing:
        FlatteningJob(tmp_path / "a").run("http://127.0.0.1:9")
    assert nothing.value.reference == "flattening-no-input"
    job = FlatteningJob(tmp_path / "b", [])
    job.write("a.ndjson", patient_line(1))
    with pytest.raises(InputError) as no_views:
        job.run("http://127.0.0.1:9")
    assert no_views.value.reference == "flattening-no-views"


def test_the_step_reads_crtdl_and_lookup_file(tmp_path: Path, service: FakeFlattening) -> None:
    profile = "https://example.org/StructureDefinition/Pat"
    group = {
        "id": "g-pat",
        "groupReference": profile,
        "attributes": [{"attributeRef": "Patient.gender", "mustHave": False}],
    }
    document = {
        "version": "1",
        "cohortDefinition": {
            "version": "2",
            "inclusionCriteria": [[{
                "context": {"system": "fdpg.mii.cds", "code": "Patient", "display": "Patient"},
                "termCodes": [{"system": "http://snomed.info/sct", "code": "263495000", "display": "Geschlecht"}],
            }]],
        },
        "dataExtraction": {"attributeGroups": [group]},
    }  # fmt: skip
    (tmp_path / "crtdl.json").write_text(json.dumps(document))
    element = {"viewDefinition": {"column": [{"name": "gender", "path": "gender", "type": "code"}]}}
    tables = [{"url": profile, "resourceType": "Patient", "elements": {"Patient.gender": element}}]
    (tmp_path / "lookup.json").write_text(json.dumps(tables))
    source = tmp_path / "import"
    source.mkdir()
    one = resource("Patient", "p", gender="other")
    (source / "a.ndjson").write_text(json.dumps(bundle("b", one, provenance("g-pat", one))) + "\n")
    service.rows = lambda definition, resource: [b'{"id":"p","gender":"other"}']
    config = {"flattening": {"service_url": service.url, "lookup_path": str(tmp_path / "lookup.json")}}
    (tmp_path / "job").mkdir()
    more = {"source": source, "crtdl": tmp_path / "crtdl.json"}
    result = run(context(tmp_path / "job", "flattening", {"services": config}, **more))
    assert (tmp_path / "job" / "csv" / "g-pat.csv").read_bytes() == b"id,gender\np,other\n"
    assert result.details["rows"] == 1
