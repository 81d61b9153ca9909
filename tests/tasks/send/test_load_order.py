"""The order of files (document 3 §2 and §7: ``core.ndjson`` first and alone)."""

from __future__ import annotations

from pathlib import Path

import zstandard

from tasks.send.load_order import stages
from tasks.shared.files.names import data_files


def put(directory: Path, name: str, kind: str) -> None:
    line = b'{"resourceType":"%s","id":"x"}\n' % kind.encode()
    (directory / name).write_bytes(zstandard.compress(line) if name.endswith(".zst") else line)


def names(directory: Path) -> list[list[str]]:
    return [[path.name for path in stage] for stage in stages(data_files(directory))]


def test_core_is_first_and_alone_under_both_of_its_names(tmp_path: Path) -> None:
    put(tmp_path, "b.ndjson", "Bundle")
    put(tmp_path, "a.ndjson.zst", "Bundle")
    put(tmp_path, "core.ndjson.zst", "Bundle")
    assert names(tmp_path) == [["core.ndjson.zst"], ["a.ndjson.zst", "b.ndjson"]]


def test_files_of_one_type_go_one_after_the_other_targets_first_then_the_files_of_patients(tmp_path: Path) -> None:
    for name, kind in {
        "1": "Provenance",
        "2": "Observation",
        "3": "Encounter",
        "4": "Patient",
        "5": "Organization",
        "6": "Bundle",
        "7": "Unheard",
        "8": "Observation",
    }.items():
        put(tmp_path, f"{name}.ndjson", kind)
    assert names(tmp_path) == [[f"{n}.ndjson"] for n in "54328716"]


def test_a_file_without_lines_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "empty.ndjson").write_bytes(b"\n")
    assert names(tmp_path) == [["empty.ndjson"]]
