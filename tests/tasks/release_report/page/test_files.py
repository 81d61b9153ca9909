"""The files of release reports: private, whole or not at all, and checked when read."""

from __future__ import annotations

import json
import os
import stat
from html import unescape
from pathlib import Path

import pytest

from tasks.release_report.page import files
from tasks.release_report.page.page import html
from tasks.shared.errors import DataError, StorageError
from tests.peers import release_report as reports


@pytest.mark.parametrize(("step", "place"), [(3, "report/step-3"), (None, "report")])
def test_each_decision_and_the_end_has_its_place_and_all_in_it_is_private(
    tmp_path: Path, step: int | None, place: str
) -> None:
    os.umask(0o022)
    report = reports.rich(step=step)
    assert files.write(tmp_path, report) == files.page(tmp_path, step)
    found = {path.name for path in (tmp_path / place).iterdir() if path.is_file()}
    assert found == {"release-report.html", "release-report.json"}
    for path in (tmp_path / "report").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert files.page(tmp_path, step).read_text() == html(report)
    assert files.read(tmp_path, step) == report


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version": 2}', b"{" * 5000])
def test_what_is_no_report_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    files.write(tmp_path, reports.rich())
    path = files.document(tmp_path, 3)
    path.write_bytes(content)
    with pytest.raises(DataError) as failed:
        files.read(tmp_path, 3)
    assert failed.value.reference == "report-damaged"
    assert str(path) in failed.value.render()


def test_a_report_of_another_version_is_not_half_read(tmp_path: Path) -> None:
    files.write(tmp_path, reports.rich())
    path = files.document(tmp_path, 3)
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"more": 1}))
    with pytest.raises(DataError, match="another version"):
        files.read(tmp_path, 3)


def test_a_decision_gets_into_page_and_json(tmp_path: Path) -> None:
    files.write(tmp_path, reports.rich())
    decision = reports.decided().decisions[0]
    files.decided(tmp_path, 3, [decision])  # type: ignore[list-item]
    report = files.read(tmp_path, 3)
    assert report is not None
    assert report.decisions == (decision,)
    assert decision.comment in unescape(files.page(tmp_path, 3).read_text())
    files.decided(tmp_path, 7, [decision])  # type: ignore[list-item]
    assert not (tmp_path / "report/step-7").exists()


def test_a_full_disk_leaves_the_report_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(tmp_path, reports.rich())
    kept = {path: path.read_bytes() for path in (tmp_path / "report").rglob("*.*")}

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space"):
        files.write(tmp_path, reports.clean())
    assert {path: path.read_bytes() for path in (tmp_path / "report").rglob("*.*")} == kept
