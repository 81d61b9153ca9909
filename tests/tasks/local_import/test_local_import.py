"""Import of a directory: what is taken, what is left out and named, what stops it.

What is no data inside a file is in ``shared/files/test_line_check.py``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import zstandard

from config import PipelineConfig
from tasks.local_import.step import STEP
from tasks.shared.errors import DataError, InputError, SluiceError, StorageError
from tasks.shared.file_work import read_records, records_of
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.step import CheckContext, GivenInputs
from tests.peers import job
from tests.peers.data import CANARY, bundle, observation, patient, resource, write

LOG = {"exportId": "e1", "eventId": "kickoff", "eventDetail": {"x": CANARY}}
OUTCOME = resource("OperationOutcome", "o", issue=[{"severity": "warning", "diagnostics": CANARY}])


class Place:
    """A directory to import, and a job."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.source = directory / "source"
        self.source.mkdir()
        self.job = directory / "job"
        self.job.mkdir()

    def put(self, *names: str) -> None:
        for name in names:
            write(self.source / name, patient(name.partition(".")[0].replace("/", "-")))

    def configuration(self, *, compressed: bool = True, **keys: Any) -> PipelineConfig:
        top: dict[str, Any] = {"compression": {"enabled": compressed}, "jobs_dir": str(self.source / "jobs")}
        return job.configuration({"local_import": {"dir": str(self.source)} | keys}, **top)

    def run(self, *, meter: Meter | None = None, given: Path | None = None, **keys: Any) -> StepReport:
        more = {"meter": meter or Meter(), "input": None if given is None else str(given)}
        return STEP.run(job.context(self.job, "local_import", self.configuration(**keys), **more))

    def checked(self, given: str | None = None, **keys: Any) -> tuple[list[SluiceError], str]:
        context = CheckContext(self.configuration(**keys), GivenInputs(input=given))
        return list(STEP.checks(context)), "\n".join(STEP.warnings(context))

    @property
    def imported(self) -> list[str]:
        return sorted(path.name for path in (self.job / "import").iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
def test_files_come_as_configured_and_their_content_stays_byte_for_byte(place: Place, compressed: bool) -> None:
    line = b'{"resourceType":"Observation","id":"o","valueQuantity":{"value":1.50}}\r\n\n'
    packed = zstandard.compress(line, 19)
    (place.source / "plain.ndjson").write_bytes(line)
    (place.source / "Packed.NDJSON.zst").write_bytes(packed)
    write(place.source / "core.ndjson", bundle(patient("p"), observation("o")))
    report = place.run(compressed=compressed)
    ending = ".ndjson.zst" if compressed else ".ndjson"
    assert place.imported == [f"Packed{ending}", f"core{ending}", f"plain{ending}"]
    stored = [(place.job / "import" / f"{base}{ending}").read_bytes() for base in ("Packed", "plain")]
    if compressed:
        assert stored[0] == packed
        stored = [zstandard.decompress(one, 1 << 20) for one in stored]
    assert stored == [line, line]
    assert (report.files, report.lines_out, report.resources_in, report.output) == (3, 3, 4, "import")
    for stored_bytes, directory in ((report.bytes_in, place.source), (report.bytes_out, place.job / "import")):
        assert stored_bytes == sum(path.stat().st_size for path in directory.iterdir())


@pytest.mark.parametrize("recursive", [True, False])
def test_subdirectories_are_imported_or_named(place: Place, recursive: bool) -> None:
    place.put("a.ndjson", "sub/b.ndjson", "sub/deep/c.ndjson.zst", ".hidden/d.ndjson", "jobs/1/import/e.ndjson")
    report = place.run(recursive=recursive)
    assert report.files == (3 if recursive else 1)
    told = "\n".join(report.warnings)
    assert ("sub/b.ndjson, sub/deep/c.ndjson.zst (1 .ndjson, 1 .ndjson.zst)" in told) is not recursive
    assert not any(part in told for part in ("d.ndjson", "jobs"))


EMPTY, LINKS = "b.ndjson", "symbolic links"
LEFT_OUT = {
    "Condition.jsonl": "no NDJSON", "practitioners.json": "no NDJSON", "Observation.ndjson.gz": "no NDJSON",
    "Patient.ndjson.txt": "no NDJSON", "all.ZIP": "no NDJSON", "batch-1_consent.ndjson": "consent audit",
    "B2_CONSENT.ndjson.zst": "consent audit",
}  # fmt: skip


def test_nothing_that_looks_like_data_is_left_out_in_silence(place: Place) -> None:
    place.put("Patient.ndjson", *LEFT_OUT, "README.md", ".DS_Store", "notes.txt", "Thumbs.db")
    os.mkfifo(place.source / "pipe.ndjson")
    (place.source / "link.ndjson").symlink_to(place.source / "Patient.ndjson")
    (place.source / "linked").symlink_to(place.directory)
    report = place.run(recursive=True)
    assert place.imported == ["Patient.ndjson.zst"]
    told = "\n".join(report.warnings)
    assert place.checked(recursive=True) == ([], told)
    for name, why in {**LEFT_OUT, "pipe.ndjson": "no regular", "link.ndjson": LINKS, "linked": LINKS}.items():
        (line,) = [line for line in told.splitlines() if name in line]
        assert line.startswith(f"not imported, {why}")
    assert not any(name in told for name in ("README", "DS_Store", "notes", "Thumbs"))


def test_what_is_left_out_is_counted_by_ending_and_said_once(place: Place) -> None:
    place.put("a.ndjson", *(f"x{n}.json" for n in range(30)), "y.jsonl")
    assert "… and 26 more (30 .json, 1 .jsonl)" in place.checked()[1]
    assert not list(STEP.warnings(CheckContext(place.configuration(), job_dir=place.job)))


@pytest.mark.parametrize(
    ("names", "recursive", "reference", "told"),
    [
        (["a.ndjson", "a.ndjson.zst"], False, "name-clash", "a.ndjson.zst"),
        (["a.ndjson", "A.ndjson"], False, "name-clash", "A.ndjson"),
        (["core.ndjson", "sub/core.ndjson"], True, "name-clash", "sub/core.ndjson"),
        ([], False, "input-no-ndjson", ""), (["a.jsonl"], False, "input-no-ndjson", "a.jsonl"),
        (["a.json"], False, "input-no-ndjson", "jq -c"),
        (["sub/a.ndjson"], False, "input-no-ndjson", "recursive"),
        (["a_consent.ndjson"], False, "input-no-ndjson", "consent"), (["a.ndjson", EMPTY], False, "empty-file", EMPTY),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_found_before_there_is_a_job(
    place: Place, names: list[str], recursive: bool, reference: str, told: str
) -> None:
    place.put(*names)
    (place.source / EMPTY).write_bytes(b"") if EMPTY in names else None
    (found,), warned = place.checked(recursive=recursive)
    assert (found.reference, found.exit_code) == (reference, 2)
    assert told in found.render()
    assert "()" not in found.render() + warned
    with pytest.raises(InputError):
        place.run(recursive=recursive)
    assert not (place.job / "import").exists()


def test_a_directory_is_needed_and_the_one_of_the_command_line_goes_first(place: Place) -> None:
    wrong = {"/gone": "input-not-found", __file__: "input-not-directory", "https://h/x": "input-is-url"}
    for path, reference in wrong.items():
        assert [(found.reference, found.exit_code) for found in place.checked(path)[0]] == [(reference, 2)]
    assert [found.reference for found in place.checked(dir=None)[0]] == ["input-missing"]
    place.put("a.ndjson", "other/b.ndjson")
    place.run(given=place.source / "other")
    assert place.imported == ["b.ndjson.zst"]


def test_what_cannot_be_read_is_listed(place: Place) -> None:
    place.put("a.ndjson", "b.ndjson", "dir/c.ndjson")
    for parent in (place.directory, *place.directory.parents):
        if parent.stat().st_uid == os.geteuid() and "pytest" in str(parent):
            parent.chmod(0o755)
    (place.source / "b.ndjson").chmod(0)
    (place.source / "dir").chmod(0)
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)  # root may read everything
    try:
        problems, _ = place.checked(recursive=True)
    finally:
        os.seteuid(user)
        (place.source / "dir").chmod(0o700)
    assert {one.reference for one in problems} == {"input-unreadable"}
    assert {one.context for one in problems} == {str(place.source / name) for name in ("b.ndjson", "dir")}


def test_the_log_of_an_export_is_left_out_and_such_a_line_among_data_is_an_error(place: Place) -> None:
    place.put("Patient.ndjson")
    write(place.source / "log.ndjson", LOG, LOG)
    report = place.run()
    assert report.warnings == ("not imported, the log of an export tool: log.ndjson",)
    write(place.source / "sub/data.ndjson", patient("p"), LOG)
    with pytest.raises(DataError) as caught:
        place.run(recursive=True)
    assert caught.value.context == "sub/data.ndjson:2"
    assert CANARY not in caught.value.render()


def test_an_outcome_as_a_line_of_its_own_is_data_with_a_warning(place: Place) -> None:
    write(place.source / "a.ndjson", patient("p"), OUTCOME)
    for _ in range(2):  # the warning is in the record, too
        (warning,) = place.run().warnings
        assert "1 OperationOutcomes" in warning


def test_patients_on_lines_and_in_bundles_are_counted(place: Place) -> None:
    write(place.source / "a.ndjson", bundle(patient("p"), observation("o", "p"), patient("q")), patient("r"))
    place.run()
    [done] = read_records(records_of(place.job, 1))
    assert done.patients == 3


def test_a_file_that_changes_while_it_is_imported_is_an_error_and_fine_afterwards(place: Place) -> None:
    place.put("a.ndjson")

    class Writing(Meter):
        def add(self, **_: Any) -> None:
            with (place.source / "a.ndjson").open("ab") as file:
                file.write(b'{"resourceType":"Patient","id":"late"}\n' if file.tell() < 100 else b"")

    with pytest.raises(StorageError) as caught:
        place.run(meter=Writing())
    assert (caught.value.reference, caught.value.context) == ("source-changed", "a.ndjson")
    assert not place.imported
    assert place.run().lines_out == 3


def test_a_file_that_has_changed_or_gone_since_is_said(place: Place) -> None:
    place.put("a.ndjson", "b.ndjson", "c.ndjson")
    assert not place.run().warnings
    write(place.source / "a.ndjson", patient("p"), patient("q"))
    (place.source / "b.ndjson").unlink()
    report = place.run()
    assert report.lines_out == 3
    assert report.warnings == (
        "removed, because they are no longer in the directory: b",
        "imported again, because they have changed: a",
    )
    assert place.imported == ["a.ndjson.zst", "c.ndjson.zst"]
