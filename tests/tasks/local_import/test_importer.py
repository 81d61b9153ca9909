"""The local import: document 1 services.local_import, ``4-product.md`` §4, the bad inputs of the issue."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from config import PipelineConfig
from tasks.local_import.importer import run, scan_source
from tasks.shared.errors import DataError, InputError, SluiceError, Stopped, StorageError
from tasks.shared.files.data_directory import data_files
from tasks.shared.report import StepReport
from tasks.shared.step import GivenInputs, StepContext
from tasks.shared.stop import Stop
from tests.peers import job
from tests.peers.lines import read_lines

PATIENT = b'{"resourceType":"Patient","id":"p1","value":1.50}\n'
FOREIGN = (
    b'{"resourceType":"Bundle","entry":[{"resource":{"resourceType":"Patient","id":"p1"}},'
    b'{"resource":{"resourceType":"Observation","subject":{"reference":"Patient/CANARY"}}}]}\n'
)


def config(tmp_path: Path, *, enabled: bool = True, recursive: bool = False, **local_import: Any) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "compression": {"enabled": enabled},
            "services": {"local_import": {"recursive": recursive, **local_import}},
            "jobs_dir": str(tmp_path / "jobs"),
        }
    )


def context(tmp_path: Path, *, stop: Stop | None = None, named: Path | None = None, **settings: Any) -> StepContext:
    more = {"position": 0, "input": str(named or tmp_path / "data"), "stop": stop or Stop()}
    return job.context(tmp_path / "jobs" / "job", "local_import", config(tmp_path, **settings), **more)


def put(tmp_path: Path, **files: bytes) -> Path:
    directory = tmp_path / "data"
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / f"{name}.ndjson").write_bytes(content)
    return directory


def imported(tmp_path: Path) -> dict[str, bytes]:
    directory = tmp_path / "jobs" / "job" / "import"
    return {path.name: b"\n".join(read_lines(path)) + b"\n" for path in data_files(directory)}


def fails(kind: type[SluiceError], ctx: StepContext) -> SluiceError:
    with pytest.raises(kind) as caught:
        run(ctx)
    assert "CANARY" not in caught.value.render()
    # Nothing half-written: only whole files have a final name, and no part is left.
    left = [path.name for path in (ctx.job_dir / "import").iterdir()] if (ctx.job_dir / "import").exists() else []
    assert not [name for name in left if name.endswith(".part")]
    return caught.value


@pytest.mark.parametrize("enabled", [True, False])
def test_files_are_imported_with_counts_and_sizes(tmp_path: Path, enabled: bool) -> None:
    put(tmp_path, Patient=PATIENT * 3, Condition=b'{"resourceType":"Condition"}\n\n{"resourceType":"Condition"}')
    size = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
    ctx = context(tmp_path, enabled=enabled)
    result = run(ctx)
    suffix = ".ndjson.zst" if enabled else ".ndjson"
    assert list(imported(tmp_path)) == [f"Condition{suffix}", f"Patient{suffix}"]
    assert imported(tmp_path)[f"Patient{suffix}"] == PATIENT * 3
    stored = sum(path.stat().st_size for path in data_files(ctx.job_dir / "import"))
    assert result == StepReport(
        files=2,
        resources_in=5,
        resources_out=5,
        lines_out=5,
        bytes_in=size,
        bytes_out=stored,
        content=size,
        output="import",
        details={"content_bytes": size},
    )
    snapshot = ctx.meter.snapshot()
    assert (snapshot.files, snapshot.files_total, snapshot.resources) == (2, 2, 5)
    assert snapshot.bytes == snapshot.bytes_total == size


def test_progress_and_rate_of_a_compressed_source_are_those_of_its_content(tmp_path: Path) -> None:
    packed = zstandard.compress(PATIENT * 10_000)
    put(tmp_path, x=packed)
    ctx = context(tmp_path)
    result = run(ctx)
    snapshot = ctx.meter.snapshot()
    assert (snapshot.bytes_total, snapshot.fraction) == (len(packed), 1.0)
    assert snapshot.bytes == result.content == len(PATIENT) * 10_000
    again = context(tmp_path)
    assert run(again).content == again.meter.snapshot().content == 0


def test_contents_stay_as_they_are_byte_for_byte(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"a":1.50}\r\n\r\n {"b":1E2} \n\n{"c":"\xc3\xa4"}'
    put(tmp_path, x=content)
    result = run(context(tmp_path, enabled=False))
    assert (tmp_path / "jobs" / "job" / "import" / "x.ndjson").read_bytes() == content
    assert result.resources_in == 3


@pytest.mark.parametrize("enabled", [True, False])
def test_a_compressed_input_is_taken_whatever_its_name_says(tmp_path: Path, enabled: bool) -> None:
    put(tmp_path, x=zstandard.compress(PATIENT * 4))
    result = run(context(tmp_path, enabled=enabled))
    assert result.resources_out == 4
    assert list(imported(tmp_path).values()) == [PATIENT * 4]


def test_the_directory_of_the_configuration_is_used_when_none_is_named(tmp_path: Path) -> None:
    directory = put(tmp_path, x=PATIENT)
    assert run(replace(context(tmp_path, dir=str(directory)), given=GivenInputs())).files == 1


def test_no_directory_at_all_is_an_input_error(tmp_path: Path) -> None:
    assert fails(InputError, replace(context(tmp_path), given=GivenInputs())).reference == "input-missing"


def test_recursive_follows_the_configuration_and_leaves_the_jobs_directory_out(tmp_path: Path) -> None:
    put(tmp_path, x=PATIENT)
    assert run(context(tmp_path, named=tmp_path, recursive=True)).files == 1
    other = context(tmp_path, named=tmp_path, recursive=True)
    assert run(replace(other, job_id="two", job_dir=tmp_path / "jobs" / "two")).files == 1


def test_skipped_consent_files_are_said_in_a_warning(tmp_path: Path) -> None:
    put(tmp_path, x=PATIENT, x_consent=PATIENT)
    result = run(context(tmp_path))
    assert result.files == 1
    assert "x_consent.ndjson" in result.warnings[0]


def test_findings_are_the_problems_of_the_directory(tmp_path: Path) -> None:
    put(tmp_path, x=PATIENT, y=b"")
    (tmp_path / "data" / "x.ndjson.zst").write_bytes(b"")

    def references(directory: str) -> list[str]:
        return [problem.reference for problem in scan_source(config(tmp_path), str(tmp_path / directory)).problems]

    assert references("data") == ["name-clash"]
    assert references("none") == ["input-not-found"]
    assert not (tmp_path / "jobs").exists()


# Bad input


@pytest.mark.parametrize(
    ("content", "reference", "where"),
    [
        (PATIENT + b'{"resourceType":"CANARY"\n', "not-json", "bad.ndjson:2"),
        (PATIENT * 9 + b'{"a":"CANARY\xff"}\n', "not-utf8", "bad.ndjson:10"),
        (PATIENT + b'["CANARY"]\n', "not-object", "bad.ndjson:2"),
        (PATIENT + FOREIGN, "foreign-patient-in-bundle", "bad.ndjson:2"),
        (zstandard.compress(PATIENT * 1000)[:-3], "zst-truncated", "bad.ndjson"),
        (zstandard.compress(PATIENT) + b"CANARY", "zst-corrupt", "bad.ndjson"),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_bad_data_is_an_error_with_file_and_line(
    tmp_path: Path, content: bytes, reference: str, where: str, enabled: bool
) -> None:
    put(tmp_path, bad=content, good=PATIENT)
    error = fails(DataError, context(tmp_path, enabled=enabled))
    assert (error.reference, error.context) == (reference, where)
    assert error.exit_code == 1
    assert not [name for name in imported(tmp_path) if name.startswith("bad")]


def test_files_without_a_resource_are_left_out_with_one_warning_for_each_kind(tmp_path: Path) -> None:
    put(tmp_path, blank=b"\n\n", zst=zstandard.compress(b""), none=b"", good=PATIENT)
    assert scan_source(config(tmp_path), str(tmp_path / "data")).problems == ()
    result = run(context(tmp_path))
    assert set(imported(tmp_path)) == {"good.ndjson.zst"}
    assert (result.files, result.lines_out, result.resources_out) == (1, 1, 1)
    assert [warning.rpartition(": ")[2] for warning in result.warnings] == ["none.ndjson", "blank.ndjson, zst.ndjson"]
    assert all(warning.startswith("empty") for warning in result.warnings)


def test_nothing_but_files_without_a_resource_is_an_error_that_names_them(tmp_path: Path) -> None:
    put(tmp_path, blank=b"\n\n", zst=zstandard.compress(b""))
    error = fails(DataError, context(tmp_path))
    assert error.reference == "empty-file"
    assert "blank.ndjson" in (error.context or "")
    assert "zst.ndjson" in (error.context or "")


def test_a_directory_of_empty_files_is_found_before_anything_is_imported(tmp_path: Path) -> None:
    put(tmp_path, a=b"", b=b"")
    assert fails(InputError, context(tmp_path)).reference == "empty-file"
    assert not (tmp_path / "jobs").exists()


def test_a_file_that_became_empty_after_its_import_stays_in_the_job(tmp_path: Path) -> None:
    put(tmp_path, a=PATIENT, b=PATIENT * 2)
    ctx = context(tmp_path)
    run(ctx)
    (tmp_path / "data" / "b.ndjson").write_bytes(b"")
    again = run(ctx)
    assert (again.files, again.lines_out) == (2, 3)
    assert "changed since they were imported" in again.warnings[-1]


class Doing(Stop):
    """Asked before every read; does something to the input meanwhile."""

    def __init__(self, action: Callable[[], object], *, at: int = 3) -> None:
        super().__init__()
        self._action = action
        self._left = at

    def check(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._action()
        super().check()


def test_a_file_that_grows_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path, x=PATIENT * 20_000) / "x.ndjson"

    def grow() -> None:
        with path.open("ab") as file:
            file.write(PATIENT)

    error = fails(StorageError, context(tmp_path, stop=Doing(grow)))
    assert error.reference == "source-changed"
    assert "x.ndjson" in (error.context or "")
    assert imported(tmp_path) == {}


def test_a_file_that_is_gone_when_its_turn_comes_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path, x=PATIENT) / "x.ndjson"
    error = fails(StorageError, context(tmp_path, stop=Doing(path.unlink, at=1)))
    assert error.reference == "source-unreadable"
    assert "x.ndjson" in (error.context or "")


def test_a_stop_leaves_no_part_and_no_final_name(tmp_path: Path) -> None:
    put(tmp_path, x=PATIENT * 50_000)
    stop = Doing(lambda: stop.request("SIGINT"), at=4)
    ctx = context(tmp_path, stop=stop)
    with pytest.raises(Stopped, match="SIGINT"):
        run(ctx)
    assert list((ctx.job_dir / "import").iterdir()) == []


# Going on


def test_finished_files_are_not_read_again_and_still_count(tmp_path: Path) -> None:
    directory = put(tmp_path, a=PATIENT * 2, b=b'{"broken"\n')
    ctx = context(tmp_path)
    with pytest.raises(DataError):
        run(ctx)
    (directory / "b.ndjson").write_bytes(PATIENT)
    kept = {path: path.stat().st_mtime_ns for path in data_files(ctx.job_dir / "import")}
    result = run(context(tmp_path))
    assert (result.files, result.resources_in) == (2, 3)
    assert result.bytes_in == len(PATIENT) * 3
    assert all(path.stat().st_mtime_ns == before for path, before in kept.items())
    assert run(context(tmp_path)) == result.model_copy(update={"content": 0})


def test_a_finished_file_without_its_record_is_counted_again(tmp_path: Path) -> None:
    put(tmp_path, a=PATIENT * 2)
    ctx = context(tmp_path)
    result = run(ctx)
    (ctx.job_dir / ".results" / "0-files.ndjson").unlink()
    again = run(context(tmp_path))
    assert (again.files, again.resources_in, again.bytes_out) == (result.files, 2, result.bytes_out)
    assert again.bytes_in == result.bytes_in


def test_a_record_whose_file_never_got_its_name_means_nothing(tmp_path: Path) -> None:
    put(tmp_path, a=PATIENT * 2)
    ctx = context(tmp_path)
    result = run(ctx)
    (ctx.job_dir / "import" / "a.ndjson.zst").unlink()
    assert run(context(tmp_path)) == result
    assert imported(tmp_path) == {"a.ndjson.zst": PATIENT * 2}


def test_parts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    put(tmp_path, a=PATIENT)
    ctx = context(tmp_path)
    (ctx.job_dir / "import").mkdir(parents=True)
    (ctx.job_dir / "import" / "gone.ndjson.zst.part").write_bytes(b"half")
    run(ctx)
    assert [path.name for path in (ctx.job_dir / "import").iterdir()] == ["a.ndjson.zst"]


def test_a_source_that_changed_since_is_said_and_not_mixed_in(tmp_path: Path) -> None:
    directory = put(tmp_path, a=PATIENT)
    run(context(tmp_path))
    (directory / "a.ndjson").write_bytes(PATIENT * 5)
    result = run(context(tmp_path))
    assert result.resources_in == 1
    assert "a.ndjson" in result.warnings[0]


def test_a_file_in_the_other_form_is_complete_too(tmp_path: Path) -> None:
    put(tmp_path, a=PATIENT)
    run(context(tmp_path, enabled=False))
    assert run(context(tmp_path, enabled=True)).files == 1
    assert list(imported(tmp_path)) == ["a.ndjson"]


def test_everything_is_private_to_its_owner(tmp_path: Path) -> None:
    put(tmp_path, a=PATIENT)
    ctx = context(tmp_path)
    run(ctx)
    assert (ctx.job_dir / "import").stat().st_mode & 0o777 == 0o700
    for path in (ctx.job_dir / "import" / "a.ndjson.zst", ctx.job_dir / ".results" / "0-files.ndjson"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_record_holds_the_hash_of_the_stored_file(tmp_path: Path) -> None:
    put(tmp_path, a=PATIENT)
    ctx = context(tmp_path)
    run(ctx)
    digest = hashlib.sha256((ctx.job_dir / "import" / "a.ndjson.zst").read_bytes()).hexdigest()
    record = (ctx.job_dir / ".results" / "0-files.ndjson").read_text()
    assert digest in record
    assert "Patient" not in record


def test_pages_of_a_search_may_be_several_files_and_missing_ones_can_be_added(tmp_path: Path) -> None:
    def page(*ids: str, following: bool) -> bytes:
        link = ',"link":[{"relation":"next","url":"x"}]' if following else ""
        entries = ",".join(f'{{"resource":{{"resourceType":"Patient","id":"{one}"}}}}' for one in ids)
        return f'{{"resourceType":"Bundle","type":"searchset","total":3{link},"entry":[{entries}]}}\n'.encode()

    put(tmp_path, one=PATIENT + page("a", "b", following=True), other=PATIENT)
    error = fails(DataError, context(tmp_path))
    assert (error.reference, error.context) == ("source-incomplete", "one.ndjson:2")
    assert list(imported(tmp_path)) == ["other.ndjson.zst"], "its pages are read again by the next run"
    put(tmp_path, two=page("c", following=False))
    assert run(context(tmp_path)).resources_in == 5


def test_what_tells_of_an_incomplete_source_survives_a_restart(tmp_path: Path) -> None:
    outcome = b'{"resource":{"resourceType":"OperationOutcome","issue":[{"severity":"warning"}]}}'
    put(tmp_path, one=b'{"resourceType":"Bundle","entry":[%b]}\n' % outcome)
    warnings = run(context(tmp_path)).warnings
    assert len(warnings) == 1
    assert run(context(tmp_path)).warnings == warnings
    (tmp_path / "jobs" / "job" / ".results" / "0-files.ndjson").unlink()
    assert run(context(tmp_path)).warnings == warnings
