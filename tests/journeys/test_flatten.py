"""Whole runs with flattening against the sandbox services, as a user starts them.

The cells are those of a plain loop over the NDJSON that flattening read. After every disturbance the tables are those
of an undisturbed run, and nothing of a patient is in what a person or a log sees.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP
from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.extraction.engine import ExtractionOptions
from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.flattening import flattening_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from tests.conftest import Commands, Ran
from tests.peers.data import grouped_person, resource
from tests.peers.data import identified as bundle
from tests.peers.lines import all_lines
from tests.peers.report import document, document_of, page_of
from tests.peers.sandbox import Sandboxed, sandboxed

FAMILY = "Kanarienvogel"
DISPLAY = 'Größe, "quer"\nzweite Zeile'
PROFILE = "https://example.org/StructureDefinition/"
Json = dict[str, Any]


@dataclass
class FlattenProject:
    """A working directory with ``config.yaml``, ``query.json``, ``lookup.json`` and ``data/``, and services."""

    directory: Path
    services: dict[str, Sandboxed]

    def configure(self, steps: str, *, formats: str = "csv", batch: int = 500) -> None:
        """Write the configuration."""
        (self.directory / "config.yaml").write_text(f"""
services:
  extractor: {{base_url: "{self.services["extraction"].url}", polling_interval: 1s, file_ready_interval: 50ms}}
  local_import: {{dir: data}}
  pseudonymizer: {{url: "{self.services["pseudonymizer"].url}", anonymization_config: {ANONYMIZATION_RULES}}}
  flattening:
    service_url: "{self.services["flattening"].url}"
    lookup_path: lookup.json
    formats: [{formats}]
    batch_size_mb: {batch}
  send: {{send_as: direct_resource_load, url: "{self.services["fhir"].url}"}}
