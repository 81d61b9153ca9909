"""The wait step: what the next step reads, and corrected files that are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.shared.errors import DataError, SluiceError, Stopped, StorageError
from tasks.shared.step import Source, StepContext
from tasks.shared.stop import Stop
from tasks.wait.step import run
from tests.peers import job

LINE = b'{"resourceType":"Patient","id":"1"}\n'
CANARY = b"Canaryperson"


def context(tmp_path: Path, *, stop: Stop | None = None) -> StepContext:
    source = tmp_path / "job" / "import"
    source.mkdir(parents=True, exist_ok=True)
    more = {"position": 2, "source": source, "stop": stop or Stop()}
    return job.context(tmp_path / "job", "wait", **more)


@pytest.fixture
def corrected(tmp_path: Path) -> Path:
    """The wait directory after the job has parked."""
    directory = context(tmp_path).input_dir.with_name("import_wait")
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def refused(tmp_path: Path, reference: str, where: str, kind: type[SluiceError] = DataError) -> SluiceError:
    with pytest.raises(kind) as caught:
        run(context(tmp_path))
    assert caught.value.reference == reference
    assert where in (caught.value.context or "")
    assert CANARY.decode() not in caught.value.render()
    return caught.value


def test_with_an_empty_directory_the_next_step_reads_what_the_wait_looked_at(tmp_path: Path, corrected: Path) -> None:
    result = run(context(tmp_path))
    assert (result.output, result.details) == (None, {"corrected": False})


def test_corrected_files_in_either_form_are_counted_and_become_the_output(tmp_path: Path, corrected: Path) -> None:
    (corrected / "a.ndjson").write_bytes(LINE + b"\n" + LINE.rstrip())
    (corrected / "core.ndjson.zst").write_bytes(zstandard.compress(LINE * 3))
    ctx = context(tmp_path)
    result = run(ctx)
    size = sum(file.stat().st_size for file in corrected.iterdir())
    assert (result.files, result.lines_out, result.bytes_out, result.output) == (2, 5, size, "import_wait")
    assert ctx.meter.snapshot().fraction == 1.0


@pytest.mark.parametrize(
    ("content", "reference", "line"),
    [
        (LINE + b'{"family": ' + CANARY + b"}\n", "not-json", 2),
        (LINE + b'{"family": "' + CANARY, "not-json", 2),
        (b"\n\n" + LINE + b"{" + CANARY + b"\n", "not-json", 4),
        (b'{\n  "family": "' + CANARY + b'"\n}\n', "not-json", 1),
        (LINE + b'["' + CANARY + b'"]\n', "not-object", 2),
        (LINE + b'{"family": "\xff' + CANARY + b'"}\n', "not-utf8", 2),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_corrected_line_that_is_no_json_object_is_named_by_file_and_line(
    tmp_path: Path, corrected: Path, content: bytes, reference: str, line: int, packed: bool
) -> None:
    name = "bad.ndjson.zst" if packed else "bad.ndjson"
    (corrected / name).write_bytes(zstandard.compress(content) if packed else content)
    error = refused(tmp_path, reference, f"{name}:{line}")
    assert str(corrected) in (error.hint or "")


def test_a_truncated_corrected_file_is_named(tmp_path: Path, corrected: Path) -> None:
    (corrected / "bad.ndjson.zst").write_bytes(zstandard.compress(LINE * 5000)[:-9])
    refused(tmp_path, "zst-truncated", "bad.ndjson.zst")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_corrected_files_without_a_resource_are_listed(tmp_path: Path, corrected: Path, content: bytes) -> None:
    for name in ("a.ndjson", "b.ndjson"):
        (corrected / name).write_bytes(content)
    (corrected / "good.ndjson").write_bytes(LINE)
    error = refused(tmp_path, "empty-file", "a.ndjson\n  b.ndjson")
    assert "good" not in (error.context or "")


@pytest.mark.parametrize(
    "name",
    ["fixed.json", "fixed.ndjson.gz", "fixed.ndjson.part", "fixed.ndjson.txt", "fixed.xlsx", "notes.txt"],
)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a data file"])
def test_a_foreign_file_is_an_error_that_names_it(tmp_path: Path, corrected: Path, name: str, beside: bool) -> None:
    (corrected / name).write_bytes(CANARY)
    if beside:
        (corrected / "good.ndjson").write_bytes(LINE)
    error = refused(tmp_path, "wait-foreign-files", f"{corrected}\n  {name}")
    assert "good.ndjson" not in (error.context or "")


def test_directories_and_links_that_lead_nowhere_are_foreign(tmp_path: Path, corrected: Path) -> None:
    (corrected / "below.ndjson").mkdir()
    (corrected / "gone.ndjson").symlink_to(tmp_path / "nowhere")
    (corrected / "notes.txt").mkdir()
    refused(tmp_path, "wait-foreign-files", "below.ndjson\n  gone.ndjson\n  notes.txt")


def test_foreign_names_are_shown_as_a_terminal_bears_them_and_the_first_twenty(tmp_path: Path, corrected: Path) -> None:
    for number in range(30):
        (corrected / f"\x1b[2J{number:02}").touch()
    error = refused(tmp_path, "wait-foreign-files", "\\x1b[2J19")
    assert "… and 10 more" in (error.context or "")
    assert "\x1b" not in error.render()


@pytest.mark.parametrize("name", [".DS_Store", ".fixed.ndjson.swp", "fixed.ndjson~", "#fixed.ndjson#", "~$book.xlsx"])
def test_hidden_files_and_those_of_editors_change_nothing(tmp_path: Path, corrected: Path, name: str) -> None:
    (corrected / name).write_bytes(CANARY)
    assert run(context(tmp_path)).output is None
    (corrected / "good.ndjson").write_bytes(LINE)
    assert run(context(tmp_path)).lines_out == 1


def test_two_forms_of_one_file_are_an_error(tmp_path: Path, corrected: Path) -> None:
    (corrected / "a.ndjson").write_bytes(LINE)
    (corrected / "a.ndjson.zst").write_bytes(zstandard.compress(LINE))
    refused(tmp_path, "name-clash", "a.ndjson\n  a.ndjson.zst")


def test_after_mending_the_same_approval_goes_on(tmp_path: Path, corrected: Path) -> None:
    (corrected / "fixed.ndjson").write_bytes(b"{" + CANARY)
    refused(tmp_path, "not-json", "fixed.ndjson:1")
    (corrected / "fixed.ndjson").write_bytes(LINE)
    assert run(context(tmp_path)).lines_out == 1


def test_a_directory_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    ctx = context(tmp_path)
    (tmp_path / "job" / "import_wait").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        run(ctx)
    assert "import_wait" in (caught.value.context or "")


def test_a_stop_ends_the_check(tmp_path: Path, corrected: Path) -> None:
    (corrected / "good.ndjson").write_bytes(LINE)
    stop = Stop()
    stop.request("SIGTERM")
    with pytest.raises(Stopped):
        run(context(tmp_path, stop=stop))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from([LINE.strip(), b"", b" ", LINE.strip() + b"\r"]), max_size=12), st.booleans())
def test_every_line_that_is_not_blank_counts(tmp_path: Path, corrected: Path, lines: list[bytes], packed: bool) -> None:
    wanted = sum(1 for line in lines if line.strip())
    data = b"\n".join([*lines, LINE.strip()])
    (corrected / "x.ndjson").write_bytes(zstandard.compress(data) if packed else data)
    assert run(context(tmp_path)).lines_out == wanted + 1


def behind_flattening(tmp_path: Path) -> StepContext:
    directory = tmp_path / "job" / "csv"
    directory.mkdir(parents=True, exist_ok=True)
    return replace(context(tmp_path), source=Source(directory, tables=True))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "job" / "csv_wait").mkdir(parents=True)
    return tmp_path / "job" / "csv_wait"


def test_behind_flattening_corrected_tables_become_the_output(tmp_path: Path, tables: Path) -> None:
    (tables / "Patient.csv").write_bytes(b"id\n1\n")
    result = run(behind_flattening(tmp_path))
    assert (result.files, result.bytes_out, result.output, result.lines_out) == (1, 5, "csv_wait", None)


@pytest.mark.parametrize("name", ["Patient.ndjson", "Patient.xlsx", "Patient.csv.txt", "Patient.csv.gz"])
def test_behind_flattening_what_is_no_table_is_foreign(tmp_path: Path, tables: Path, name: str) -> None:
    (tables / name).write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        run(behind_flattening(tmp_path))
    assert caught.value.reference == "wait-foreign-files"
    assert "*.csv" in (caught.value.hint or "")


def test_an_empty_corrected_table_is_an_error(tmp_path: Path, tables: Path) -> None:
    (tables / "Patient.csv").touch()
    with pytest.raises(DataError) as caught:
        run(behind_flattening(tmp_path))
    assert caught.value.reference == "empty-file"
