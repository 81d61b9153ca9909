"""Findings of the measuring pass (document 5, section 1 R1, section 2, promises 4, 5 and 7)."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasks.release_report.measure.cells import DataRun
from tasks.release_report.measure.lookup import Lookup
from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.measured import Measured
from tasks.release_report.measure.originals import Originals, keyed
from tasks.shared.errors import Stopped
from tasks.shared.stop import Stop

Json = dict[str, Any]
TODAY = date(2026, 11, 23)
K = 5


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path


def run(
    place: Path, *, originals: Originals | None = None, collect: bool = False, folder: str = "data", **more: Any
) -> Measured:
    files, spool = sorted((place / folder).iterdir()), place / "spool"
    return measure(
        files, base=place, spool=spool, stop=Stop(), k=K, today=TODAY, originals=originals, collect=collect, **more
    )


def write(place: Path, name: str, *lines: Json, folder: str = "data") -> Path:
    path = place / folder / name
    path.parent.mkdir(exist_ok=True)
    text = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
    path.write_bytes(zstandard.ZstdCompressor().compress(text) if name.endswith(".zst") else text)
    return path


def bundle(*resources: Json, **more: Any) -> Json:
    entries = [{"fullUrl": f"http://h/{one['resourceType']}/{one['id']}", "resource": one} for one in resources]
    return {"resourceType": "Bundle", "type": "collection", "entry": entries, **more}


def patient(own: str, **elements: Any) -> Json:
    return {"resourceType": "Patient", "id": own, **elements}


def observation(whose: str | None, number: int, **elements: Any) -> Json:
    subject = {"subject": {"reference": f"Patient/{whose}"}} if whose is not None else {}
    return {"resourceType": "Observation", "id": f"o{whose}-{number}", "status": "final", **subject, **elements}


def resources(path: Path) -> Iterator[tuple[Json, str | None]]:
    """Yield every resource of a file, and whose it is, by other and simple code."""

    def owner(one: Json) -> str | None:
        reference = str(one.get("subject", {}).get("reference", ""))
        return str(one["id"]) if one["resourceType"] == "Patient" else reference.removeprefix("Patient/") or None

    content = path.read_bytes()
    if path.suffix == ".zst":
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    for line in map(json.loads, content.splitlines()):
        inside = [entry["resource"] for entry in line["entry"]] if line["resourceType"] == "Bundle" else [line]
        patients = [one["id"] for one in inside if one["resourceType"] == "Patient"]
        only = patients[0] if len(patients) == 1 and line["resourceType"] == "Bundle" else None
        for one in inside:
            yield one, only or owner(one)


def compared(place: Path) -> None:
    """Assert that the pass and simple code find the same."""
    files = sorted((place / "data").iterdir())
    found, expected = run(place), [(file, *pair) for file in files for pair in resources(file)]
    assert not found.unread
    assert not found.others
    assert found.patients == len({whose for _, _, whose in expected} - {None})
    assert {kind: (of.resources, of.patients, of.nobody) for kind, of in found.types.items()} == {
        kind: (len(of), len({*of} - {None}), of.count(None))
        for kind in {one["resourceType"] for _, one, _ in expected}
        for of in [[whose for _, one, whose in expected if one["resourceType"] == kind]]
    }
    assert {file.name: file.patients for file in found.files} == {
        f"data/{file.name}": len({whose for at, _, whose in expected if at == file} - {None}) for file in files
    }
    assert {name: found.paths[path].patients if path in found.paths else 0 for name, path in LEAVES.items()} == {
        name: len({whose for _, one, whose in expected if name in one} - {None}) for name in LEAVES
    }


LEAVES = {
    "birthDate": "Patient.birthDate", "valueQuantity": "Observation.valueQuantity.value",
    "note": "Observation.note.text",
}  # fmt: skip


_codes = st.sampled_from([{"system": "s", "code": "a", "display": "A"}, {"system": "s", "code": "b"}, {"code": "c"}])
_elements = st.fixed_dictionaries(
    {},
    optional={
        "code": st.builds(lambda some: {"coding": some}, st.lists(_codes, min_size=1, max_size=2)),
        "valueQuantity": st.builds(lambda v: {"value": v, "unit": "mg", "system": "u", "code": "mg"}, st.floats(0, 9)),
        "valueString": st.sampled_from(["x", "long text", ""]),
        "effectiveDateTime": st.sampled_from(["2020", "2020-05", "2021-05-01", "2021-05-01T10:00:00Z"]),
        "note": st.just([{"text": "n"}, {"text": "m", "time": "2020-01-01"}]),
        "extension": st.lists(
            st.builds(lambda url, v: {"url": url, "valueString": v}, st.sampled_from(["u:1", "u:2"]), st.text("ab")),
            min_size=1,
            max_size=2,
        ),
        "_status": st.just({"extension": [{"url": "u:3", "valueCode": "masked"}]}),
        "contained": st.just([{"resourceType": "Patient", "id": "c", "name": [{"family": "F"}]}]),
        "performer": st.just([{"display": "D"}]),
    },
)


@st.composite
def populations(draw: st.DrawFn) -> list[list[Json]]:
    """Draw the resources of some patients; a list each."""
    count = draw(st.integers(1, 6))
    return [
        [
            patient(f"p{number}", **draw(st.fixed_dictionaries({}, optional={"birthDate": st.just("1950-01-02")}))),
            *(observation(f"p{number}", index, **draw(_elements)) for index in range(draw(st.integers(0, 4)))),
        ]
        for number in range(count)
    ]


def _as_bundles(place: Path, people: list[list[Json]], zst: bool) -> None:
    half = len(people) // 2
    for name, some in (("a", people[:half]), ("b", people[half:])):
        write(place, f"{name}.ndjson{'.zst' if zst else ''}", *(bundle(*one, id="x") for one in some))


def _as_batches(place: Path, people: list[list[Json]], zst: bool) -> None:
    mixed = [one for group in people for one in reversed(group)]
    write(place, f"a.ndjson{'.zst' if zst else ''}", bundle(*mixed), bundle(observation("p0", 77)))


def _as_lines(place: Path, people: list[list[Json]], zst: bool) -> None:
    for kind in ("Observation", "Patient"):
        some = [one for group in people for one in group if one["resourceType"] == kind]
        write(place, f"{kind}.ndjson{'.zst' if zst else ''}", *some)


def _as_both(place: Path, people: list[list[Json]], zst: bool) -> None:
    _as_bundles(place, people, zst)
    write(place, "c.ndjson", *(observation(group[0]["id"], 99, valueString="late") for group in people))


FORMS: list[Callable[[Path, list[list[Json]], bool], None]] = [_as_bundles, _as_batches, _as_lines, _as_both]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(people=populations(), zst=st.booleans(), core=st.booleans())
def test_other_code_counts_the_same(
    form: Callable[[Path, list[list[Json]], bool], None], people: list[list[Json]], zst: bool, core: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "data").mkdir()
        form(place, people, zst)
        if core:
            practitioner = {"resourceType": "Practitioner", "id": "d", "name": [{"family": "Arzt"}]}
            write(place, "core.ndjson", bundle(practitioner, {"resourceType": "Medication", "id": "m"}))
        compared(place)


def test_entries_that_are_not_usual_are_told_by_the_patients_url(place: Path) -> None:
    observations = [
        {"resource": {**observation(None, number), "subject": {"reference": f"urn:{number % 3}"}},
         "search": {"mode": "match"}}
        for number in range(9)
    ]  # fmt: skip
    patients = [{"fullUrl": f"urn:{number}", "resource": patient(f"p{number}")} for number in range(3)]
    strange = [{"link": []}, {"resource": None}, {"fullUrl": 7, "resource": {"resourceType": "Patient", "id": 7}}]
    write(place, "a.ndjson", {"resourceType": "Bundle", "type": "batch", "entry": [*observations, *patients, *strange]})
    found = run(place)
    assert not found.unread
    assert (found.patients, found.types["Observation"].patients, found.types["Observation"].nobody) == (3, 3, 0)
    assert found.paths["Bundle.entry.search.mode"].patients == 3


AROUND: dict[str, Any] = {
    "plain": {},
    "all of them": {
        "request": {"method": "POST", "url": "Patient", "ifNoneExist": "a=b", "ifMatch": "W/1"},
        "response": {"status": "201", "location": "Patient/1", "outcome": {"resourceType": "OperationOutcome"}},
        "search": {"mode": "match", "score": 1},
    },
    "of an element": {"link": [{"relation": "self", "url": "http://h"}], "id": "e",
                      "extension": [{"url": "u", "valueString": "x"}], "_fullUrl": {"id": "f"}},
    "not as FHIR has them": {"remark": "x", "fullUrl": {"name": "x"}, "request": {"method": "GET", "url": ["x"]}},
}  # fmt: skip


@pytest.mark.parametrize("more", AROUND)
def test_whatever_an_entry_has_beside_its_resource_is_measured_in_each_form(place: Path, more: str) -> None:
    """With white space or without."""
    lines = [bundle(patient(f"p{number}"), link=[{"relation": "self"}]) for number in range(K)]
    for line in lines:
        line["entry"][0] |= AROUND[more]
    write(place, "a.ndjson", *lines)
    path = place / "data/a.ndjson"
    text = path.read_bytes()
    found = []
    for written in (text, text.replace(b": ", b":").replace(b", ", b",")):
        path.write_bytes(written)
        found.append(run(place))
    assert [one.unread for one in found] == [{}] * 2
    first, *others = ((one.paths, one.elements, one.undefined, one.patients) for one in found)
    assert others == [first]
    leaves = {
        leaf for key, value in AROUND[more].items() for leaf in _leaf_paths(f"Bundle.entry.{key.strip('_')}", value)
    }
    assert {path for path in leaves if path not in found[0].paths} == set()


def _leaf_paths(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _leaf_paths(path, one)
    elif not isinstance(value, dict):
        yield path
    else:
        apart = "url" if path.endswith("extension") else "resourceType"
        path += (
            {"url": f"({value.get('url')})", "resourceType": f".{value.get(apart)}"}[apart] if apart in value else ""
        )
        for key in value.keys() - {apart}:
            yield from _leaf_paths(f"{path}.{key}", value[key])


@pytest.mark.slow
def test_a_thousand_resources_of_one_patient_are_one_patient_everywhere(place: Path) -> None:
    code = {"coding": [{"system": "s", "code": "rare", "display": "Rare"}], "text": "Rare"}
    many = [
        observation("p1", number, code=code, effectiveDateTime="2020-05-01", identifier=[{"system": "i", "value": "v"}],
                    valueQuantity={"value": number, "unit": "mg"}, meta={"profile": ["p"]},
                    extension=[{"url": "e", "valueString": "x"}])
        for number in range(1000)
    ]  # fmt: skip
    write(place, "a.ndjson", bundle(patient("p1"), *many), bundle(patient("p2")))
    everywhere(run(place))
    write(place, "a.ndjson", patient("p1"), patient("p2"), *many)
    everywhere(run(place))


def everywhere(found: Measured) -> None:
    assert found.types["Observation"].patients == 1
    assert found.types["Observation"].resources == 1000
    assert {at.patients for path, at in found.paths.items() if path.startswith("Observation")} == {1}
    dates = found.dates["Observation.effectiveDateTime"]
    assert (dates.patients, dates.months, dates.precision) == (1, {"2020-05": 1}, {"day": 1})
    assert found.identifier_systems == {"i": 1}
    assert found.extensions == {"e": 1}
    assert found.ids.kinds["other"] >= 1


def test_the_files_are_hashed_and_counted_as_they_are_stored(place: Path) -> None:
    plain = write(place, "a.ndjson", bundle(patient("p1")), bundle(patient("p2")))
    packed = write(place, "b.ndjson.zst", bundle(patient("p3"), observation("p3", 1)))
    read: list[int] = []
    first, second = run(place, read=read.append).files
    for file, path in ((first, plain), (second, packed)):
        assert file.name == f"data/{path.name}"
        assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert file.bytes == path.stat().st_size
    assert (first.content, first.lines, first.resources, first.patients) == (first.bytes, 2, 2, 2)
    assert (second.lines, second.resources, second.patients) == (1, 2, 1)
    assert second.content > second.bytes
    assert sum(read) == first.content + second.content, "progress is in bytes of content"


def test_what_cannot_be_read_is_said_and_ends_nothing(place: Path) -> None:
    write(place, "a.ndjson", bundle(patient("p1")))
    broken = place / "data" / "b.ndjson"
    broken.write_bytes(b'{"resourceType":"Patient","id":"p2"}\n{"resourceType":"Patient","name":[{"family":"Sec\n[1]\n')
    cut = place / "data" / "c.ndjson.zst"
    cut.write_bytes(zstandard.ZstdCompressor().compress(b'{"resourceType":"Patient","id":"p3"}\n' * 99)[:-9])
    found = run(place)
    assert found.patients >= 2
    assert found.unread["data/b.ndjson"] == "line 2 is no FHIR resource that can be read"
    assert "data/c.ndjson.zst" in found.unread
    assert "Sec" not in str(found)
    assert {file.name: file.sha256 for file in found.files}["data/c.ndjson.zst"] == hashlib.sha256(
        cut.read_bytes()
    ).hexdigest()


DEEP: dict[str, Any] = {
    "valueQuantity": {"value": 1, "unit": "g", "system": "http://u.example", "code": "g"},
    "valueCoding": {"system": "http://s.example", "code": "c", "display": "d"},
    "valueCodeableConcept": {"coding": [{"system": "http://s.example", "code": "c"}], "text": "t"},
    "valueReference": {"reference": "Patient/1", "display": "d"},
    "valueIdentifier": {"system": "http://s.example", "value": "12345"},
    "valuePeriod": {"start": "2020-01-01"},
}


@pytest.mark.parametrize("key", DEEP)
def test_what_is_nested_deeper_than_paths_are_told_apart_is_read(place: Path, originals: Originals, key: str) -> None:
    lines = []
    for depth in range(36, 44):
        inner: Json = {"url": "u", key: DEEP[key]}
        for _ in range(depth):
            inner = {"url": "u", "extension": [inner]}
        lines += [patient(f"p{depth}-{n}", extension=[inner]) for n in "12"]
    write(place, "a.ndjson", *lines)
    for collect in (True, False):
        found = run(place, originals=originals, collect=collect)
        assert found.patients == 16


@pytest.mark.parametrize("number", ["1e400", "1" + "0" * 400, "-1e99999999"])
def test_a_number_that_is_too_large_ends_nothing(place: Path, number: str) -> None:
    write(place, "a.ndjson", patient("p"), observation("p", 1, valueQuantity={"value": "NUMBER", "unit": "g"}))
    path = place / "data/a.ndjson"
    path.write_text(path.read_text().replace('"NUMBER"', number))
    found = run(place)
    assert (found.unread, found.types["Observation"].resources) == ({}, 1)


def test_a_stop_is_obeyed(place: Path) -> None:
    write(place, "a.ndjson", bundle(patient("p1")))
    stop = Stop()
    stop.request("stop")
    with pytest.raises(Stopped):
        measure([place / "data" / "a.ndjson"], base=place, spool=place, stop=stop, k=K, today=TODAY)


@pytest.mark.slow
def test_a_line_that_is_too_long_for_memory_is_read_entry_by_entry(place: Path) -> None:
    long = "x" * 220_000
    one = [observation("p1", number, valueString=f"{long}{number}") for number in range(20)]
    write(place, "a.ndjson", bundle(patient("p1"), *one))
    write(place, "b.ndjson", bundle(*(observation(f"p{number}", 50, valueString=long) for number in range(20))))
    write(place, "c.ndjson", patient("q", maritalStatus={"text": long * 20}))
    compared(place)


# -- what it says beyond counts --


def test_classes_are_of_year_sex_and_region(place: Path) -> None:
    write(place, "a.ndjson", *(
        patient(f"p{number}", birthDate="1950-01-01", gender="female", address=[{"postalCode": "04109"}])
        for number in range(3)
    ), patient("q"))  # fmt: skip
    assert run(place).classes == {("1950", "female", "04"): 3, ("", "", ""): 1}


# -- original values --


@pytest.fixture
def originals(place: Path) -> Iterator[Originals]:
    with Originals(place / "spool", K) as found:
        yield found


def test_a_value_that_fewer_than_k_patients_had_is_found_wherever_it_stands(place: Path, originals: Originals) -> None:
    people = [
        patient(f"p{n}", name=[{"family": f"Family{n}"}], maritalStatus={"text": "married"},
                address=[{"city": "Leipzig" if n else "Torgau", "postalCode": f"0410{n}"}],
                extension=[{"url": "u:m", "valueString": f"Maiden{n}"}, {"url": "u:n", "valueInteger": 123450 + n}])
        for n in range(8)
    ]  # fmt: skip
    write(place, "a.ndjson", *people, folder="import")
    run(place, originals=originals, collect=True, folder="import")
    write(
        place, "a.ndjson",
        *(patient(f"x{n}", name=[{"family": "*"}], address=[{"city": one["address"][0]["city"]}])
          for n, one in enumerate(people)),
        observation("x1", 1, valueString="Maiden1"), observation("x2", 1, note=[{"text": "Family2"}]),
        observation("x2", 2, note=[{"text": "Family2"}]), observation("x3", 1, valueString="123453"),
        observation("x3", 1, valueQuantity={"value": 123454}),
        observation("x3", 4, code={"coding": [{"code": "Maiden4"}]}),
        {"resourceType": "Practitioner", "id": "z", "name": [{"family": "Family7"}]},
    )  # fmt: skip
    found = {path: (at.original, at.original_nobody) for path, at in run(place, originals=originals).paths.items()}
    assert {path: count for path, count in found.items() if any(count)} == {
        "Patient.address.city": (1, 0),
        "Observation.valueString": (2, 0),
        "Observation.note.text": (1, 0),
        "Practitioner.name.family": (0, 1),
    }


def test_what_is_coded_measured_or_a_clinical_date_is_no_original(place: Path, originals: Originals) -> None:
    coded = {"url": "omb", "valueCoding": {"system": "s", "code": "2028-9", "display": "Asian"}}
    race = {"url": "race", "extension": [{"url": "text", "valueString": "Asian"}, coded]}
    person = patient("p1", birthDate="1950-01-02", gender="other", extension=[race])
    code = {"coding": [{"system": "s", "code": "rare code", "display": "rare"}], "text": "rare text"}
    quantity = {"value": 4711.5, "unit": "rare unit"}
    seen = observation("p1", 1, effectiveDateTime="1950-01-02", valueQuantity=quantity, code=code)
    write(place, "a.ndjson", person, seen, folder="import")
    run(place, originals=originals, collect=True, folder="import")
    del person["birthDate"]
    write(place, "a.ndjson", person, seen)
    assert not [path for path, at in run(place, originals=originals).paths.items() if at.original]


def test_ids_that_were_in_the_import_are_told(place: Path, originals: Originals) -> None:
    write(
        place, "a.ndjson", *(bundle(patient(f"mrn-{n}"), observation(f"mrn-{n}", 1)) for n in range(3)), folder="import"
    )
    run(place, originals=originals, collect=True, folder="import")
    new = "c0ffee00-0000-4000-8000-00000000000"
    referring = observation(f"{new}0", 1) | {"subject": {"reference": "Patient/mrn-0"}, "id": "new"}
    write(
        place, "a.ndjson", bundle(patient(f"{new}0"), referring), bundle(patient("mrn-1")), bundle(patient(f"{new}2"))
    )
    ids = run(place, originals=originals).ids
    assert ids.kinds == {"original": 1, "uuid": 2, "sequential": 1, "other": 1}
    assert ids.referred == 1


def test_one_shift_for_all_is_seen(place: Path, originals: Originals) -> None:
    def people(days: int) -> list[Json]:
        return [
            bundle(patient(f"p{n}"), observation(f"p{n}", 1, effectiveDateTime=f"2020-01-{n + 1 + days:02}"),
                   observation(f"p{n}", 2, effectiveDateTime=f"2020-02-{n + 1 + days:02}T10:00:00Z"))
            for n in range(6)
        ]  # fmt: skip

    write(place, "a.ndjson", *people(0), folder="import")
    run(place, originals=originals, collect=True, folder="import")
    write(place, "a.ndjson", *people(11))
    assert run(place, originals=originals).date_shifts == {11: 6}


def test_when_the_extraction_ran_says_nothing_of_how_dates_were_shifted(place: Path, originals: Originals) -> None:
    def people(*days: int) -> list[Json]:
        ran = {"resourceType": "Provenance", "id": "x", "recorded": "2026-11-23T10:00:00Z"}
        return [
            bundle(patient(f"p{n}"), observation(f"p{n}", 1, effectiveDateTime=f"2020-01-{n + 1 + day:02}"),
                   observation(f"p{n}", 2, effectiveDateTime=f"2020-02-{n + 1 + day:02}"), ran)
            for n, day in enumerate(days)
        ]  # fmt: skip

    write(place, "a.ndjson", *people(0, 0, 0, 0), folder="import")
    run(place, originals=originals, collect=True, folder="import")
    write(place, "a.ndjson", *people(3, 7, 0, 3))  # one of them by none, by chance
    found = run(place, originals=originals)
    assert (found.date_shifts, found.shift) == ({3: 2, 7: 1, 0: 1}, "own")


def test_a_hash_seed_that_somebody_set_is_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    first, second = keyed(), keyed()
    assert first("Meyer") == first("Meyer") != second("Meyer")
    monkeypatch.delenv("PYTHONHASHSEED")
    assert keyed() is hash


def test_a_text_that_the_table_lets_pass_by_chance_is_not_suspicious(place: Path, originals: Originals) -> None:
    people = [patient(f"p{n}", identifier=[{"system": "s", "value": f"MRN-2023-{n:05}"}]) for n in range(40)]
    write(place, "a.ndjson", *people, folder="import")
    run(place, originals=originals, collect=True, folder="import")
    originals.table[:] = b"\1" * len(originals.table)
    lookup = Lookup(DataRun(), place / "spool", originals, collect=False)
    originals.lengths.update(range(3, 40))
    assert not any(map(lookup.suspicious, ("http://loinc.org", "1234-5", "Hemoglobin", "MRN-2023-00040")))
    assert all(map(lookup.suspicious, ("MRN-2023-00007", "http://x.example/MRN-2023-00039")))


def test_hashes_that_the_table_lets_pass_by_chance_change_nothing_in_the_result(place: Path) -> None:
    people = [
        patient(f"p{n}", identifier=[{"system": "s", "value": f"MRN-2023-{n:05}"}], extension=[
            {"url": "http://x.example/born-town-0001", "valueString": f"Town {n % 7}"},
        ]) for n in range(40)
    ]  # fmt: skip
    write(place, "a.ndjson", *map(bundle, people))
    found = []
    for all_pass in (False, True):
        with Originals(place / "spool", K) as originals:
            run(place, originals=originals, collect=True)
            if all_pass:
                originals.table[:] = b"\1" * len(originals.table)
            found.append(replace(run(place, originals=originals), seconds=0))
    assert found[0] == found[1]


def test_nothing_of_the_spilled_values_stays_on_the_disk(place: Path, originals: Originals) -> None:
    write(place, "a.ndjson", patient("p1", name=[{"family": "Family"}]), folder="import")
    run(place, originals=originals, collect=True, folder="import")
    originals.close()
    assert not (place / "spool").exists() or not list((place / "spool").iterdir())
    shutil.rmtree(place / "spool", ignore_errors=True)


def measure_both(place: Path, imported: list[Json], leaving: list[Json]) -> tuple[Measured, dict[str, tuple[int, int]]]:
    """Measure the sent data, and count the originals of ``imported`` in them by path: of patients, of nobody."""
    write(place, "a.ndjson", *imported, folder="import")
    write(place, "a.ndjson", *leaving)
    with Originals(place / "spool", K) as originals:
        run(place, originals=originals, collect=True, folder="import")
        found = run(place, originals=originals)
    at = {path: (one.original, one.original_nobody) for path, one in found.paths.items()}
    return found, {path: numbers for path, numbers in at.items() if any(numbers)}


def born(dates: list[str], hashed: bool = False) -> list[Json]:
    return [bundle(patient(f"{'h' if hashed else 'p'}{n}", birthDate=one)) for n, one in enumerate(dates)]


def test_a_shifted_date_that_is_another_patients_is_no_original(place: Path) -> None:
    days = [f"1950-03-{day:02}" for day in range(1, 21)]
    _, found = measure_both(place, born(days), born([*days[3:], "1950-04-01", "1950-04-02", "1950-04-03"], hashed=True))
    assert found == {}


def test_a_date_of_the_same_patient_is_an_original_and_so_are_permuted_dates(place: Path) -> None:
    days = [f"1950-03-{day:02}" for day in range(1, 21)]
    _, found = measure_both(place, born(days), born([*days[:1], *["1951-07-07"] * 19], hashed=True))
    assert found == {"Patient.birthDate": (1, 0)}
    _, found = measure_both(place, born(days), born(days[1:] + days[:1], hashed=True))
    assert found == {"Patient.birthDate": (20, 0)}


@pytest.mark.parametrize("end", ["", "-01-01"])
def test_a_year_is_no_original_date(place: Path, end: str) -> None:
    years = [str(1930 + n) for n in range(20)]
    came = born([f"1930{end}", *(f"{year}-03-04" for year in years[1:])])
    _, found = measure_both(place, came, born([f"{year}{end}" for year in years], hashed=True))
    assert found == {}


@pytest.mark.parametrize("where", ["reference", "url", "ifNoneExist"])
def test_a_number_that_a_search_asks_for_is_an_original(place: Path, where: str) -> None:
    came = [bundle(patient(f"p{n}", identifier=[{"value": f"MRN 77-{n}"}]), observation(f"p{n}", n)) for n in range(9)]
    leave = [bundle(patient(f"h{n}"), observation(f"h{n}", n)) for n in range(9)]
    search = "identifier=http://hospital.example%7CMRN%2077-3&active=true"
    first = leave[3]["entry"][1]
    if where == "reference":
        first["resource"]["subject"]["reference"] = f"Patient?{search}"
    else:
        first["request"] = {"method": "PUT", "url": "Observation/oh3-3"} | {
            where: f"Patient?{search}" if where == "url" else search
        }
    _, found = measure_both(place, came, leave)
    assert [at.rpartition(".")[2] for at in found] == [where]
    assert set(found.values()) == {(1, 0)}


def test_an_original_id_is_found_as_bundle_id_and_in_the_url_of_a_resource(place: Path) -> None:
    came = [bundle(patient(f"p-{n}"), observation(f"p-{n}", n)) for n in range(9)]
    leave = [bundle(patient(f"h{n}"), observation(f"h{n}", n)) for n in range(9)]
    leave[2]["id"] = "p-2"
    del leave[4]["entry"][1]["resource"]["id"]
    leave[4]["entry"][1]["fullUrl"] = "http://h/Observation/op-4-4"
    found, _ = measure_both(place, came, leave)
    assert found.ids.referred == 2


def test_an_id_in_an_extension_of_a_patient_is_looked_up(place: Path) -> None:
    more = [{"extension": [{"url": "http://h/case", "valueId": f"case-{n}"}]} for n in range(9)]
    _, found = measure_both(
        place, [bundle(patient(f"p{n}", **more[n])) for n in range(9)],
        [bundle(patient(f"h{n}", **(more[n] if n == 0 else {}))) for n in range(9)],
    )  # fmt: skip
    assert found == {"Patient.extension(http://h/case).valueId": (1, 0)}


def test_a_short_identifier_is_looked_for_among_identifiers_only(place: Path) -> None:
    came = [bundle(patient(f"p{n}", identifier=[{"value": f"{n}7"}])) for n in range(9)]
    leave = [bundle(patient(f"h{n}", identifier=[{"value": "17" if n == 1 else f"z{n}{n}99"}])) for n in range(9)]
    leave[2]["entry"].append({"resource": observation("h2", 1, valueString="27")})
    _, found = measure_both(place, came, leave)
    assert found == {"Patient.identifier.value": (1, 0)}


def test_files_that_leave_are_read_once_where_patients_came_back_in_the_import(
    place: Path, originals: Originals
) -> None:
    path = write(place, "a.ndjson", *(bundle(patient(name)) for name in ("p1", "p2", "p1")))
    read: list[int] = []
    run(place, originals=originals, collect=True, read=read.append)
    assert sum(read) > path.stat().st_size  # begun again
    read.clear()
    assert run(place, originals=originals, read=read.append).patients == 2
    assert sum(read) == path.stat().st_size
