"""The step and the Task API against the sandbox extraction server: document 2 from both sides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.extraction.app import ExtractionOptions, extraction_service
from deployments.sandbox.extraction.files import UrlStyle
from tasks.extractor.client import ExtractionClient, extraction_client, service_client
from tasks.extractor.extraction import run
from tasks.extractor.task import Priority
from tasks.shared.errors import ServiceError, SluiceError, TerminalError
from tasks.shared.files.data_directory import data_files
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext
from tests.deployments.sandbox.extraction.pace import UnitPace
from tests.peers import job
from tests.peers.extraction import RecordingStore, configuration, crtdl
from tests.peers.lines import read_lines

BASE = "http://hl7.org/fhir/StructureDefinition/"
GENDERS = {"p0": "female", "p1": "male", "p2": "female", "p3": "female", "p4": "female"}
FEMALE = {patient for patient, gender in GENDERS.items() if gender == "female"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five patients with two conditions each, and an organization."""
    directory = tmp_path / "fhir"
    directory.mkdir()
    patients = [
        {"resourceType": "Patient", "id": name, "gender": gender, "birthDate": "1980-01-01"}
        for name, gender in GENDERS.items()
    ]
    conditions = [
        {
            "resourceType": "Condition", "id": f"c-{name}-{n}", "subject": {"reference": f"Patient/{name}"},
            "code": {"coding": [{"system": "http://snomed.info/sct", "code": str(n)}]},
            "meta": {"profile": [f"{BASE}Condition"]},
        }
        for name in GENDERS for n in range(2)
    ]  # fmt: skip
    for name, resources in (("Patient", patients), ("Condition", conditions)):
        lines = (json.dumps(resource) + "\n" for resource in resources)
        (directory / f"{name}.ndjson").write_text("".join(lines))
    return directory


def query() -> dict[str, Any]:
    """Women, their birth dates and their diagnoses."""
    document = crtdl()
    document["dataExtraction"] = {
        "attributeGroups": [
            *document["dataExtraction"]["attributeGroups"],
            {
                "id": "g-cond",
                "name": "Diagnoses",
                "groupReference": f"{BASE}Condition",
                "attributes": [{"attributeRef": "Condition.code", "mustHave": False}],
            },
        ]
    }
    return document


@contextmanager
def serving(data: Path, **options: Any) -> Iterator[str]:
    with serve_in_thread(extraction_service(ExtractionOptions(data=data, **options))) as served:
        yield served.url


