"""One pass over files: patients, lines, types, tables, limits."""

from __future__ import annotations

import hashlib
import json
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tasks.release_report.measured import Measured
from tasks.release_report.numbers import Tally
from tasks.release_report.paths import MOST_NAMES
from tasks.release_report.report import checksum_of
from tasks.release_report.scan import ScanSettings, scan
from tasks.shared.errors import Stopped
from tasks.shared.files.inventory import take_inventory
from tasks.shared.stop import Stop
from tests.tasks.release_report.reporting import Json, bundle, observation, patient, write

TODAY = date(2026, 11, 28)


def measure(job: Path, folder: str = "import", **settings: Any) -> Measured:
    files = sorted((job / folder).iterdir())
    return scan(files, job, ScanSettings(**{"today": TODAY} | settings), stop=Stop(), read=lambda _: None)


def tally_of(measured: Measured, path: str) -> Tally:
    return next((one.found for one in measured.paths if one.path == path), Tally())


def test_files_are_those_on_the_disk(tmp_path: Path) -> None:
    plain = write(tmp_path, "b.ndjson", patient("1"), observation("1"))
    packed = tmp_path / "import" / "a.ndjson.zst"
    packed.write_bytes(zstandard.ZstdCompressor().compress(b"\n" + plain.read_bytes() + b"\n"))
    found = measure(tmp_path)
    assert [(file.name, file.lines, file.resources) for file in found.files] == [
        ("import/a.ndjson.zst", 2, 2), ("import/b.ndjson", 2, 2),
    ]  # fmt: skip
    assert [(file.size, file.sha256) for file in found.files] == [
        (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()) for path in (packed, plain)
    ]
    taken = take_inventory(tmp_path, [tmp_path / "import"], stop=Stop())
    assert [(file.name, file.size, file.sha256) for file in found.files] == [
        (entry.name, entry.size, entry.sha256) for entry in taken.entries
    ]


def test_a_person_can_check_the_checksum(tmp_path: Path) -> None:
    for name in ("b", "a", "core", "Ä"):
        write(tmp_path, f"{name}.ndjson", patient(name))
    command = "LC_ALL=C; export LC_ALL; sha256sum * | sha256sum"
    said = subprocess.run(["sh", "-c", command], cwd=tmp_path / "import", capture_output=True, text=True, check=True)
    assert said.stdout.split()[0] == checksum_of(measure(tmp_path).files)


@pytest.mark.parametrize(
    ("lines", "patients"),
    [
        ([bundle(patient("1"), observation("2"))], 1),
        ([bundle(patient("1"), patient("2"), observation("3"))], 3),
        ([patient("1"), observation("1"), observation("2")], 2),
        ([observation(None), {"resourceType": "Organization"}], 0),
        ([{"resourceType": "Coverage", "beneficiary": {"reference": "https://h/fhir/Patient/7/_history/1"}}], 1),
        ([{"resourceType": "Consent", "patient": {"reference": "Patient/7"}}], 1),
        ([{"resourceType": "Flag", "subject": {"reference": "Group/7"}}], 0),
        ([patient("7"), {"resourceType": "Flag", "subject": {"reference": "urn:uuid:7"}}], 1),
        ([bundle(patient("1"), type="document")], 1),
    ],
)
def test_whose_a_resource_is(tmp_path: Path, lines: list[Json], patients: int) -> None:
    write(tmp_path, "data.ndjson", *lines)
    assert measure(tmp_path).patients == patients


def test_a_reference_by_full_url_leads_to_the_patient_of_the_same_line(tmp_path: Path) -> None:
    people = [patient("1", name=[{"family": "x"}]), patient("2")]
    entries = [{"fullUrl": f"urn:uuid:u{one['id']}", "resource": one} for one in people]
    told = {"resourceType": "Flag", "subject": {"reference": "urn:uuid:u2"}}
    line = {"resourceType": "Bundle", "type": "collection", "entry": [*entries, {"resource": told}]}
    write(tmp_path, "data.ndjson", line)
    assert measure(tmp_path).patients == 2


def test_patients_of_bundles_are_exact(tmp_path: Path) -> None:
    lines = [bundle(patient(str(n)), *[observation(str(n), note=[{"text": "x"}])] * (n < 7)) for n in range(20)]
    core = bundle({"resourceType": "Practitioner", "id": "d", "name": [{"family": "x"}]})
    write(tmp_path, "data.ndjson", core, *lines)
    found = measure(tmp_path)
    assert tally_of(found, "Observation.note.text") == Tally(7, True, 7, 0)
    assert tally_of(found, "Practitioner.name.family") == Tally(0, True, 1, 1)


