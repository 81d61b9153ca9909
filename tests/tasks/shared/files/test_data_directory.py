"""Selection of data files in a directory: what is no data is left alone and named once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.shared.files.data_directory import as_shown, finished_files, is_no_data

NO_DATA = (".DS_Store", "Patient.csv~", ".#Patient.csv", "#Patient.csv#", ".Patient.ndjson.swp", "~$Patient.xlsx")
DATA = ("Patient.ndjson", "Patient.ndjson.zst", "Patient.csv", "Patient", "Patient.ndjson.txt", "notes.txt", "x.zip")


@pytest.mark.parametrize("name", NO_DATA)
def test_what_people_and_their_programs_leave_is_no_data(name: str) -> None:
    assert is_no_data(name)


@pytest.mark.parametrize("name", DATA)
def test_what_somebody_may_have_meant_to_be_read_is_data(name: str) -> None:
    assert not is_no_data(name)


def test_one_walk_tells_data_from_the_rest(tmp_path: Path) -> None:
    for name in ("b/x.csv", "b/README.md~", "a.ndjson", ".NOTES.txt", ".git/config", "c.ndjson.part", "d.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in finished_files(tmp_path)] == ["a.ndjson", "b/x.csv"]
    assert list(finished_files(tmp_path / "gone")) == []


def test_names_are_shown_as_a_terminal_bears_them_and_the_first_twenty(tmp_path: Path) -> None:
    assert as_shown(["a", "\x1b[2J", "\udcff"]) == ["a", "'\\x1b[2J'", "'\\udcff'"]
    assert as_shown(map(str, range(25)))[-1] == "… and 5 more"
