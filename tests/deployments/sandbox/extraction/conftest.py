"""An extraction server over real HTTP, queries, and a client that waits for jobs."""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.sandbox.extraction.app import extraction_service
from deployments.sandbox.extraction.engine import ExtractionOptions
from deployments.sandbox.serve import serve_in_thread
from tests.deployments.sandbox.extraction.pace import UnitPace

TODAY = datetime(2026, 3, 2, 9, 15, tzinfo=UTC)
BASE = "http://hl7.org/fhir/StructureDefinition/"
SNOMED = "http://snomed.info/sct"
LOINC = "http://loinc.org"
ICD = "http://fhir.de/CodeSystem/bfarm/icd-10-gm"
FINAL = ("COMPLETED", "FAILED", "CANCELLED")


# Data


def patient(key: str, **fields: Any) -> dict[str, Any]:
    return {"resourceType": "Patient", "id": key} | fields


def resource(kind: str, key: str, owner: str | None = None, profile: Any = "", **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"resourceType": kind, "id": key}
    if profile:
        made["meta"] = {"profile": [profile]}
    if owner is not None:
        made["patient" if kind in ("Consent", "Immunization") else "subject"] = {"reference": f"Patient/{owner}"}
    return made | fields


def concept(system: str, code: str) -> dict[str, Any]:
    return {"coding": [{"system": system, "code": code}]}