@pytest.mark.parametrize(("patients", "expected"), [(3, Tally(3, True, 6)), (9, Tally(5, False, 18))])
def test_patients_of_loose_lines_are_counted_up_to_k(tmp_path: Path, patients: int, expected: Tally) -> None:
    lines = [observation(str(n), f"o{at}", note=[{"text": "x"}]) for n in range(patients) for at in range(2)]
    write(tmp_path, "data.ndjson", *[patient(str(n)) for n in range(20)], *lines)
    assert tally_of(measure(tmp_path), "Observation.note.text") == expected


def test_a_line_in_two_places_is_one_line(tmp_path: Path) -> None:
    twice = observation("1", note=[{"text": "x"}, {"text": "y"}])
    write(tmp_path, "data.ndjson", bundle(patient("1"), twice, twice))
    assert tally_of(measure(tmp_path), "Observation.note.text") == Tally(1, True, 1)


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ({"city": "Ulm"}, {"Patient.address.city"}),
        ({"postalCode": "89073"}, {"Patient.address.postalCode"}),
        ({"postalCode": "890"}, {"Patient.address.postalCode"}),
        ({"postalCode": "89"}, set()),
        ({"postalCode": "89000"}, set()),
        ({"postalCode": "89xxx"}, set()),
        ({"state": "BW", "country": "DE"}, set()),
        ({"city": " "}, set()),
    ],
)
def test_how_exact_a_place_may_be(tmp_path: Path, place: Json, found: set[str]) -> None:
    write(tmp_path, "data.ndjson", patient("1", address=[place]))
    assert {one.path for one in measure(tmp_path).paths} == found


@pytest.mark.parametrize(
    ("birth", "more", "precision", "is_old"),
    [
        ("1980-02-03", {}, "day", False),
        ("1980-02", {}, "month", False),
        ("1980", {}, "year", False),
        ("1936", {}, "year", True),
        ("1937", {}, "year", False),
        ("1936-11-28", {}, "day", True),
        ("1936-11-29", {}, "day", False),
        ("1930", {"deceasedDateTime": "2019-05-01"}, "year", False),
        ("1930", {"deceasedDateTime": "2020-05-01T00:00:00Z"}, "year", True),
    ],
)
def test_birth_dates(tmp_path: Path, birth: str, more: Json, precision: str, is_old: bool) -> None:
    write(tmp_path, "data.ndjson", patient("1", birthDate=birth, **more))
    found = measure(tmp_path)
    assert {name for name, tally in found.births.items() if tally.patients} == {precision}
    assert bool(found.above_89.patients) is is_old
    assert {one.path for one in found.paths} == ({"Patient.birthDate"} if precision == "day" else set())


def test_ids_by_form(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"1").hexdigest()
    write(tmp_path, "data.ndjson", *map(patient, (hashed, "0f1e2d3c-1111-2222-3333-444455556666", "MRN-17", "18")))
    assert {form: tally.patients for form, tally in measure(tmp_path).ids.items()} == {
        "hashed": 1,
        "uuid": 1,
        "other": 2,
    }


def test_classes_of_patients(tmp_path: Path) -> None:
    one = {"birthDate": "1980-01-01", "gender": "female", "address": [{"city": "x"}, {"postalCode": "10115"}]}
    write(tmp_path, "data.ndjson", patient("1", **one), patient("2", **one), patient("2", **one), patient("3"))
    assert measure(tmp_path).classes == {("1980", "female", "10"): 2, ("", "", ""): 1}


def test_identifiers_by_system_and_extensions_by_url(tmp_path: Path) -> None:
    own = {"identifier": [{"system": "s", "value": "1"}, {"value": "2"}], "extension": [{"url": "http://x/y"}]}
    write(tmp_path, "data.ndjson", *(patient(str(number), **own) for number in range(3)))
    found = measure(tmp_path)
    [one] = found.paths
    assert {system: tally.patients for system, tally in one.systems.items()} == {"s": 3, "": 3}
    assert {url: tally.patients for url, tally in found.extensions.items()} == {"http://x/y": 3}