class ExtractionSetting:
    """A job directory and a store of handles over one server."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        path.mkdir()
        self.config = configuration(url, polling_interval="1s", max_polling_interval="1s", file_ready_interval="20ms")
        self.crtdl = path / "crtdl.json"
        self.crtdl.write_text(json.dumps(query()))
        self.store = RecordingStore()

    def context(self, **more: Any) -> StepContext:
        return job.context(self.path, "extractor", self.config, crtdl=self.crtdl, handle=self.store, **more)

    def extract(self, **more: Any) -> StepReport:
        # Real seconds, but short ones: the server works in real time.
        return run(self.context(**more), sleep=lambda _: time.sleep(0.02))

    def resources(self) -> dict[str, set[str]]:
        """The ids of what was imported, by type."""
        found: dict[str, set[str]] = {}
        for path in data_files(self.path / "import"):
            for line in read_lines(path):
                for entry in json.loads(line)["entry"]:
                    resource = entry["resource"]
                    found.setdefault(resource["resourceType"], set()).add(resource["id"])
        return found

    @contextmanager
    def client(self) -> Iterator[ExtractionClient]:
        with service_client(self.config) as http:
            yield extraction_client(self.config, http)


@pytest.mark.parametrize("style", list(UrlStyle))
def test_an_extraction_gives_the_cohort_that_a_loop_over_the_data_gives(
    tmp_path: Path, data: Path, style: UrlStyle
) -> None:
    with serving(data, batchsize=2, result_urls=style, availability_delay=2) as url:
        setting = ExtractionSetting(tmp_path / "job", url)
        result = setting.extract()
    found = setting.resources()
    assert found["Patient"] == FEMALE
    assert found["Condition"] == {f"c-{name}-{n}" for name in FEMALE for n in range(2)}
    # Two patients a batch, a line a patient.
    assert (result.files, result.lines_out) == (2, 4)
    assert result.details["cohort_patients"] == result.details["final_patients"] == 4
    assert result.details["resource_inclusions"]["Diagnoses"] == 8
    assert set(result.details["reports"]) == {"job-summary.json", "resource-exclusions.csv", "patient-exclusions.csv"}
    for name in result.details["reports"]:
        assert (setting.path / "extraction" / "reports" / name).is_file()
    assert result.warnings == ()


def test_the_patients_of_a_file_are_taken_instead_of_the_cohort(tmp_path: Path, data: Path) -> None:
    (tmp_path / "patients.txt").write_text("p1\n")
    with serving(data) as url:
        setting = ExtractionSetting(tmp_path / "job", url)
        setting.extract(patients=tmp_path / "patients.txt")
    assert setting.resources()["Patient"] == {"p1"}


def test_a_complete_result_is_imported_from_its_url(tmp_path: Path, data: Path) -> None:
    with serving(data) as url:
        first = ExtractionSetting(tmp_path / "first", url)
        first.extract()
        handle = first.store.load()
        assert handle is not None
        second = ExtractionSetting(tmp_path / "second", url)
        second.extract(input=handle.status_url)
        with second.client() as client:
            assert len(client.tasks()) == 1
    assert second.resources() == first.resources()


def test_a_crtdl_that_the_server_cannot_honour_is_refused_with_its_answer_kept(tmp_path: Path, data: Path) -> None:
    with serving(data) as url:
        setting = ExtractionSetting(tmp_path / "job", url)
        document = query()
        document["dataExtraction"]["attributeGroups"][1]["attributes"][0]["attributeRef"] = (
            "Condition.code.coding:icd10-gm"
        )
        setting.crtdl.write_text(json.dumps(document))
        with pytest.raises(ServiceError) as caught:
            setting.extract()
    assert caught.value.reference == "crtdl-refused"
    assert b"OperationOutcome" in (setting.path / "extraction" / "submission-refused.json").read_bytes()


def test_nobody_in_the_cohort_is_no_matching_data_or_the_servers_word_for_it(tmp_path: Path, data: Path) -> None:
    with serving(data) as url:
        setting = ExtractionSetting(tmp_path / "job", url)
        text = json.dumps(query()).replace('"female"', '"other"')
        setting.crtdl.write_text(text)
        with pytest.raises(TerminalError) as caught:
            setting.extract()
    assert caught.value.reference == "no-matching-data"


def test_the_preview_gives_the_cohort(tmp_path: Path, data: Path) -> None:
    with serving(data) as url:
        setting = ExtractionSetting(tmp_path / "job", url)
        with setting.client() as client:
            assert set(client.evaluate_cohort(setting.crtdl.read_bytes())) == FEMALE
            assert client.tasks() == []


def test_the_task_api_from_end_to_end(tmp_path: Path, data: Path) -> None:
    with serving(data, batchsize=1, maxconcurrency=1, wait=UnitPace()) as url:
        setting = ExtractionSetting(tmp_path / "job", url)
        with setting.client() as client:
            job = client.submit(setting.crtdl).rpartition("/")[2]
            wait_for(lambda: client.task(job).status.startswith("RUNNING"))
            assert client.change(job, "pause").status == "PAUSED"
            with pytest.raises(ServiceError) as caught:
                client.change(job, "pause")
            assert caught.value.status == 409
            assert [task.id for task in client.tasks([job], ["PAUSED"], strict=True)] == [job]
            with pytest.raises(ServiceError) as caught:
                client.tasks([], ["SLEEPING"], strict=True)
            assert caught.value.status == 400
            assert client.prioritize(job, Priority.HIGH).priority is Priority.HIGH
            assert client.change(job, "resume").status.startswith("RUNNING")
            # Each of these moved its version on: it is read before it is written.
            assert client.prioritize(job, Priority.NORMAL).priority is Priority.NORMAL
            assert client.change(job, "cancel").cancelled
            assert client.poll(f"{url}/fhir/__status/{job}").status == 410
            client.delete(job)
            with pytest.raises(ServiceError) as caught:
                client.task(job)
            assert caught.value.status == 404


def test_a_job_that_is_cancelled_while_the_step_waits_ends_it(tmp_path: Path, data: Path) -> None:
    with serving(data, wait=UnitPace()) as url:
        setting = ExtractionSetting(tmp_path / "job", url)

        def cancel(_: float) -> None:
            handle = setting.store.load()
            assert handle is not None
            with setting.client() as client:
                client.change(handle.job_id, "cancel")

        with pytest.raises(SluiceError) as caught:
            run(setting.context(), sleep=cancel)
    assert caught.value.reference == "extraction-cancelled"


def test_a_job_that_is_deleted_while_the_step_waits_is_submitted_afresh_once(tmp_path: Path, data: Path) -> None:
    pace = UnitPace()
    with serving(data, wait=pace) as url:
        setting = ExtractionSetting(tmp_path / "job", url)
        deleted: list[str] = []

        def delete(_: float) -> None:
            handle = setting.store.load()
            if handle is not None and not deleted:
                deleted.append(handle.job_id)
                with setting.client() as client:
                    client.delete(handle.job_id)
            elif deleted:
                pace.let_go(pace.held())
            time.sleep(0.02)

        result = run(setting.context(), sleep=delete)
    assert setting.resources()["Patient"] == FEMALE
    assert any("submitted afresh" in warning for warning in result.warnings)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_submission_whose_handle_was_never_recorded_is_found_on_the_server(tmp_path: Path, data: Path) -> None:
    class StoreKilledError(BaseException):
        """Stands for kill -9."""

    class KilledBeforeSave(RecordingStore):
        def save(self, handle: Any) -> None:
            raise StoreKilledError

    with serving(data) as url:
        ExtractionSetting(tmp_path / "of-somebody-else", url).extract()
        setting = ExtractionSetting(tmp_path / "job", url)
        setting.store = KilledBeforeSave()
        with pytest.raises(StoreKilledError):
            setting.extract()
        setting.store = RecordingStore()
        result = setting.extract()
        with setting.client() as client:
            assert len(client.tasks()) == 2
    assert setting.resources()["Patient"] == FEMALE
    assert any("was taken for it" in warning for warning in result.warnings)
