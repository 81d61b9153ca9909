"""Parquet beside the CSV, typed by the columns of the view (document 3 §5, "Output")."""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from config import FlatteningConfig, OutputFormat
from tasks.flattening.parquet import format_findings, parquet_type, write_parquet
from tasks.flattening.rows import RowReader, Shape, header
from tasks.flattening.views import GroupView, ViewColumn
from tasks.shared.errors import InputError, InternalError, Stopped, StorageError
from tasks.shared.files.data_directory import finished_files
from tests.peers.flattening import OBSERVATIONS, FakeFlattening, FlatteningJob, FlatteningRequest, patient_line
from tests.peers.server import Reply

BOTH = {"formats": ["csv", "parquet"]}


def columns(**types: str | None) -> list[ViewColumn]:
    return [ViewColumn(name, kind, collection=False) for name, kind in types.items()]


def table_of(directory: Path, given: list[ViewColumn], *rows: str) -> tuple[Any, tuple[str, ...]]:
    """Return the table read back after the service answered with these rows of JSON."""
    names = [column.name for column in given]
    source, target = directory / "t.csv", directory / "t.parquet"
    reader = RowReader(Shape(names))
    source.write_bytes(header(names) + reader.read("".join(row + "\n" for row in rows).encode()))
    facts = write_parquet(source, target, given, rows=len(rows), check=lambda: None)
    assert facts.bytes == target.stat().st_size
    assert target.stat().st_mode & 0o777 == 0o600
    return parquet.read_table(target), facts.as_text


@pytest.mark.slow
def test_whole_numbers_and_truth_values_are_typed_and_an_empty_cell_is_null(tmp_path: Path) -> None:
    given = columns(a="integer", b="positiveInt", c="unsignedInt", d="integer64", e="boolean")
    table, as_text = table_of(
        tmp_path, given, '{"a":-1,"b":7,"c":0,"d":9007199254740993,"e":true}', "{}", '{"e":false}'
    )
    assert table.to_pylist() == [
        {"a": -1, "b": 7, "c": 0, "d": 9007199254740993, "e": True},
        dict.fromkeys("abcde"),
        {**dict.fromkeys("abcd"), "e": False},
    ]
    assert [str(kind) for kind in table.schema.types] == ["int32", "int32", "int32", "int64", "bool"]
    assert as_text == ()


def test_decimals_dates_and_times_are_text_as_they_are_spelled(tmp_path: Path) -> None:
    given = columns(value="decimal", date="date", when="dateTime", now="instant", at="time", other=None)
    rows = ['{"value":1.50,"date":"2024-03","when":"2024","now":"2024-03-01T10:00:00.000+01:00","at":"10:00:00"}']
    table, as_text = table_of(tmp_path, given, *rows, '{"value":1E-9,"other":7}')
    assert {str(kind) for kind in table.schema.types} == {"string"}
    first, second = table.to_pylist()
    assert first == {
        "value": "1.50", "date": "2024-03", "when": "2024", "now": "2024-03-01T10:00:00.000+01:00",
        "at": "10:00:00", "other": None,
    }  # fmt: skip
    assert (second["value"], second["other"]) == ("1E-9", "7")
    assert as_text == ()


def test_collections_are_the_json_of_the_csv(tmp_path: Path) -> None:
    table, _ = table_of(tmp_path, [ViewColumn("codes", "integer", collection=True)], '{"codes":[1, 2]}', '{"codes":[]}')
    assert table.to_pylist() == [{"codes": "[1,2]"}, {"codes": "[]"}]


def test_the_fhir_type_stands_in_the_metadata(tmp_path: Path) -> None:
    table, _ = table_of(tmp_path, columns(value="decimal", x=None), "{}")
    assert table.schema.field("value").metadata == {b"fhir.type": b"decimal"}
    assert table.schema.field("x").metadata is None


def test_a_type_may_be_a_url() -> None:
    kind = "http://hl7.org/fhir/StructureDefinition/integer"
    assert parquet_type(ViewColumn("a", kind, collection=False)) == "int32"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", "1.5"),
        ("integer", "2147483648"),
        ("integer", '"many"'),
        ("integer", '"007"'),
        ("integer", '"0x1F"'),
        ("integer64", "-0"),
        ("boolean", "1"),
        ("boolean", '"True"'),
    ],
)
def test_a_column_with_a_value_of_another_type_is_text_as_a_whole_and_named(
    tmp_path: Path, kind: str, value: str
) -> None:
    good = "true" if kind == "boolean" else "1"
    table, as_text = table_of(
        tmp_path, columns(id="id", a=kind, b="integer"), f'{{"a":{good},"b":1}}', f'{{"a":{value},"b":2}}'
    )
    assert as_text == ("a",)
    assert table.column("a").to_pylist() == [good, value.strip('"')]
    assert table.column("b").to_pylist() == [1, 2]


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    table, _ = table_of(tmp_path, columns(id="id", n="integer"))
    assert (table.num_rows, table.column_names) == (0, ["id", "n"])


