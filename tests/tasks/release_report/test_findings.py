"""Each finding, and when it is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.release_report.findings import LEVEL_OF
from tasks.release_report.numbers import Count
from tasks.shared.files.inventory import Inventory, InventoryEntry
from tests.tasks.release_report.reporting import (
    SEND,
    Json,
    bundle,
    codes,
    config,
    observation,
    of_level,
    patient,
    pseudonymizer,
    record,
    report,
    rows,
    step,
    write,
)

QUERY = Path(__file__).parent / "query.json"
CLEAN = [patient(str(number), gender="female", birthDate="1980") for number in range(6)]
VALIDATED = step("validation", 3)
IMPORTED = step("local_import", output="import")


def kept(*names: str, steps: tuple[str, ...] = ("local_import", "wait", "send")) -> Any:
    return config(steps, services={"pseudonymizer": {"kept_identifiers": list(names)}})


CASES: list[tuple[str, str, list[Json], dict[str, Any]]] = [
    ("original", "Patient.name.family", CLEAN, {"found": {"leaks": {"Patient.name.family|name|": 3}}}),
    ("left", "Patient.name.family", [patient("1", name=[{"family": "x"}])], {}),
    ("dates-stayed", "Encounter.period.start", CLEAN,
     {"found": {"dates that stayed": {"Encounter.period.start": 9}}}),
    ("original-ids", "Encounter.id", CLEAN, {"found": {"ids kept": {"Encounter": 9}}}),
    ("subject-lost", "Observation.subject.reference", CLEAN,
     {"found": {"references without type": {"Observation.subject.reference": 2}}}),
    ("subject-lost", "", [*CLEAN, observation(None, subject={"reference": "0a1b2c"})], {}),
    ("unencrypted", "h.example.org", CLEAN,
     {"config": config(services={"send": SEND | {"url": "http://h.example.org/fhir-store"}})}),
    ("unencrypted-private", "10.0.0.1:8080", CLEAN,
     {"config": config(services={"send": SEND | {"url": "http://10.0.0.1:8080"}})}),
    ("file-changed", "import/data.ndjson", CLEAN,
     {"left": Inventory((InventoryEntry("import/data.ndjson", 1, "0" * 64),))}),
    ("lines-differ", "local_import", CLEAN, {"steps": (step("local_import", output="import", lines_out=7), VALIDATED)}),
    ("patients-differ", "", CLEAN, {"imported": 7}),
    ("identifier", "Encounter.identifier.value",
     [*CLEAN, {"resourceType": "Encounter", "identifier": [{"value": "1"}]}], {}),
    ("place", "Patient.address.city", [*CLEAN, patient("1", address=[{"city": "Ulm"}])], {}),
    ("birth-day", "Patient.birthDate", [*CLEAN, patient("1", birthDate="1980-01-02")], {}),
    ("display", "Observation.performer.display", [*CLEAN, observation("1", performer=[{"display": "Dr. X"}])], {}),
    ("free-text", "Observation.note.text", [*CLEAN, observation("1", note=[{"text": "x"}])], {}),
    ("code-text", "", [*CLEAN, observation("1", code={"text": "x"})], {}),
    ("above-89", "", [patient(str(number), birthDate="1931") for number in range(6)], {}),
    ("dates-unshifted", "", CLEAN, {"found": {"dates": {"unmoved": 9}}}),
    ("few-alike", "", [*CLEAN, patient("x", gender="male")], {}),
    ("no-patients", "", [observation(None)], {}),
    ("terms-missing", "", CLEAN, {"config": config(report={"purpose": None})}),
    ("consent-unchecked", "", CLEAN, {"crtdl": "consent"}),
    ("warnings", "local_import", CLEAN, {"steps": (step("local_import", output="import", warnings=("w",)), VALIDATED)}),
    ("kept", "Patient.identifier.value", [*CLEAN, patient("1", identifier=[{"system": "s", "value": "1"}])],
     {"config": kept("s")}),
    ("not-validated", "", CLEAN, {"steps": (IMPORTED,)}),
]  # fmt: skip


@pytest.fixture
def crtdl(tmp_path: Path) -> Path:
    """Return a query that requires consent."""
    path = tmp_path / "query.json"
    path.write_text(
        '{"cohortDefinition": {"inclusionCriteria": [[{"context": {"code": "Einwilligung", "display": "Consent"},'
        ' "termCodes": [{"code": "1", "display": "MDAT research"}]}]]}, "dataExtraction": {"attributeGroups": []}}'
    )
    return path


@pytest.mark.parametrize(("code", "about", "lines", "more"), CASES, ids=[f"{one[0]} {one[1]}" for one in CASES])
def test_a_finding_is_there_alone(
    tmp_path: Path, crtdl: Path, code: str, about: str, lines: list[Json], more: dict[str, Any]
) -> None:
    write(tmp_path, "data.ndjson", *lines)
    if "imported" in more:
        record(tmp_path, 1, patients=more["imported"])
        more = {}
    if "crtdl" in more:
        more = more | {"crtdl": crtdl}
    found = report(tmp_path, **more)
    [one] = [one for one in found.findings if one.code == code]
    assert (one.about, one.level, one.section) == (about, *LEVEL_OF[code])
    # Another finding may come with it where both are true of the data.
    assert codes(found) - {code} <= {"few-alike", "no-patients"}


def test_there_is_a_case_for_every_finding() -> None:
    assert {code for code, *_ in CASES} | {"unread"} == set(LEVEL_OF)


def test_clean_data_have_no_finding_and_the_report_says_so(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN)
    found = report(tmp_path)
    assert found.findings == ()
    assert found.answer == "note"


def test_k_patients_alike_are_enough(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN[:5])
    assert report(tmp_path).findings == ()


def test_patients_in_documents_count_as_the_steps_count_them(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN, bundle(patient("d", gender="female", birthDate="1980"), type="document"))
    record(tmp_path, 1, patients=7)
    assert codes(report(tmp_path)) == set()


def test_a_file_that_cannot_be_read_is_a_stop(tmp_path: Path) -> None:
    path = write(tmp_path, "data.ndjson", *CLEAN)
    path.write_text(path.read_text() + "{\n")
    [stop] = of_level(report(tmp_path), "stop")
    assert (stop.code, stop.about) == ("unread", "import/data.ndjson")


def test_findings_are_sorted_by_level(tmp_path: Path) -> None:
    write(
        tmp_path, "data.ndjson", patient("1", name=[{"family": "x"}], address=[{"city": "x"}], birthDate="1980-01-02")
    )
    levels = [one.level for one in report(tmp_path, steps=(IMPORTED,)).findings]
    assert levels == sorted(levels, key=["stop", "look", "note"].index)
    assert set(levels) == {"stop", "look", "note"}


# What the pseudonymizer found, and what is kept


def test_lines_of_the_pseudonymizer_are_banded(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN)
    leaks = {"Patient.telecom.value|telecom|": 3, "Encounter.reasonCode.text|name|": 18}
    found = report(tmp_path, found={"leaks": leaks})
    stops = {one.about: (one.affects, one.kind) for one in of_level(found, "stop")}
    assert stops == {
        "Patient.telecom.value": (Count(unit="lines", word="fewer", number=5), "telecom"),
        "Encounter.reasonCode.text": (Count(unit="lines", word="about", number=20), "name"),
    }


def test_an_original_value_at_a_path_is_one_stop_with_its_patients(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *(bundle(patient(str(n), name=[{"family": "x"}] * (n < 8))) for n in range(20)))
    found = report(tmp_path, found={"leaks": {"Patient.name.family|name|": 6}})
    [stop] = of_level(found, "stop")
    assert (stop.code, stop.affects) == ("original", Count(word="about", number=10))


@pytest.mark.parametrize(
    ("names", "leaks", "stops"),
    [
        (("s",), {"Patient.identifier.value|identifier|s": 3}, 0),
        (("Patient.identifier",), {"Patient.identifier.value|identifier|s": 3}, 0),
        (("Patient.identifier.value",), {"Patient.identifier.value|identifier|s": 3}, 0),
        (("t",), {"Patient.identifier.value|identifier|s": 3}, 1),
        (("s",), {"Patient.identifier.value|identifier|s": 3, "Patient.identifier.value|identifier|t": 3}, 1),
        (("t",), {"Patient.identifier.value|identifier|s": 3, "Patient.identifier.value|identifier|t": 3}, 1),
        (("Patient.id",), {"Patient.identifier.value|identifier|s": 3}, 1),
        (("Patient.name",), {"Patient.name.family|name|": 3}, 0),
    ],
)
def test_what_is_kept_on_purpose_is_no_stop(
    tmp_path: Path, names: tuple[str, ...], leaks: dict[str, int], stops: int
) -> None:
    write(tmp_path, "data.ndjson", *CLEAN)
    found = report(tmp_path, found={"leaks": leaks}, config=kept(*names))
    assert len(of_level(found, "stop")) == stops
    assert len(of_level(found, "note")) == 1 - stops


@pytest.mark.parametrize(("systems", "expected"), [(["s"], "kept"), (["s", "t"], "identifier"), ([None], "identifier")])
def test_systems_are_judged_at_each_path(tmp_path: Path, systems: list[str | None], expected: str) -> None:
    here = [{"system": system, "value": "1"} if system else {"value": "1"} for system in systems]
    other = observation("1", identifier=[{"system": "u", "value": "2"}])
    write(tmp_path, "data.ndjson", *CLEAN, patient("1", identifier=here), other)
    found = report(tmp_path, config=kept("s"))
    assert {one.code for one in found.findings if one.about == "Patient.identifier.value"} == {expected}
    assert {one.code for one in found.findings if one.about == "Observation.identifier.value"} == {"identifier"}


def test_dates_and_names_can_be_kept_by_path(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN, patient("1", name=[{"family": "x"}]))
    settings = kept("Patient.name", "Encounter.period")
    found = report(tmp_path, config=settings, found={"dates that stayed": {"Encounter.period.end": 2}})
    assert {one.about for one in of_level(found, "note")} == {"Patient.name.family", "Encounter.period.end"}
    assert of_level(found, "stop") == []


def test_identifiers_are_no_finding_after_a_pseudonymizer(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN, patient("1", identifier=[{"system": "s", "value": "1"}]))
    found = report(tmp_path, found={})
    assert "identifier" not in codes(found)
    assert rows(found, "left")["Patient.identifier.value"][-1] == "@compared"


def test_a_text_beside_a_code_has_the_level_of_its_finding(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN, observation("1", code={"text": "x"}))
    assert rows(report(tmp_path), "left")["Observation.code.text"][-1] == "@look"
    assert rows(report(tmp_path, inside=True, asks=False), "left")["Observation.code.text"][-1] == "@note"


@pytest.mark.parametrize("kind", ["Organization", "Location", "Medication", "Device"])
def test_ids_of_nobody_may_stay(tmp_path: Path, kind: str) -> None:
    write(tmp_path, "data.ndjson", *CLEAN)
    assert report(tmp_path, found={"ids kept": {kind: 9}}).findings == ()


def test_some_dates_that_stay_beside_moved_ones_are_no_finding(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN)
    assert report(tmp_path, found={"dates": {"moved": 9, "unmoved": 2}}).findings == ()


def test_other_references_without_type_are_no_finding(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN)
    assert report(tmp_path, found={"references without type": {"Encounter.partOf.reference": 2}}).findings == ()


def test_nothing_is_called_original_without_a_pseudonymizer(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", patient("1", name=[{"family": "x"}]))
    found = report(tmp_path)
    assert "original" not in codes(found)
    assert "pseudonymized-elsewhere" in next(one for one in found.sections if one.name == "unchecked").sentences


# Counts


def test_corrected_files_need_not_have_the_counts_of_the_steps(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN, folder="import_wait")
    for name in ("data.ndjson.zst", "more.ndjson.zst"):
        write(tmp_path, name, *CLEAN, folder="import")
    record(tmp_path, 1, patients=7)
    steps = (step("local_import", output="import", lines_out=7), VALIDATED)
    left = Inventory((InventoryEntry("import/data.ndjson.zst", 1, "0" * 64),))
    found = report(tmp_path, "import_wait", steps=steps, corrected=True, left=left)
    assert found.findings == ()
    flow, unchecked = (next(one for one in found.sections if one.name == name) for name in ("flow", "unchecked"))
    assert flow.facts["not_corrected"] == "more.ndjson.zst"
    assert "corrected-uncompared" in unchecked.sentences


def test_the_lines_of_the_step_that_wrote_the_files_are_compared(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN, folder="pseudonymized")
    steps = (step("local_import", output="import", lines_out=9), pseudonymizer(lines_out=6), VALIDATED)
    assert report(tmp_path, "pseudonymized", steps=steps).findings == ()


def test_data_that_stay_inside_have_no_destination(tmp_path: Path) -> None:
    write(tmp_path, "data.ndjson", *CLEAN)
    settings = config(services={"send": SEND | {"url": "http://h.example.org"}}, report={"purpose": None})
    found = report(tmp_path, config=settings, inside=True)
    assert found.findings == ()
    assert found.tiles.destination is None


@pytest.mark.parametrize(
    ("elements", "few"),
    [
        ("[Patient.birthDate, Patient.gender, Patient.address.postalCode]", True),
        ("[Patient.gender]", False),
        ("[]", False),
    ],
)
def test_patients_are_told_apart_by_what_the_configuration_names(tmp_path: Path, elements: str, few: bool) -> None:
    write(tmp_path, "data.ndjson", *(patient(str(n), gender="female", birthDate=f"19{n + 50}") for n in range(8)))
    found = report(tmp_path, config=config(report={"quasi_identifiers": elements}))
    named = [one.values["by"] for one in found.findings if one.code == "few-alike"]
    assert named == (["@Patient.birthDate @Patient.gender"] if few else [])  # no patient has a postal code


@pytest.mark.parametrize(("digits", "few"), [(2, False), (3, True)])
def test_a_region_has_as_many_digits_as_the_configuration_says(tmp_path: Path, digits: int, few: bool) -> None:
    write(tmp_path, "data.ndjson", *(patient(str(n), address=[{"postalCode": f"10{n}"}]) for n in range(8)))
    found = report(tmp_path, config=config(report={"region_prefix": digits}))
    assert ("few-alike" in codes(found)) is few
