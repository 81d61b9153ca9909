"""The measuring pass over tables that flattening made."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
import zstandard

from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.measured import Measured
from tasks.release_report.measure.originals import Originals
from tasks.shared.stop import Stop


def run(place: Path, originals: Originals | None = None, *, collect: bool = False) -> Measured:
    files = sorted(path for path in place.iterdir() if path.is_file())
    return measure(
        files, base=place, spool=place / "spool", stop=Stop(), k=5, today=date(2026, 11, 23), originals=originals,
        collect=collect,
    )  # fmt: skip


def test_rows_are_counted_by_the_patient_of_their_column(tmp_path: Path) -> None:
    (tmp_path / "lab.csv").write_text(
        "id,patient,code,value,issued,note\n"
        "o1,Patient/p1,a,5.5,2020-05-01,\no2,Patient/p1,a,6,2021,\"two\nlines\"\no3,Patient/p2,b,7,,\no4,,b,7,,\n"
    )  # fmt: skip
    people = "id,birthDate,family_name\np1,1950-01-01,Meyer\np3,1960-01-01,\n"
    (tmp_path / "Patient.csv.zst").write_bytes(zstandard.ZstdCompressor().compress(people.encode()))
    found = run(tmp_path)
    assert found.tables
    assert not found.unread
    assert found.patients == 3
    assert {name: (of.resources, of.patients, of.nobody) for name, of in found.types.items()} == {
        "lab": (4, 2, 1), "Patient": (2, 2, 0),
    }  # fmt: skip
    assert {path: at.patients for path, at in found.paths.items()} == {
        "lab.id": 2, "lab.code": 2, "lab.value": 2, "lab.issued": 1, "lab.note": 1,
        "Patient.id": 2, "Patient.birthDate": 2, "Patient.family_name": 1,
    }  # fmt: skip
    assert found.paths["Patient.family_name"].kind == "name"
    assert found.paths["lab.note"].kind == "text"
    assert found.dates["lab.issued"].precision == {"day": 1, "year": 1}
    assert [(file.name, file.lines, file.patients) for file in found.files] == [
        ("Patient.csv.zst", 2, 2),
        ("lab.csv", 4, 2),
    ]


def test_original_values_are_found_in_cells(tmp_path: Path) -> None:
    source, out = tmp_path / "import", tmp_path / "csv"
    source.mkdir()
    out.mkdir()
    (source / "a.ndjson").write_text(
        '{"resourceType":"Patient","id":"p1","name":[{"family":"Meyerbeer"}],"birthDate":"1950-01-02",'
        '"identifier":[{"value":"0012345678"},{"value":"4711"}]}\n'
    )
    (out / "t.csv").write_text(
        "id,patient,text,mrn,amount,when,birth\n1,p1,Meyerbeer,0012345678,4711,1950-01-02,1950-01-02\n"
    )
    with Originals(tmp_path / "spool", 5) as originals:
        run(source, originals, collect=True)
        paths = run(out, originals).paths
    assert {path for path, at in paths.items() if at.original} == {"t.text", "t.mrn", "t.birth"}


@pytest.mark.parametrize("text", ["id,a\n1\n", 'id,a\n1,"x\0y\n', "id,a\n1,\udcff\n"])
def test_a_table_that_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / "u.csv").write_text("id,patient\n1,p1\n")
    found = run(tmp_path)
    assert "t.csv" in found.unread or text.count("\0")
    assert found.patients == 1


def test_original_ids_are_found_in_tables_as_ids_and_in_references(tmp_path: Path) -> None:
    source, out = tmp_path / "import", tmp_path / "csv"
    source.mkdir()
    out.mkdir()
    lines = (f'{{"resourceType": "Patient", "id": "hospital-{n}"}}\n' for n in range(9))
    (source / "a.ndjson").write_text("".join(lines), encoding="utf-8")
    ids = ["hospital-0" if n == 0 else f"{n:064x}" for n in range(9)]
    (out / "Patient.csv").write_text("id\n" + "\n".join(ids) + "\n", encoding="utf-8")
    rows = [f"e{n},Patient/{'hospital-1' if n == 1 else ids[n]},Encounter/e{n}" for n in range(9)]
    (out / "Encounter.csv").write_text("id,patient,other\n" + "\n".join(rows) + "\n", encoding="utf-8")
    with Originals(tmp_path / "spool", 5) as originals:
        run(source, originals, collect=True)
        found = run(out, originals)
    assert found.ids.kinds["original"] == 1
    assert found.ids.referred == 2


def test_an_identifier_of_the_import_is_found_in_a_row_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "import").mkdir()
    people = [{"resourceType": "Patient", "id": f"p{n}", "identifier": [{"value": f"MRN-4711{n}"}]} for n in range(6)]
    (tmp_path / "import" / "a.ndjson").write_text("".join(json.dumps(one) + "\n" for one in people))
    (tmp_path / "lab.csv").write_text(
        "id,patient,loinc_code,note,value\no1,Patient/MRN-47111,a,,1\no2,Patient/h2,MRN-47112,,2\n"
        "MRN-47113,Patient/h3,a,,3\no4,Patient/h4,a,of MRN-47114,4\no5,Patient/h5,a,,5\n"
    )  # fmt: skip
    with Originals(tmp_path / "spool", 5) as originals:
        run(tmp_path / "import", originals, collect=True)
        found = run(tmp_path, originals)
    assert {path: (at.kind, at.original) for path, at in found.paths.items() if at.original} == {
        "lab.patient": ("number", 1), "lab.loinc_code": ("number", 1), "lab.id": ("number", 1), "lab.note": ("text", 1),
    }  # fmt: skip
