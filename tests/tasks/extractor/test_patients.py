"""``--patients FILE``: one id a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.extractor.patients import read_patients
from tasks.shared.errors import InputError


def file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "patients.txt"
    path.write_bytes(content)
    return path


def test_one_id_a_line_each_once_in_order(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfp2\r\n\r\n Patient/p1 \np2\np-3.x"
    assert read_patients(file(tmp_path, content)) == ("p2", "p1", "p-3.x")


def test_lines_that_are_no_ids_are_named_by_number_and_never_quoted(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_patients(file(tmp_path, "p1\nErika Mustermann\nü\n".encode()))
    assert caught.value.reference == "patients-invalid"
    assert "2, 3" in caught.value.message
    assert "Erika" not in caught.value.render()


@pytest.mark.parametrize(("content", "reference"), [(b"\n \n", "patients-empty"), (b"\xff\xfe", "patients-unreadable")])
def test_a_file_without_ids_or_not_utf8_is_an_error(tmp_path: Path, content: bytes, reference: str) -> None:
    with pytest.raises(InputError) as caught:
        read_patients(file(tmp_path, content))
    assert caught.value.reference == reference


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_patients(tmp_path / "nowhere")
