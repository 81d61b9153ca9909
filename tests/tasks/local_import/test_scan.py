"""Selection of the imported files of a directory: document 1 services.local_import, document 3 §2, bad inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasks.local_import.scan import CONSENT, LINKS, OTHER, Scan, scan
from tasks.shared.errors import InputError


def put(directory: Path, *names: str, content: bytes = b"{}\n") -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def names(found: Scan) -> list[str]:
    return [file.name for file in found.files]


def references(found: Scan) -> list[str]:
    return [problem.reference for problem in found.problems]


def test_without_recursive_only_the_top_level_is_scanned(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "sub/b.ndjson")
    assert names(scan(tmp_path)) == ["a.ndjson"]


def test_recursive_scans_subdirectories(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "sub/b.ndjson", "sub/deep/er/c.ndjson.zst")
    found = scan(tmp_path, recursive=True)
    assert names(found) == ["a.ndjson", "sub/b.ndjson", "sub/deep/er/c.ndjson.zst"]
    assert [file.base for file in found.files] == ["a", "b", "c"]
    assert found.size == 9
    assert not found.problems
    assert not found.warnings


def test_both_forms_in_any_case_are_ndjson_and_nothing_else_is(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "b.NDJSON", "c.ndjson.zst", "d.Ndjson.ZST")
    put(tmp_path, "e.json", "f.ndjson.gz", "g.ndjson.part", "h.csv", ".hidden.ndjson", "._a.ndjson", "ndjson")
    assert names(scan(tmp_path)) == ["a.ndjson", "b.NDJSON", "c.ndjson.zst", "d.Ndjson.ZST"]


def test_consent_audit_files_in_any_case_are_never_imported(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "a_consent.ndjson", "B_CONSENT.NDJSON.zst", "Consent.ndjson")
    found = scan(tmp_path)
    assert names(found) == ["Consent.ndjson", "a.ndjson"]
    assert found.skipped[CONSENT] == ("B_CONSENT.NDJSON.zst", "a_consent.ndjson")
    assert "a_consent.ndjson" in found.warnings[0]


def test_a_directory_with_consent_files_only_has_nothing_to_import(tmp_path: Path) -> None:
    put(tmp_path, "a_consent.ndjson")
    found = scan(tmp_path)
    assert references(found) == ["input-no-ndjson"]
    assert "consent" in (found.problems[0].hint or "")


def test_a_directory_without_ndjson_is_an_input_error_with_a_hint(tmp_path: Path) -> None:
    put(tmp_path, "notes.txt", "sub/a.ndjson")
    problem = scan(tmp_path).problems[0]
    assert isinstance(problem, InputError)
    assert problem.reference == "input-no-ndjson"
    assert problem.exit_code == 2
    assert problem.context == str(tmp_path)
    assert "recursive" in (problem.hint or "")


@pytest.mark.parametrize(("make", "reference"), [(False, "input-not-found"), (True, "input-not-directory")])
def test_a_directory_that_is_none_is_an_input_error(tmp_path: Path, make: bool, reference: str) -> None:
    if make:
        (tmp_path / "x").write_bytes(b"{}")
    found = scan(tmp_path / "x")
    assert references(found) == [reference]
    assert found.problems[0].exit_code == 2


def test_name_clashes_are_an_error_that_lists_them_all(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "x/a.ndjson", "x/b.ndjson", "y/b.ndjson.zst", "y/c.ndjson")
    found = scan(tmp_path, recursive=True)
    assert references(found) == ["name-clash"]
    context = found.problems[0].context or ""
    assert "a.ndjson, x/a.ndjson" in context
    assert "x/b.ndjson, y/b.ndjson.zst" in context
    assert "c.ndjson" not in context


@pytest.mark.parametrize("other", ["a.ndjson.zst", "A.ndjson"])
def test_two_forms_or_two_spellings_of_one_name_clash(tmp_path: Path, other: str) -> None:
    put(tmp_path, "a.ndjson", other)
    assert references(scan(tmp_path)) == ["name-clash"]


def test_an_empty_file_among_others_is_left_out_with_a_warning(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson")
    put(tmp_path, "b.ndjson", content=b"")
    found = scan(tmp_path)
    assert references(found) == []
    assert [file.name for file in found.files] == ["a.ndjson"]
    (warning,) = found.warnings
    assert warning.endswith(": b.ndjson")
    assert "empty" in warning


def test_nothing_but_empty_files_is_an_error_that_lists_them_all(tmp_path: Path) -> None:
    put(tmp_path, "b.ndjson", "c.ndjson.zst", content=b"")
    found = scan(tmp_path)
    assert references(found) == ["empty-file"]
    assert "b.ndjson" in (found.problems[0].context or "")
    assert "c.ndjson.zst" in (found.problems[0].context or "")


def test_all_problems_are_found_at_once(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "sub/a.ndjson")
    put(tmp_path, "b.ndjson", content=b"")
    put(tmp_path, "line\nbreak.ndjson")
    assert sorted(references(scan(tmp_path, recursive=True))) == ["file-name", "name-clash"]


def test_many_names_are_listed_in_part_and_counted(tmp_path: Path) -> None:
    put(tmp_path, *(f"{number:03}.ndjson" for number in range(50)), content=b"")
    context = scan(tmp_path).problems[0].context or ""
    assert "019.ndjson" in context
    assert "020.ndjson" not in context
    assert "30 more" in context


# Links and special files


def test_links_out_of_the_directory_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    put(inside, "a.ndjson")
    put(outside, "secret.ndjson", "dir/d.ndjson")
    (inside / "link.ndjson").symlink_to(outside / "secret.ndjson")
    (inside / "relative.ndjson").symlink_to("../out/secret.ndjson")
    (inside / "dir").symlink_to(outside / "dir")
    (inside / "nowhere.ndjson").symlink_to("none.ndjson")
    found = scan(inside, recursive=True)
    assert names(found) == ["a.ndjson"]
    assert found.skipped[LINKS] == ("dir", "link.ndjson", "nowhere.ndjson", "relative.ndjson")
    assert "link.ndjson" in found.warnings[0]


def test_links_that_stay_inside_are_imported_once(tmp_path: Path) -> None:
    put(tmp_path, "data/a.bin.ndjson", "b.ndjson")
    (tmp_path / "a.ndjson").symlink_to("data/a.bin.ndjson")
    (tmp_path / "again.ndjson").symlink_to("b.ndjson")
    (tmp_path / "loop").symlink_to(".")
    found = scan(tmp_path)
    assert names(found) == ["a.ndjson", "b.ndjson"]
    assert found.skipped[LINKS] == ("again.ndjson",)
    assert names(scan(tmp_path, recursive=True)) == ["b.ndjson", "data/a.bin.ndjson"]


def test_a_link_does_not_smuggle_a_consent_file_in(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "x_consent.ndjson")
    (tmp_path / "b.ndjson").symlink_to("x_consent.ndjson")
    assert names(scan(tmp_path)) == ["a.ndjson"]


def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    put(tmp_path / "real", "a.ndjson")
    (tmp_path / "link").symlink_to("real")
    assert names(scan(tmp_path / "link")) == ["a.ndjson"]


def test_a_fifo_is_skipped_and_not_opened(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson")
    os.mkfifo(tmp_path / "pipe.ndjson")
    found = scan(tmp_path)  # opening it would wait for a writer for ever
    assert names(found) == ["a.ndjson"]
    assert found.skipped[OTHER] == ("pipe.ndjson",)


def test_a_directory_named_like_a_file_is_no_file(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "dir.ndjson/b.ndjson")
    assert names(scan(tmp_path)) == ["a.ndjson"]
    assert names(scan(tmp_path, recursive=True)) == ["a.ndjson", "dir.ndjson/b.ndjson"]


def test_the_jobs_directory_is_excluded(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "jobs/1/import/a.ndjson", "other/b.ndjson")
    found = scan(tmp_path, recursive=True, exclude=tmp_path / "jobs")
    assert names(found) == ["a.ndjson", "other/b.ndjson"]


@contextmanager
def nobody() -> Iterator[None]:
    """Not root, for whom everything is readable."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_unreadable_files_and_directories_are_listed_together(tmp_path: Path) -> None:
    put(tmp_path, "a.ndjson", "b.ndjson", "c.ndjson", "dir/d.ndjson")
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/") and "pytest" in str(parent):
            parent.chmod(0o755)
    (tmp_path / "b.ndjson").chmod(0)
    (tmp_path / "c.ndjson").chmod(0)
    (tmp_path / "dir").chmod(0)
    try:
        with nobody():
            found = scan(tmp_path, recursive=True)
    finally:
        (tmp_path / "dir").chmod(0o700)
    assert references(found) == ["input-unreadable"]
    assert found.problems[0].exit_code == 2
    context = found.problems[0].context or ""
    assert context.split() == [str(tmp_path), "b.ndjson", "c.ndjson", "dir"]