pipeline: {{enabled_steps: [{steps}]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
""")

    def query(self, *groups: tuple[str, str, str, str]) -> None:
        """A query and a lookup file for these groups: id, name, type, and profile; each with ``id`` and a column."""
        wanted = [
            {
                "id": key, "name": name, "groupReference": PROFILE + profile,
                "attributes": [{"attributeRef": f"{kind}.x", "mustHave": False}],
            }
            for key, name, kind, profile in groups
        ]  # fmt: skip
        document = json.loads(DEMO_CRTDL.read_text())
        document["dataExtraction"]["attributeGroups"] = wanted
        (self.directory / "query.json").write_text(json.dumps(document))
        self.lookup(*dict.fromkeys((profile, kind) for _, _, kind, profile in groups))

    def lookup(self, *tables: tuple[str, str]) -> None:
        """A lookup file with these tables: profile and type."""
        named = [{"name": "gender", "path": "gender"}, {"name": "value", "path": "value.ofType(Quantity).value"}]
        coding = {"forEachOrNull": "code.coding", "column": [{"name": "code", "path": "code"}]}
        written = [
            {
                "url": PROFILE + profile,
                "resourceType": kind,
                "elements": {
                    f"{kind}.x": {
                        "viewDefinition": coding if kind == "Condition" else {"column": named[kind != "Patient" :][:1]}
                    }
                },
            }
            for profile, kind in tables
        ]
        (self.directory / "lookup.json").write_text(json.dumps(written))

    def data(self, **files: list[Json]) -> None:
        """The input of ``local_import``."""
        directory = self.directory / "data"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for name, lines in files.items():
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (directory / f"{name}.ndjson").write_text(text, encoding="utf-8")

    def job(self, ran: Ran | str) -> Path:
        return self.directory / "jobs" / (ran if isinstance(ran, str) else ran.job)

    def tables(self, ran: Ran | str) -> dict[str, bytes]:
        """Everything in ``csv/``."""
        return {path.name: path.read_bytes() for path in sorted((self.job(ran) / "csv").glob("*.csv"))}

    def faults(self, *rules: Json) -> None:
        """Let the flattening service fail; without rules, no more."""
        self.services["flattening"].faults(*rules)

    def posts(self) -> int:
        """Count the batches sent to the flattening service."""
        return len(self.services["flattening"].posts())

    def recorded(self, ran: Ran | str) -> int:
        """Count the batches of a job that are done."""
        return len([*(self.job(ran) / "csv" / ".parts").rglob("*.csv")])

    def leaks(self, ran: Ran | str, *outputs: str) -> list[str]:
        """Return the names of patients in what a run prints, logs and records (not in its data and private answers)."""
        job = self.job(ran)
        private = {"import", "pseudonymized", "csv"}
        texts = dict(enumerate(output.encode() for output in outputs)) | {
            path: path.read_bytes()
            for path in job.rglob("*")
            if path.is_file() and path.relative_to(job).parts[0] not in private and "failed" not in path.parts
        }
        return [
            str(place)
            for place, text in texts.items()
            if re.search(rf"{FAMILY}|Patient/p|\bp[0-9]+-[oc][0-9]".encode(), text)
        ]


PROBES = 5
"""Made-up requests of a command that runs the step for three groups: its check, the three views, and the step."""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[FlattenProject]:
    data = tmp_path / "hospital"
    data.mkdir()
    for path in DATA.glob("*.ndjson"):
        (data / path.name).write_bytes(path.read_bytes())
    (data / "special.ndjson").write_text(json.dumps(special(), ensure_ascii=False).replace('"DECIMAL"', "1.50") + "\n")
    shutil.copy(DEMO_LOOKUP, tmp_path / "lookup.json")
    shutil.copy(DEMO_CRTDL, tmp_path / "query.json")
    with sandboxed(
        extraction=extraction_service(ExtractionOptions(data=data, state=tmp_path / "x-state", batchsize=5)),
        pseudonymizer=pseudonymization_service(),
        flattening=flattening_service(),
        fhir=fhir_service(state=tmp_path / "fhir-state"),
    ) as services:
        yield FlattenProject(tmp_path, services)


def special() -> Json:
    """Return a patient with two codings on one diagnosis, a display with everything in it, and a value of 1.50."""

    def made(kind: str, identifier: str, profile: str, **more: Any) -> Json:
        url = f"https://www.medizininformatik-initiative.de/fhir/core/modul-{profile}"
        patient = {} if kind == "Patient" else {"subject": {"reference": "Patient/p99"}}
        return resource(kind, identifier, meta={"profile": [url]}, **patient, **more)

    person = made(
        "Patient", "p99", "person/StructureDefinition/Patient",
        gender="female", birthDate="1970-01", name=[{"family": FAMILY}],
    )  # fmt: skip
    codes = [{"system": "icd", "code": "A,1", "display": DISPLAY}, {"system": "alpha", "code": "1.50"}]
    diagnosis = made("Condition", "c99", "diagnose/StructureDefinition/Diagnose", code={"coding": codes})
    value = made(
        "Observation", "o99", "labor/StructureDefinition/ObservationLab", status="final",
        code={"coding": [{"code": "x"}, {"code": "y"}], "text": DISPLAY}, valueQuantity={"value": "DECIMAL"},
    )  # fmt: skip
    medication = made(
        "MedicationAdministration", "m99", "medikation/StructureDefinition/MedicationAdministration",
        status="completed", medicationReference={"reference": "Medication/demo-a10ba02"},
    )  # fmt: skip
    return bundle("b99", person, diagnosis, value, medication)


def size_of(directory: Path) -> int:
    """Return the bytes of the files of a directory."""
    return sum(path.stat().st_size for path in directory.iterdir())


def lines_of(directory: Path) -> list[Json]:
    """Return the lines of all data files, in the order of the steps, numbers as they are spelled."""
    return [json.loads(line, parse_float=str, parse_int=str) for line in all_lines(directory)]


def resources_of(line: Json) -> list[Json]:
    return [entry["resource"] for entry in line["entry"]] if line["resourceType"] == "Bundle" else [line]


def of_groups(lines: list[Json]) -> dict[str, list[Json]]:
    """Return the resources of each group, by the Provenances of their line, each once."""
    found: dict[str, dict[str, Json]] = {}
    for line in lines:
        inside = resources_of(line)
        by_key = {f"{one['resourceType']}/{one['id']}": one for one in inside}
        named: dict[str, set[str]] = {}
        for one in inside:
            if one["resourceType"] == "Provenance":
                for entity in one["entity"]:
                    identifier = entity["what"]["identifier"]
                    if identifier["system"].endswith("/attribute_group"):
                        named.setdefault(identifier["value"], set()).update(t["reference"] for t in one["target"])
        for group, keys in named.items():
            for key in by_key:
                if key in keys:
                    found.setdefault(group, {}).setdefault(key, by_key[key])
    return {group: list(members.values()) for group, members in found.items()}


def at(node: Any, path: str) -> list[Any]:
    """Return all values at a path."""
    nodes = [node]
    for key in path.split("."):
        below = [one.get(key) for one in nodes if isinstance(one, dict)]
        nodes = [item for one in below for item in (one if isinstance(one, list) else [one]) if item is not None]
    return nodes


def one(node: Any, path: str) -> str:
    """Return the only value at a path, or nothing."""
    found = at(node, path)
    assert len(found) <= 1
    return str(found[0]) if found else ""


def collected(node: Any, path: str) -> str:
    return json.dumps(at(node, path), separators=(",", ":"))


def rows_of(found: Json) -> list[dict[str, str]]:
    """Return the rows of a resource for the demo's query and lookup file."""
    kind = found["resourceType"]
    cells = {"id": found["id"]}
    if "subject" in found:
        cells["patient"] = one(found, "subject.reference")
    elif kind in ("Condition", "Observation", "MedicationAdministration", "Encounter"):
        cells["patient"] = ""
    codings: list[Json] = at(found, "code.coding") or [{}]
    if kind == "Patient":
        return [
            cells
            | {"identifier_system": one(each, "system"), "identifier_value": one(each, "value")}
            | {"gender": one(found, "gender"), "birth_date": one(found, "birthDate")}
            | {"extension_url": one(found, "extension.url")}
            for each in at(found, "identifier") or [{}]
        ]
    if kind == "Condition":
        return [
            cells
            | {"code_text": one(found, "code.text")}
            | {f"code_{name}": one(each, name) for name in ("system", "version")}
            | {"code": one(each, "code"), "code_display": one(each, "display")}
            | {"clinical_status": collected(found, "clinicalStatus.coding.code")}
            | {"recorded_date": one(found, "recordedDate"), "encounter": one(found, "encounter.reference")}
            for each in codings
        ]
    if kind == "Observation":
        return [
            cells
            | {"status": one(found, "status"), "category": collected(found, "category.coding.code")}
            | {"code_text": one(found, "code.text"), "code_system": one(each, "system")}
            | {"code": one(each, "code"), "code_display": one(each, "display")}
            | {"value": one(found, "valueQuantity.value"), "value_unit": one(found, "valueQuantity.unit")}
            | {"value_unit_code": one(found, "valueQuantity.code"), "value_text": one(found, "valueString")}
            | {"value_code_system": one(concept, "system"), "value_code": one(concept, "code")}
            | _effective(found)
            for each, concept in product(codings, at(found, "valueCodeableConcept.coding") or [{}])
        ]
    if kind == "MedicationAdministration":
        return [
            cells
            | {"status": one(found, "status"), "medication": one(found, "medicationReference.reference")}
            | {"medication_code_system": one(each, "system"), "medication_code": one(each, "code")}
            | _effective(found)
            | {"dosage_text": one(found, "dosage.text"), "dose": one(found, "dosage.dose.value")}
            | {"dose_unit": one(found, "dosage.dose.unit")}
            for each in at(found, "medicationCodeableConcept.coding") or [{}]
        ]
    if kind == "Encounter":
        return [
            cells
            | {"status": one(found, "status"), "class": one(found, "class.code")}
            | {"class_display": one(found, "class.display"), "period_start": one(found, "period.start")}
            | {"period_end": one(found, "period.end")}
        ]
    assert kind == "Medication"
    return [
        cells
        | {"code_text": one(found, "code.text"), "code_system": one(each, "system")}
        | {"code": one(each, "code"), "code_display": one(each, "display"), "status": one(found, "status")}
        for each in codings
    ]


def _effective(found: Json) -> dict[str, str]:
    return {
        "effective": one(found, "effectiveDateTime"),
        "effective_start": one(found, "effectivePeriod.start"),
        "effective_end": one(found, "effectivePeriod.end"),
    }


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


GROUPS = {
    "g-patient": "Patient", "g-condition": "Condition", "g-observation": "Observation",
    "g-administration": "MedicationAdministration", "g-encounter": "Encounter", "g-medication": "Medication",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pseudonymized", [False, True])
def test_every_cell_of_the_demo_is_what_a_plain_loop_over_the_ndjson_gives(
    sluice: Commands, project: FlattenProject, pseudonymized: bool
) -> None:
    steps = "extractor, pseudonymizer, flattening, send" if pseudonymized else "extractor, flattening"
    project.configure(steps)
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 0, ran.err
    job = project.job(ran)
    lines = lines_of(job / ("pseudonymized" if pseudonymized else "import"))
    members = of_groups(lines)
    assert set(members) == set(GROUPS)
    for group, name in GROUPS.items():
        expected = [row for found in members[group] for row in rows_of(found)]
        written = table(job / "csv" / f"{name}.csv")
        assert written == expected
        assert list(written[0]) == list(expected[0])
    assert {path.suffix for path in (job / "csv").iterdir()} == {".csv"}
    diagnoses = [row for row in table(job / "csv" / "Condition.csv") if row["code"] in ("A,1", "1.50")]
    assert [row["code"] for row in diagnoses] == ["A,1", "1.50"]
    assert len({row["id"] for row in diagnoses}) == 1
    if not pseudonymized:
        assert diagnoses[0]["code_display"] == DISPLAY
        values = [row for row in table(job / "csv" / "Observation.csv") if row["id"] == "o99"]
        assert [(row["code"], row["value"], row["code_text"]) for row in values] == [
            ("x", "1.50", DISPLAY), ("y", "1.50", DISPLAY),
        ]  # fmt: skip
    else:
        assert b"1.50" in (job / "csv" / "Observation.csv").read_bytes()
        sent = [json.loads(text) for text in project.services["fhir"].resources().values()]
        read = {f"{each['resourceType']}/{each['id']}" for line in lines for each in resources_of(line)}
        assert sorted(f"{each['resourceType']}/{each['id']}" for each in sent) == sorted(read)
    assert project.leaks(ran, ran.out, ran.err) == []


def fill(project: FlattenProject, patients: int = 12) -> None:
    """Patients with diagnoses and values, their Provenances, and a name that nobody may see."""
    project.query(
        ("g-pat", "Patienten", "Patient", "pat"), ("g-cond", "Diagnosen", "Condition", "cond"),
        ("g-obs", "Labor", "Observation", "obs"),
    )  # fmt: skip
    lines = [grouped_person(number, 6, 4000) for number in range(patients)]
    for line in lines:
        line["entry"][0]["resource"]["name"] = [{"family": FAMILY}]
    project.data(a=lines[::2], b=lines[1::2])


def undisturbed(sluice: Commands, project: FlattenProject) -> dict[str, bytes]:
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 0, ran.err
    tables = project.tables(ran)
    assert len(table(project.job(ran) / "csv" / "Labor.csv")) > 60
    return tables


OUTCOME = {"resourceType": "OperationOutcome", "issue": [{"severity": "error", "diagnostics": FAMILY}]}


def fault(action: str, **more: Any) -> Json:
    return {"action": action, "method": "POST", "times": None, **more}


@pytest.mark.slow
def test_a_run_makes_the_same_tables_after_service_faults(sluice: Commands, project: FlattenProject) -> None:
    project.configure("local_import, flattening", batch=1)
    fill(project, 140)
    whole = undisturbed(sluice, project)
    batches = project.posts() - PROBES
    assert batches > 5
    project.faults(fault("status", status=503, body=OUTCOME, skip=2 + PROBES))
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 3, ran.err
    assert "error[service-busy]: flattening" in ran.err
    assert project.tables(ran) == {}
    kept = project.recorded(ran)  # two requests at a time: one may have been under way when the other failed
    assert 1 <= kept <= 2
    project.faults(fault("cut", times=1, skip=PROBES))
    before = project.posts()
    last = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert last.code == 0, last.err
    assert project.tables(ran) == whole
    assert project.posts() - before == batches - kept + 1 + PROBES
    assert project.leaks(ran, ran.out, ran.err, last.out, last.err) == []


@pytest.mark.slow
def test_a_lookup_file_changed_before_a_continue_is_checked_and_used(sluice: Commands, project: FlattenProject) -> None:
    project.configure("local_import, flattening")
    fill(project)
    project.faults(fault("status", status=503, skip=1 + PROBES))
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 3, ran.err
    project.faults()
    asked = project.posts()
    lookup = project.directory / "lookup.json"
    good = lookup.read_text()
    lookup.write_text(good.replace("forEachOrNull", "forEvery").replace('"path": "gender"', '"way": "gender"'))
    broken = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert broken.code == 2, broken.err
    assert broken.err.count("error[lookup-schema-violation]") == 2
    assert project.posts() == asked + 1  # synthetic
    lookup.write_text(good.replace('"name": "gender"', '"name": "sex"'))
    last = sluice("pipeline", "continue", "config.yaml", ran.job)
    assert last.code == 0, last.err
    assert set(table(project.job(ran) / "csv" / "Patienten.csv")[0]) == {"id", "sex"}
    assert len(table(project.job(ran) / "csv" / "Patienten.csv")) == 12
    assert '"sex"' in (project.job(ran) / "viewdefinitions" / "Patienten.json").read_text()


def test_before_a_start_the_lookup_file_is_compared_with_the_query(sluice: Commands, project: FlattenProject) -> None:
    project.configure("local_import, flattening")
    project.query(("g-pat", "Patienten", "Patient", "pat"), ("g-obs", "Labor", "Observation", "obs"))
    project.data(a=[grouped_person(1)])
    project.lookup(("pat", "Patient"))
    some = sluice("pipeline", "plan", "config.yaml", "query.json")
    assert some.code == 0
    assert "warning: " in some.err
    assert "Labor" in some.err
    assert "no lookup table has its profile" in some.err
    project.lookup(("other", "Patient"))
    for command in ("plan", "start"):
        none = sluice("pipeline", command, "config.yaml", "query.json")
        assert none.code == 2
        assert "error[flattening-no-views]" in none.err
    assert not list((project.directory / "jobs").glob("*-*-*"))


@pytest.mark.slow
def test_a_wait_before_a_direct_load_shows_and_takes_what_is_sent_not_the_tables(
    sluice: Commands, project: FlattenProject
) -> None:
    project.configure("local_import, flattening, wait, send")
    fill(project)
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 0, ran.err
    job = project.job(ran)
    shown = sluice("pipeline", "status", "config.yaml", ran.job).out
    assert all(f"the data are in {job}/import\n" in said for said in (ran.out, shown))
    assert f"put a complete set of files into {job}/import_wait" in shown
    assert all(f"    {path.name}, " in ran.out for path in (job / "import").iterdir())
    report = document(job)
    assert (report.tiles.tables, report.tiles.bytes) == (False, size_of(job / "import"))
    corrected = job / "import_wait" / "Patienten.csv"
    shutil.copy(job / "csv" / "Patienten.csv", corrected)
    refused = sluice("pipeline", "continue", "config.yaml", ran.job, "--approve")
    assert refused.code == 5
    assert "Patienten.csv" in refused.out
    assert "step 3 waits for a decision" in sluice("pipeline", "status", "config.yaml", ran.job).out
    loads = project.services["fhir"].posts()
    assert loads == []
    corrected.unlink()
    approve = ("pipeline", "continue", "config.yaml", ran.job, "--approve", "--comment", "names are made up")
    fhir = project.services["fhir"]
    fhir.faults({"action": "status", "status": 503, "path": "/fhir*", "method": "POST", "times": None})
    assert [sluice(*approve).code for _ in range(2)] == [5, 3]  # first without the file that was shown
    fhir.faults()
    file = next((job / "import").iterdir())
    approved, loads = file.read_bytes(), len(fhir.posts())
    file.write_bytes(approved + b"\n")
    assert sluice("pipeline", "continue", "config.yaml", ran.job).code == 0
    assert (sluice.status(ran.job)["state"], len(fhir.posts())) == ("waiting", loads)
    file.write_bytes(approved)
    assert [sluice(*approve).code for _ in range(2)] == [5, 0]


@pytest.mark.slow
def test_tables_at_a_wait_are_judged_by_their_views(sluice: Commands, project: FlattenProject) -> None:
    project.configure("local_import, flattening, wait")
    fill(project)
    ran = sluice("pipeline", "start", "config.yaml", "query.json")
    assert ran.code == 0, ran.err
    job = project.job(ran)
    report = document(job)
    assert (report.tiles.tables, report.tiles.bytes) == (True, size_of(job / "csv"))
    assert report.tiles.resources == sum(len(table(path)) for path in (job / "csv").iterdir())
    assert FAMILY not in document_of(job).read_text() + page_of(job).read_text()