@pytest.mark.parametrize(
    "line",
    [
        b"{", b"[]", b'{"resourceType": 1}', b'{"resourceType": "Patient", "name": [}', b"\xff\xfe", b'{"a": 1}',
        b'{"resourceType":"Bundle","type":"history","entry":[{"resource":{"resourceType":"Patient","id":"1"}}]}',
        b'{"resourceType":"Patient","x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)  # fmt: skip
def test_a_line_that_is_no_data_is_unread(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, "data.ndjson", patient("1"))
    path.write_bytes(path.read_bytes() + line + b"\n" + json.dumps(patient("2")).encode())
    found = measure(tmp_path)
    assert (found.files[0].lines, found.files[0].unread, found.patients) == (3, 1, 2)


@pytest.mark.parametrize(
    ("name", "content"),
    [("data.ndjson.zst", b"\x28\xb5\x2f\xfd\x00"), ("data.xml", b"<Patient/>"), ("data.csv", b'"a\nb')],
)
def test_a_file_that_cannot_be_read_has_its_hash_all_the_same(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "import").mkdir()
    (tmp_path / "import" / name).write_bytes(content)
    [found] = measure(tmp_path).files
    assert (found.unread, found.size, found.sha256) == (-1, len(content), hashlib.sha256(content).hexdigest())


def test_a_line_above_the_limit_is_unread(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", patient("1", note="x" * 600_000))
    assert measure(tmp_path, longest_line=300_000).files[0].unread == -1


def test_odd_names_of_elements_and_types_are_not_shown(tmp_path: Path) -> None:
    odd = {"a b<c>": "Some text", "contained": [{"resourceType": "no type", "note": "Some text"}]}
    write(tmp_path, "data.ndjson", observation("1", **odd))
    found = measure(tmp_path)
    assert {one.path for one in found.paths} == {"Observation.…", "Observation.contained.…"}


def test_names_that_differ_in_each_resource_cost_no_memory_and_hide_nothing(tmp_path: Path) -> None:
    def one(number: int) -> Json:
        return patient(
            str(number), identifier=[{"system": f"urn:{number}", "value": "1"}],
            extension=[{"url": f"http://x/{number}", "valueString": "Some text"}],
            contained=[{"resourceType": "T" + chr(97 + number % 26) * (number + 1), "note": "Some text"}],
            **{f"k{number}": {f"k{number}": "Some text"}},
        )  # fmt: skip

    most = 3 * MOST_NAMES
    write(tmp_path, "data.ndjson", *map(one, range(most)), one(most) | {"name": [{"family": "x"}]})
    found = measure(tmp_path)
    assert len(found.paths) < 4 * MOST_NAMES
    assert {len(texts) for path in found.paths for texts in (path.urls, path.systems)} <= {0, MOST_NAMES + 1}
    assert len(found.extensions) == MOST_NAMES + 1
    assert tally_of(found, "Patient.extension.valueString").lines == most + 1
    [name] = [one for one in found.paths if one.kind == "name"]
    assert (name.path, name.found.lines) == ("Patient.…", 1)


def test_a_pass_can_be_stopped(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", patient("1"))
    stop = Stop()
    stop.request("test")
    with pytest.raises(Stopped):
        scan([tmp_path / "import" / "data.ndjson"], tmp_path, ScanSettings(), stop=stop, read=lambda _: None)


# Tables


def table(job: Path, name: str, text: str, view: Json | None = None) -> None:
    (job / "csv").mkdir(exist_ok=True)
    (job / "csv" / f"{name}.csv").write_text(text, encoding="utf-8")
    if view is not None:
        (job / "viewdefinitions").mkdir(exist_ok=True)
        (job / "viewdefinitions" / f"{name}.json").write_text(json.dumps(view))


VIEW: Json = {
    "resource": "Patient",
    "select": [
        {"column": [{"name": "id", "path": "id"}]},
        {"forEachOrNull": "name.where(use = 'official')", "column": [{"name": "a", "path": "family"}]},
        {"forEach": "address", "select": [{"column": [{"name": "b", "path": "postalCode.substring(0, 5)"}]}]},
        {"column": [{"name": "family", "path": "gender"}, {"name": "c", "path": "extension('http://x').value"}]},
    ],
}  # fmt: skip


def test_a_column_is_judged_by_its_path_in_the_view(tmp_path: Path) -> None:
    table(tmp_path, "people", "id,a,b,family,c\n1,Meier,10115,female,\n2,,,male,\n", VIEW)
    found = measure(tmp_path, "csv", views=tmp_path / "viewdefinitions")
    assert found.tables
    assert (found.patients, found.files[0].resources) == (2, 2)
    assert {(one.path, one.kind) for one in found.paths} == {
        ("people.csv: a", "name"), ("people.csv: b", "place"),
    }  # fmt: skip
    assert tally_of(found, "people.csv: a") == Tally(1, True, 1)


def test_a_column_without_a_view_is_judged_by_its_name(tmp_path: Path) -> None:
    table(tmp_path, "people", 'patient,family_name,"no, name"\nPatient/1,Meier,x\nPatient/1,"Me\nier",y\n')
    found = measure(tmp_path, "csv")
    assert (found.patients, found.lines) == (1, 2)
    assert [(one.path, one.kind, one.found) for one in found.paths] == [
        ("people.csv: family_name", "name", Tally(1, True, 2)),
    ]  # fmt: skip


def test_a_table_without_rows_has_no_findings(tmp_path: Path) -> None:
    table(tmp_path, "people", "id,a\n", VIEW)
    assert measure(tmp_path, "csv", views=tmp_path / "viewdefinitions").paths == ()