def write(directory: Path, *resources: dict[str, Any] | str, name: str = "data.ndjson") -> Path:
    directory.mkdir(exist_ok=True)
    lines = [item if isinstance(item, str) else json.dumps(item) for item in resources]
    (directory / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return directory


# Queries


def context(code: str) -> dict[str, str]:
    return {"system": "fdpg.mii.cds", "code": code}


def code(system: str, value: str) -> dict[str, str]:
    return {"system": system, "code": value}


def criterion(where: str, *codes: dict[str, str], **filters: Any) -> dict[str, Any]:
    shown = [{"display": entry["code"]} | entry for entry in codes]
    return {"context": context(where), "termCodes": shown} | filters


GENDER = code(SNOMED, "263495000")
AGE = code(SNOMED, "424144002")
EVERYBODY = criterion("Patient", GENDER)


def ccdl(*inclusion: list[dict[str, Any]], exclusion: list[list[dict[str, Any]]] | None = None) -> dict[str, Any]:
    query: dict[str, Any] = {"version": "2", "inclusionCriteria": list(inclusion)}
    return query | ({"exclusionCriteria": exclusion} if exclusion is not None else {})


def attribute(ref: str, *linked: str, must: bool = False) -> dict[str, Any]:
    return {"attributeRef": ref, "mustHave": must} | ({"linkedGroups": list(linked)} if linked else {})


def group(key: str, profile: str, *attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    reference = profile if "://" in profile else BASE + profile
    return {"id": key, "groupReference": reference, "attributes": list(attributes)} | fields


PATIENTS = group("pat", "Patient", attribute("Patient.gender"))


def crtdl(*groups: dict[str, Any], cohort: dict[str, Any] | None = None) -> dict[str, Any]:
    cohort = cohort or ccdl([EVERYBODY])
    if not any(item["id"] in ("p", "pat") for item in groups):
        groups = (PATIENTS, *groups)
    return {"version": "1", "cohortDefinition": cohort, "dataExtraction": {"attributeGroups": list(groups)}}


def parameters(query: Any, *patients: str) -> dict[str, Any]:
    content = query if isinstance(query, bytes) else json.dumps(query).encode()
    entries = [{"name": "crtdl", "valueBase64Binary": base64.b64encode(content).decode()}]
    entries += [{"name": "patient", "valueString": key} for key in patients]
    return {"resourceType": "Parameters", "parameter": entries}


# The client


class Result:
    """Result files, reports and manifest of a completed job."""

    def __init__(self, client: Client, job: str, manifest: dict[str, Any]) -> None:
        self.client, self.job, self.manifest = client, job, manifest
        self.texts = {entry["url"].rpartition("/")[2]: client.get(entry["url"]).text for entry in manifest["output"]}

    @property
    def bundles(self) -> list[dict[str, Any]]:
        """Return the patient Bundles of all batches."""
        texts = [text for name, text in self.texts.items() if name != "core.ndjson"]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    @property
    def core(self) -> dict[str, Any]:
        return by_key(json.loads(self.texts["core.ndjson"]))

    @property
    def resources(self) -> dict[str, Any]:
        """Return the patients' resources by Type/id, without Provenances."""
        return {key: found for bundle in self.bundles for key, found in by_key(bundle).items()}

    def extension(self, name: str) -> dict[str, Any] | None:
        found = [entry for entry in self.manifest["extension"] if entry["url"].rpartition("/")[2] == name]
        return found[0] if found else None

    @property
    def batches(self) -> list[dict[str, Any]]:
        extension = self.extension("extractor-job")
        assert extension is not None
        return extension["valueObject"]["batches"]  # type: ignore[no-any-return]

    @property
    def summary(self) -> dict[str, Any]:
        extension = self.extension("extractor-job-diagnostics-summary")
        assert extension is not None
        return extension["valueObject"]  # type: ignore[no-any-return]

    def report(self, name: str) -> str:
        return self.client.get(f"/output/{self.job}/reports/{name}").text

    def excluded(self) -> set[tuple[str, str, str, str]]:
        """Return reason, group, attribute and resource of every row of the resource report."""
        return {(row[1], row[2], row[3], row[4]) for row in self.rows("resource-exclusions.csv")}

    def left_out(self) -> set[tuple[str, str]]:
        """Return stage and patient of every row of the patient report."""
        return {(row[1], row[2]) for row in self.rows("patient-exclusions.csv")}

    def rows(self, name: str) -> list[list[str]]:
        return list(csv.reader(io.StringIO(self.report(name))))[1:]


def by_key(bundle: dict[str, Any]) -> dict[str, Any]:
    resources = [entry["resource"] for entry in bundle["entry"]]
    return {f"{item['resourceType']}/{item['id']}": item for item in resources if item["resourceType"] != "Provenance"}


class Client(httpx.Client):
    """An HTTP client of one extraction server. With a ``pace`` it releases held units while it waits, and only then."""

    def __init__(self, url: str, pace: UnitPace | None = None) -> None:
        # Plain HTTP only: without verify=False each client would read the trust store, 15 ms.
        super().__init__(base_url=url, trust_env=False, timeout=60, verify=False)
        self.pace = pace or UnitPace()

    def submit(self, query: Any, *patients: str) -> str:
        """Start a job and return its id."""
        answer = self.post("/fhir/$extract-data", json=parameters(query, *patients))
        assert answer.status_code == 202, answer.text
        return answer.headers["content-location"].rpartition("/")[2]

    def poll(self, job: str) -> httpx.Response:
        return self.get(f"/fhir/__status/{job}")

    def task(self, job: str) -> Any:
        answer = self.get(f"/fhir/Task/{job}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def state(self, job: str) -> str:
        return self.task(job)["businessStatus"]["coding"][0]["code"]  # type: ignore[no-any-return]

    def reach(self, job: str, *states: str) -> Any:
        """Wait until the job is in one of the states; return the Task."""
        return self.until(job, lambda task: task["businessStatus"]["coding"][0]["code"] in states)

    def until(self, job: str, met: Callable[[Any], bool], seconds: float = 60) -> Any:
        """Wait until the Task meets the condition; return the Task."""
        deadline = time.monotonic() + seconds
        while True:
            held = self.pace.held()
            task = self.task(job)
            if met(task):
                return task
            assert time.monotonic() < deadline, task
            self.pace.let_go(held)
            time.sleep(0.01)

    def operate(self, job: str, operation: str) -> httpx.Response:
        return self.post(f"/fhir/Task/{job}/${operation}")

    def result(self, job: str) -> Result:
        """Wait for the successful end of a job."""
        self.reach(job, *FINAL)
        answer = self.poll(job)
        assert answer.status_code == 200, answer.text
        return Result(self, job, answer.json())

    def extract(self, query: Any, *patients: str) -> Result:
        return self.result(self.submit(query, *patients))

    def cohort(self, query: Any) -> list[str]:
        """Return the ids of the patients that $evaluate-cohort finds."""
        answer = self.post("/fhir/$evaluate-cohort", json=query)
        assert answer.status_code == 200, answer.text
        return [entry["item"]["reference"].removeprefix("Patient/") for entry in answer.json().get("entry", ())]

    def findings(self, query: Any) -> list[str]:
        """Return the diagnostics of a refused kick-off."""
        answer = self.post("/fhir/$extract-data", json=parameters(query))
        assert answer.status_code == 400, answer.text
        issues = answer.json()["issue"]
        assert {(issue["severity"], issue["code"]) for issue in issues} == {("fatal", "invalid")}
        return [issue["diagnostics"] for issue in issues]


def progress(task: Any) -> dict[str, Any]:
    """Return the progress extension of a Task, with active batches as a list of dicts."""
    extension = task["extension"][0]["extension"]
    found: dict[str, Any] = {item["url"]: item["valueInteger"] for item in extension if "valueInteger" in item}
    active = [item["extension"] for item in extension if item["url"] == "activeBatch"]
    return found | {"active": [{part["url"]: part["valueString"] for part in parts} for parts in active]}


Start = Callable[..., Client]


@pytest.fixture(scope="session")
def _closing() -> Iterator[Callable[[ExitStack], None]]:
    """Close servers in the background, because each takes 0.2 s to end; raise errors at the end."""
    with ThreadPoolExecutor(4) as closers:
        ended: list[Future[None]] = []
        yield lambda stack: ended.append(closers.submit(stack.close))
        for future in ended:
            future.result()


@pytest.fixture
def start(_closing: Callable[[ExitStack], None]) -> Iterator[Start]:
    """Start an extraction server with options; a test can start several.

    With ``held`` its units are held, and only released while the client waits for another state.
    """
    with ExitStack() as opened:

        def begin(data: Path, held: bool = False, **options: Any) -> Client:
            pace = UnitPace() if held else None
            made = ExtractionOptions(
                data=data, **({"clock": lambda: TODAY} | ({"wait": pace} if pace else {}) | options)
            )
            served = opened.enter_context(serve_in_thread(extraction_service(made)))
            return opened.enter_context(Client(served.url, pace))

        yield begin
        _closing(opened.pop_all())


HOSPITAL = (
    patient("a", gender="female", birthDate="1950-06-01"),
    patient("b", gender="male", birthDate="1980-03-03"),
    patient("c", gender="other", birthDate="2025-12-02"),
    patient("d", birthDate="2008-03-02"),
    resource("Condition", "c-a", "a", code=concept(ICD, "E11.90"), recordedDate="2025-05-10"),
    resource("Condition", "c-b", "b", code=concept(ICD, "I10.90"), recordedDate="2024"),
    resource("Condition", "c-d", "d", code=concept(ICD, "E11.90")),
)
"""Resources of four patients."""


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """A directory with the four patients."""
    return write(tmp_path / "hospital", *HOSPITAL)


@pytest.fixture
def client(start: Start, hospital: Path) -> Client:
    """A server of the hospital."""
    return start(hospital)


@pytest.fixture
def slow(start: Start, hospital: Path) -> Client:
    """A server that does one batch of one patient at a time, and holds each."""
    return start(hospital, batchsize=1, maxconcurrency=1, held=True)