def test_a_table_that_does_not_have_its_rows_is_an_internal_error_without_data(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b\nCANARY,1\nCANARY\n")
    with pytest.raises(InternalError) as caught:
        write_parquet(tmp_path / "t.csv", tmp_path / "t.parquet", columns(a=None, b=None), rows=2, check=lambda: None)
    assert "CANARY" not in str(caught.value)
    with pytest.raises(InternalError):
        write_parquet(tmp_path / "t.csv", tmp_path / "t.parquet", columns(a=None), rows=7, check=lambda: None)


def test_a_stop_ends_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a\n1\n")

    def check() -> None:
        raise Stopped("SIGTERM")

    with pytest.raises(Stopped):
        write_parquet(tmp_path / "t.csv", tmp_path / "t.parquet", columns(a=None), rows=1, check=check)


cells = st.one_of(st.none(), st.text(st.sampled_from('a",\n\rß 1'), max_size=6), st.text(max_size=4), st.integers())


@pytest.mark.slow
@given(st.lists(st.tuples(cells, cells), max_size=12))
def test_every_cell_is_that_of_the_csv(rows: list[tuple[Any, Any]]) -> None:
    lines = [json.dumps({k: v for k, v in zip("ab", row, strict=True) if v is not None}) for row in rows]
    with tempfile.TemporaryDirectory() as name:
        table, _ = table_of(Path(name), columns(a=None, b="string"), *lines)
        with (Path(name) / "t.csv").open(encoding="utf-8", newline="") as file:
            expected = [{k: v or None for k, v in row.items()} for row in csv.DictReader(file)]
    assert table.to_pylist() == expected


@pytest.mark.parametrize("sizes", [[1, 1 << 16] * 40, [1, 3 << 20, 1], [0]])
def test_row_groups_end_where_rows_end_whatever_their_length(tmp_path: Path, sizes: list[int]) -> None:
    values = [f'{number},"\n\r' + "x" * size for number, size in enumerate(sizes)]
    rows = [json.dumps({"a": value, "n": number}) for number, value in enumerate(values)]
    table, _ = table_of(tmp_path, columns(a=None, n="integer"), *rows)
    assert table.column("a").to_pylist() == values
    assert table.column("n").to_pylist() == list(range(len(values)))


def typed(view: GroupView, **types: str) -> GroupView:
    changed = tuple(ViewColumn(one.name, types.get(one.name), one.collection) for one in view.columns)
    return GroupView(view.group_id, view.group_name, view.reference, view.resource_type, view.definition, changed)


def filled(directory: Path, **types: str) -> FlatteningJob:
    job = FlatteningJob(directory, [typed(OBSERVATIONS, **types)])
    job.write("a.ndjson", *[patient_line(n) for n in range(1, 4)])
    return job


def rows_of(job: FlatteningJob) -> Any:
    return parquet.read_table(job.output / "Labor.parquet").to_pylist()


def test_the_step_writes_parquet_beside_the_csv(tmp_path: Path, service: FakeFlattening) -> None:
    job = filled(tmp_path, value="decimal")
    result = job.run(service.url, **BOTH)
    assert sorted(job.tables()) == ["Labor.csv", "Labor.parquet"]
    with (job.output / "Labor.csv").open(encoding="utf-8", newline="") as file:
        assert rows_of(job) == list(csv.DictReader(file))
    assert [path.name for path in finished_files(job.output)] == ["Labor.csv", "Labor.parquet"]
    (group,) = result.details["groups"]
    assert group["parquet_bytes"] == (job.output / "Labor.parquet").stat().st_size
    assert (result.files, result.bytes_out) == (2, group["bytes"] + group["parquet_bytes"])
    assert "parquet_bytes" not in filled(tmp_path / "csv").run(service.url).details["groups"][0]


def test_values_that_do_not_fit_are_a_warning(tmp_path: Path, service: FakeFlattening) -> None:
    job = filled(tmp_path, value="integer")
    for _ in range(2):  # a second run knows it from the file
        warnings = job.run(service.url, **BOTH).warnings
        assert [text for text in warnings if "text in the Parquet file (value)" in text]


def test_no_table_has_its_name_before_all_parquet_is_done(tmp_path: Path, service: FakeFlattening) -> None:
    job = filled(tmp_path)
    obstacle = job.output / "Labor.parquet.partial"
    service.script = lambda number, _: obstacle.mkdir() if number == 0 else None
    with pytest.raises(StorageError):
        job.run(service.url, **BOTH)
    assert {path.suffix for path in job.output.iterdir()} == {".partial"}
    obstacle.rmdir()
    assert count_requests(service, job, **BOTH) == 0
    assert sorted(job.tables()) == ["Labor.csv", "Labor.parquet"]


def count_requests(service: FakeFlattening, job: FlatteningJob, **settings: Any) -> int:
    service.requests.clear()
    job.run(service.url, **settings)
    return len(service.requests)


def test_an_added_format_is_made_without_a_request_and_a_dropped_one_is_removed(
    tmp_path: Path, service: FakeFlattening
) -> None:
    job = filled(tmp_path)
    assert count_requests(service, job) == 1
    assert count_requests(service, job, **BOTH) == 0
    assert len(rows_of(job)) == 9
    assert count_requests(service, job) == 0
    assert list(job.tables()) == ["Labor.csv"]


@pytest.mark.parametrize("left", [b"", b"torn"])
def test_a_missing_or_damaged_file_is_made_again(tmp_path: Path, service: FakeFlattening, left: bytes) -> None:
    job = filled(tmp_path)
    job.run(service.url, **BOTH)
    expected = job.tables()
    (job.output / "Labor.parquet").unlink()
    (job.output / "Labor.parquet.partial").write_bytes(left)
    assert count_requests(service, job, **BOTH) == 0
    assert job.tables() == expected


def test_after_a_kill_between_the_renames_nothing_is_asked_again(tmp_path: Path, service: FakeFlattening) -> None:
    job = filled(tmp_path)
    job.run(service.url, **BOTH)
    expected = job.tables()
    for moved in (["Labor.csv"], ["Labor.parquet"], ["Labor.csv", "Labor.parquet"]):
        for name in moved:
            (job.output / name).rename(job.output / f"{name}.partial")
        assert count_requests(service, job, **BOTH) == 0
        assert job.tables() == expected


@pytest.mark.parametrize("left", [[], ["Labor.csv"], ["Labor.csv", "Labor.parquet"]], ids=str)
def test_what_an_earlier_version_left_is_continued(tmp_path: Path, service: FakeFlattening, left: list[str]) -> None:
    job = filled(tmp_path)  # whose ledger had the Parquet files too, and one count more of the input
    job.run(service.url, **BOTH)
    expected, ledger = job.tables(), job.directory / "flattening" / "ledger.ndjson"
    entries = [json.loads(line) for line in ledger.read_bytes().splitlines()]
    (identity,) = {entry["identity"] for entry in entries if "identity" in entry}
    entries[-1]["complete"]["skipped"] = 0
    size = len(expected["Labor.parquet"])
    entries.insert(0, {"file": "Labor.parquet", "identity": identity})
    entries.insert(-2, {"file": "Labor.parquet", "complete": {"bytes": size, "as_text": []}})
    ledger.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    for name in left:
        (job.output / name).rename(job.output / f"{name}.partial")
    assert count_requests(service, job, **BOTH) == 0
    assert job.tables() == expected


def test_a_table_that_is_made_again_gets_a_new_file(tmp_path: Path, service: FakeFlattening) -> None:
    job = filled(tmp_path)
    job.run(service.url, **BOTH)

    def script(_: int, request: FlatteningRequest) -> Reply:
        assert not (job.output / "Labor.parquet").exists()
        return Reply(body=b"".join(b'{"id":"%b"}\n' % one.encode() for one in request.ids))

    service.script = lambda number, request: script(number, request) if number >= 0 else None
    job.write("a.ndjson", patient_line(9))
    job.run(service.url, **BOTH)
    assert rows_of(job) == [{"id": f"p9-o{n}", "patient": None, "value": None} for n in range(3)]


def test_without_pyarrow_the_finding_says_what_to_install(
    tmp_path: Path, service: FakeFlattening, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = FlatteningConfig(formats=(OutputFormat.CSV, OutputFormat.PARQUET))
    assert format_findings(both) == []
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (finding,) = format_findings(both)
    assert (finding.reference, finding.exit_code) == ("parquet-missing", 2)
    assert "pip install -c constraints.txt -e '.[parquet]'" in (finding.hint or "")
    assert format_findings(FlatteningConfig()) == []
    with pytest.raises(InputError, match="pyarrow"):
        filled(tmp_path).run(service.url, **BOTH)
    assert service.requests == []
