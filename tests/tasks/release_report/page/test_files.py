"""The files of release reports: private, whole or not at all, and checked when read."""

from __future__ import annotations

import csv
import json
import os
import stat
from html import unescape
from pathlib import Path

import pytest

from tasks.release_report.page import files
from tasks.release_report.page.page import html
from tasks.release_report.report.document import ReleaseReport, sha256
from tasks.shared.errors import DataError, StorageError
from tests.peers import release_report as reports


def written(job: Path, **changes: object) -> ReleaseReport:
    report = reports.rich(**changes)
    files.write(job, report, reports.rich(recipient=True, k=11, **changes), reports.files())
    return report


@pytest.mark.parametrize(("step", "place"), [(3, "report/step-3"), (None, "report")])
def test_each_decision_and_the_end_has_its_place_and_all_in_it_is_private(
    tmp_path: Path, step: int | None, place: str
) -> None:
    os.umask(0o022)
    report = written(tmp_path, step=step)
    found = {path.name for path in (tmp_path / place).iterdir() if path.is_file()}
    pages = {f"release-report{copy}.{ending}" for copy in ("", ".recipient") for ending in ("html", "json")}
    assert found == pages | {"files.csv"}
    for path in (tmp_path / "report").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert files.page(tmp_path, step).read_text() == html(report)
    assert files.read(tmp_path, step) == report
    recipient = files.read(tmp_path, step, recipient=True)
    assert recipient is not None
    assert (recipient.k, recipient.recipient) == (11, True)


def test_the_list_of_files_has_each_of_them_and_no_formula(tmp_path: Path) -> None:
    listed = [*reports.files(40), reports.files(1)[0].__class__("=1+1.ndjson", 1, 2, 3, 4, 5, "ab")]
    files.write(tmp_path, reports.rich(), None, listed)
    rows = list(csv.DictReader((tmp_path / "report/step-3/files.csv").read_text().splitlines()))
    assert len(rows) == 41
    assert rows[1] == {
        "name": "patients_1.ndjson.zst", "stored bytes": "1001", "content bytes": "9001", "lines": "21",
        "resources": "401", "sha256": f"{1:064x}",
    }  # fmt: skip
    assert rows[40]["name"] == "'=1+1.ndjson"
    assert not (tmp_path / "report/step-3/release-report.recipient.json").exists()


class TestReading:
    @pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version": 2}', b"{" * 5000])
    def test_what_is_no_report_is_a_clear_error(self, tmp_path: Path, content: bytes) -> None:
        written(tmp_path)
        path = files.document(tmp_path, 3)
        path.write_bytes(content)
        with pytest.raises(DataError) as failed:
            files.read(tmp_path, 3)
        assert failed.value.reference == "report-damaged"
        assert str(path) in failed.value.render()

    def test_a_report_of_another_version_is_not_half_read(self, tmp_path: Path) -> None:
        written(tmp_path)
        path = files.document(tmp_path, 3)
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"more": 1}))
        with pytest.raises(DataError, match="another version"):
            files.read(tmp_path, 3)


class TestDigest:
    def test_the_same_data_have_the_same_hash_whenever_and_by_whomever(self) -> None:
        first = sha256(reports.rich())
        assert first == sha256(reports.rich(made="2027-01-01T00:00:00+00:00", seconds=1.0))
        assert first == sha256(reports.decided())
        assert len(first) == 64

    def test_anything_else_is_another_report(self) -> None:
        others = [reports.rich(files="00" * 32), reports.clean(), reports.rich(k=11), reports.rich(step=4)]
        assert len({sha256(one) for one in [reports.rich(), *others]}) == 5

    def test_it_stands_on_the_page_and_survives_the_file(self, tmp_path: Path) -> None:
        report = written(tmp_path)
        assert sha256(report) in files.page(tmp_path, 3).read_text()
        assert sha256(files.read(tmp_path, 3) or reports.clean()) == sha256(report)


def test_a_decision_gets_into_page_and_json_and_its_words_stay_in_house(tmp_path: Path) -> None:
    written(tmp_path)
    decision = reports.decided().decisions[0]
    files.decided(tmp_path, 3, [decision])
    for recipient in (False, True):
        report = files.read(tmp_path, 3, recipient=recipient)
        page = unescape(files.page(tmp_path, 3, recipient=recipient).read_text())
        assert report is not None
        assert [one.by for one in report.decisions] == ["Anna Data"]
        for inside in (decision.comment, decision.despite, decision.login):
            assert (inside in report.model_dump_json()) is not recipient
            assert (f"{inside}</p>" in page or f" {inside})" in page) is (not recipient)
    files.decided(tmp_path, 7, [decision])
    assert not (tmp_path / "report/step-7").exists()


def test_a_full_disk_leaves_the_report_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(tmp_path)
    kept = {path: path.read_bytes() for path in (tmp_path / "report").rglob("*.*")}

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space"):
        files.write(tmp_path, reports.clean(), None, ())
    assert {path: path.read_bytes() for path in (tmp_path / "report").rglob("*.*")} == kept
    assert files.read(tmp_path, 3) == before


class TestCopy:
    def test_the_copy_is_for_the_group_of_the_directory(self, tmp_path: Path) -> None:
        report = reports.rich()
        path = files.copy(report, tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert path.stat().st_gid == tmp_path.stat().st_gid
        assert path.read_text() == html(report)
        assert [found.name for found in tmp_path.iterdir()] == [path.name]
        assert path.name == files.name_of_copy(report.job, report.step) != files.name_of_copy(report.job, None)

    def test_a_directory_that_is_missing_is_not_made(self, tmp_path: Path) -> None:
        for directory in (tmp_path / "none", tmp_path / "file"):
            (tmp_path / "file").touch()
            with pytest.raises(StorageError):
                files.copy(reports.rich(), directory)
        assert not (tmp_path / "none").exists()

    def test_a_group_that_cannot_be_given_leaves_no_page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "chown", refused)
        copied = files.copy(reports.rich(), tmp_path)  # it has the group already
        assert stat.S_IMODE(copied.stat().st_mode) == 0o640
        copied.unlink()
        monkeypatch.setattr(files, "_group_of", lambda path: len(path.name))
        with pytest.raises(StorageError) as failed:
            files.copy(reports.rich(), tmp_path)
        assert failed.value.reference == "report-copy-group"
        assert list(tmp_path.iterdir()) == []
