"""The extraction step against a scripted server: its procedure, the table of polls, and the named failures."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from config import PipelineConfig
from tasks.extractor import polling
from tasks.extractor.run import run
from tasks.extractor.server import extraction_server
from tasks.extractor.step import STEP
from tasks.extractor.submission import DIRECTORY, NEW, NOTE, answer
from tasks.extractor.urls import resolve
from tasks.shared.errors import InputError, NetworkError, ServiceBusyError, ServiceError, SluiceError, TerminalError
from tasks.shared.http.answer import Answer
from tasks.shared.report import StepReport
from tasks.shared.step import CheckContext, GivenInputs, Handle, HandleStore
from tasks.shared.stop import Stop
from tests.peers import data, job, services
from tests.peers.data import CANARY, patient
from tests.peers.server import Raw, Reply, ScriptedServer, SeenRequest
from tests.peers.services import JSON, as_json, issue, outcome

JOB, OTHER = services.JOB, "22222222-2222-4222-8222-222222222222"
STATUS = f"/fhir/__status/{JOB}"
LINE = json.dumps(patient("p", name=[{"family": CANARY}])).encode() + b"\n"
TOLD = f"{JOB}\nRUNNING_PROCESS_BATCH\n30 %\ncohort of 12"
RUNNING = Reply(202, outcome(issue("information", "informational", diagnostics=TOLD)), JSON)
Script = Callable[[SeenRequest], Reply | Raw | None]


class Clocked(Stop):
    """A stop whose sleeps only move a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.check()
        self.slept.append(seconds)
        self.now += seconds


class Place:
    """A job of an extraction server with files; ``replies`` are the answers to its status polls, the last one
    repeats."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = HandleStore()
        self.files = {"core.ndjson": LINE, "b1.ndjson": LINE * 2}
        self.said: dict[str, Reply | Raw | Sequence[Reply | Raw]] = {}
        self.stop = Clocked()
        self.crtdl = directory / "crtdl.json"
        self.crtdl.write_text(json.dumps(data.crtdl()))
        self.seen: list[SeenRequest] = []
        self.server = ScriptedServer(lambda seen: services.extraction(self.files)(seen), lambda seen: self.script(seen))
        self.url = self.server.url

    def script(self, seen: SeenRequest) -> Reply | Raw | None:
        path = seen.target.partition("?")[0]
        for part, said in self.said.items():
            method, _, suffix = part.rpartition(" ")
            if path.endswith(suffix) and method in ("", seen.method):
                if isinstance(said, Reply | Raw):
                    return said
                self.seen = self.server.seen[self.begun :]
                return said[min(len(self.asked(suffix, method)), len(said)) - 1]
        return None

    def run(self, *, given: dict[str, Any] | None = None, **keys: Any) -> StepReport:
        self.begun = len(self.server.seen)
        block = {"base_url": self.url, "file_ready_interval": "10ms"} | keys
        config = PipelineConfig.model_validate(
            {"services": {"extractor": block}, "retry": {"max_attempts": 2, "initial_backoff_ms": 1}}
        )
        inputs: dict[str, Any] = {"crtdl": self.crtdl} if given is None else given
        self.context = job.context(
            self.directory / "job", "extractor", config, handle=self.store, stop=self.stop, **inputs
        )
        self.context.job_dir.mkdir(exist_ok=True)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(polling, "time", SimpleNamespace(monotonic=lambda: self.stop.now))
                return run(self.context)
        finally:
            self.seen = self.server.seen[self.begun :]

    def fails(self, kind: type[SluiceError], **more: Any) -> SluiceError:
        with pytest.raises(kind) as caught:
            self.run(**more)
        assert CANARY not in caught.value.render()
        return caught.value

    def asked(self, suffix: str, method: str = "") -> list[SeenRequest]:
        found = [one for one in self.seen if one.target.partition("?")[0].endswith(suffix)]
        return [one for one in found if method in ("", one.method)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with made.server:
        yield made


# Submission


def test_the_query_is_submitted_once_and_the_handle_stored_before_the_first_poll(place: Place) -> None:
    noted: list[bool] = []
    save, note = place.store.save, place.directory / "job" / DIRECTORY / NOTE
    place.store.save = lambda handle: (noted.append(note.exists()), save(handle))[1]  # type: ignore[method-assign]
    place.said["$extract-data"] = Reply(202, headers={"Content-Location": STATUS})
    place.said[STATUS] = [RUNNING, services.manifest("/out/core.ndjson", "/out/b1.ndjson")]
    report = place.run()
    (kickoff,) = place.asked("$extract-data")
    body = json.loads(kickoff.body)
    assert (kickoff.headers["content-type"], kickoff.headers["accept"]) == ("application/fhir+json",) * 2
    assert body["resourceType"] == "Parameters"
    assert base64.b64decode(body["parameter"][0]["valueBase64Binary"]) == place.crtdl.read_bytes()
    assert noted == [True], "a kill before the record leaves the note"
    assert place.store.load() == Handle(place.url + STATUS, JOB)
    assert not (place.context.job_dir / DIRECTORY / NOTE).exists()
    assert [seen.headers["accept"] for seen in place.asked(STATUS)] == ["application/json"] * 2
    assert (report.files, report.resources_in, report.lines_out) == (2, 3, 3)
    assert {path.name for path in (place.context.job_dir / "import").iterdir()} == {"core.ndjson.zst", "b1.ndjson.zst"}


def test_a_query_in_memory_is_submitted_as_plain_json(place: Place) -> None:
    config = PipelineConfig.model_validate({"services": {"extractor": {"base_url": place.url}}})
    with extraction_server(config) as server:
        assert server.submit(b'{"a": 1}') == place.url + STATUS
        with pytest.raises(InputError, match="not valid JSON"):
            server.submit(b"{")
    (kickoff,) = place.server.seen
    assert kickoff.headers["content-type"] == "application/json"
    assert base64.b64decode(json.loads(kickoff.body)["parameter"][0]["valueBase64Binary"]) == b'{"a": 1}'


def test_a_stored_handle_is_attached_to_and_nothing_submitted(place: Place) -> None:
    place.run()
    place.run()
    assert not place.asked("$extract-data")
    assert not place.asked(".ndjson")


def test_patients_bypass_the_cohort_and_too_many_are_refused_before_they_are_sent(place: Place, tmp_path: Path) -> None:
    listed = tmp_path / "patients.txt"
    listed.write_text("p1\nPatient/p2\n\np1\n")
    place.run(given={"crtdl": place.crtdl, "patients": listed})
    parameters = json.loads(place.asked("$extract-data")[0].body)["parameter"][1:]
    assert parameters == [{"name": "patient", "valueString": one} for one in ("p1", "p2")]
    place.store.save(None)
    (place.context.job_dir / "patients.txt").write_text("".join(f"{n:060}\n" for n in range(30_000)))
    error = place.fails(InputError, given={"crtdl": place.crtdl, "patients": listed})
    assert error.reference == "submission-too-large"
    assert "30,000 patient ids" in error.message
    assert not place.asked("$extract-data")


@pytest.mark.parametrize(
    ("reply", "kind", "reference", "stays_open"),
    [
        (Reply(400, outcome(issue("fatal", "invalid", diagnostics="x")), JSON), ServiceError, "crtdl-refused", False),
        (Reply(401), ServiceError, "service-unauthorized", False),
        (Reply(429), ServiceBusyError, "service-busy", False), (Reply(503), ServiceBusyError, "service-busy", False),
        (Reply(202), ServiceError, "content-location-missing", True),
        (Reply(202, headers={"Content-Location": "/fhir/Task/7"}), ServiceError, "extractor-answer", True),
        (Reply(500), NetworkError, "submission-unanswered", True),
        (Reply(504), NetworkError, "submission-unanswered", True),
        (Reply(reset=True), NetworkError, "submission-unanswered", True),
        (Reply(302, headers={"Location": "/x"}), ServiceError, "redirect-refused", False),
    ],
)  # fmt: skip
def test_a_submission_is_never_repeated(
    place: Place, reply: Reply, kind: type[SluiceError], reference: str, stays_open: bool
) -> None:
    place.said["$extract-data"] = reply
    error = place.fails(kind)
    assert error.reference == reference
    assert len(place.asked("$extract-data")) == 1
    assert (place.context.job_dir / DIRECTORY / NOTE).exists() is stays_open
    assert place.store.load() is None


def test_what_the_server_says_of_a_query_is_shown_unless_it_may_name_patients(place: Place, tmp_path: Path) -> None:
    place.said["$extract-data"] = Reply(400, outcome(issue("fatal", "invalid", diagnostics="unknown code x|1")), JSON)
    assert "unknown code x|1" in place.fails(ServiceError).message
    listed = tmp_path / "patients.txt"
    listed.write_text("p1\n")
    error = place.fails(ServiceError, given={"crtdl": place.crtdl, "patients": listed})
    assert (error.reference, "unknown" in error.render()) == ("crtdl-refused", False)
    (kept,) = (place.context.job_dir / DIRECTORY / "failed").iterdir()
    assert "unknown code x|1" in kept.read_text()


def test_a_lost_answer_is_a_question_and_the_answer_goes_on(place: Place) -> None:
    place.said["$extract-data"] = Reply(reset=True)
    place.fails(NetworkError)
    earlier = services.task("33333333-3333-4333-8333-333333333333", authoredOn="2020-01-01T00:00:00Z")
    jobs = [{"resource": task} for task in (services.task(OTHER, "PENDING"), earlier)]
    place.said["GET /fhir/Task"] = as_json({"resourceType": "Bundle", "type": "searchset", "entry": jobs})
    error = place.fails(InputError)
    assert (error.reference, error.exit_code) == ("submission-unknown", 2)
    assert OTHER in str(error.context)
    assert earlier["id"] not in str(error.context)
    assert "--extraction" in str(error.hint)
    assert not place.asked("$extract-data")
    answer(place.store, place.context.job_dir, place.url, JOB)
    assert not (place.context.job_dir / DIRECTORY / NOTE).exists()
    with pytest.raises(InputError, match="no submission of this job is unanswered"):
        answer(place.store, place.context.job_dir, place.url, NEW)
    place.store.save(None)
    (place.context.job_dir / "extraction" / NOTE).write_text("torn")
    answer(place.store, place.context.job_dir, place.url, NEW)
    del place.said["$extract-data"]
    assert place.run().files == 2


# The table of polls

TABLE: dict[str, tuple[list[Reply | Raw], Any]] = {
    "202": ([RUNNING], None),
    "102": ([Raw(b"HTTP/1.1 102 Processing\r\n\r\n")], None),
    **{f"{status}": ([Reply(status)], None) for status in (408, 429, 501, 502, 503, 504)},
    "network failure": ([Reply(reset=True)], None),
    "cut answer": ([Reply(200, b"{}", JSON, length=20, cut=2)], None),
    "500": ([Reply(500, outcome(issue("fatal", "exception")), JSON)], "extraction-failed"),
    "400": ([Reply(400, outcome(issue()), JSON)], "service-refused"),
    "403": ([Reply(403)], "service-forbidden"),
}


@pytest.mark.parametrize("row", TABLE)
def test_each_answer_to_a_poll_has_its_action(place: Place, row: str) -> None:
    replies, reference = TABLE[row]
    place.said[STATUS] = [*replies, services.manifest("/out/core.ndjson", "/out/b1.ndjson")]
    if reference is None:
        assert place.run().files == 2
        assert len(place.asked(STATUS)) == 2
        assert place.stop.slept == [5.0]
    else:
        error = place.fails(ServiceError)
        assert (error.reference, error.exit_code, error.transient) == (reference, 1, False)
        assert len(place.asked(STATUS)) == 1


def test_the_interval_doubles_up_to_its_cap(place: Place) -> None:
    place.said[STATUS] = [RUNNING] * 6 + [services.manifest("/out/core.ndjson")]
    place.run(polling_interval="PT2S", max_polling_interval="PT9S")
    assert place.stop.slept == [2.0, 4.0, 8.0, 9.0, 9.0, 9.0]


def test_the_backoff_grows_with_failures_and_begins_anew_after_a_sign_of_life(place: Place) -> None:
    place.said[STATUS] = [Reply(503), Reply(503), RUNNING, Reply(503), services.manifest("/out/core.ndjson")]
    place.run()
    assert place.stop.slept == [5.0, 10.0, 5.0, 5.0]


def test_only_silence_ends_the_wait(place: Place) -> None:
    place.said[STATUS] = [Reply(503), RUNNING] * 40 + [services.manifest("/out/core.ndjson")]
    place.run(extraction_timeout="PT1M")
    assert place.stop.now > 600
    place.store.save(Handle(place.url + STATUS, JOB))
    place.said[STATUS] = [RUNNING, Reply(503)]
    place.said[f"Task/{JOB}"] = as_json(services.task(JOB, "TEMP_FAILED"))
    begun = place.stop.now
    error = place.fails(TerminalError, extraction_timeout="PT1M")
    assert error.reference == "extraction-timeout"
    assert 60 <= place.stop.now - begun <= 100
    assert "TEMP_FAILED" in error.message
    assert "extraction resume" in str(error.hint)


@pytest.mark.parametrize(
    ("diagnostics", "header", "text", "fraction", "state"),
    [
        (TOLD, "", "RUNNING_PROCESS_BATCH, 30%, cohort of 12 patients", 0.3, "RUNNING_PROCESS_BATCH"),
        ("", "Processing batches (40%)", "Processing batches, 40%", 0.4, ""), ("", "Paused", "Paused", None, "PAUSED"),
        (CANARY, CANARY, "running", None, ""),
    ],
)  # fmt: skip
def test_only_known_parts_of_the_progress_are_shown(
    diagnostics: str, header: str, text: str, fraction: float | None, state: str
) -> None:
    body = outcome(issue("information", "informational", diagnostics=diagnostics))
    read = polling.read_progress(Answer(202, httpx.Headers({"X-Progress": header}), body))
    assert (read.text, read.fraction, read.state) == (text, fraction, state)


@pytest.mark.parametrize("status", [404, 410])
def test_a_dead_handle_is_submitted_again_once(place: Place, status: int) -> None:
    place.said[STATUS] = [Reply(status), services.manifest("/out/core.ndjson", "/out/b1.ndjson")]
    report = place.run()
    assert len(place.asked("$extract-data")) == 2
    assert any("was submitted again" in warning for warning in report.warnings)
    place.store.save(None)
    place.said[STATUS] = Reply(status)
    assert place.fails(ServiceError).reference == "dead-handle"
    assert len(place.asked("$extract-data")) == 2


def test_a_job_that_a_person_cancelled_is_not_submitted_again(place: Place) -> None:
    place.said[STATUS] = Reply(410)
    place.said[f"Task/{JOB}"] = as_json(services.task(JOB, "CANCELLED"))
    assert place.fails(ServiceError).reference == "extraction-cancelled"
    assert len(place.asked("$extract-data")) == 1


def test_a_deleted_job_is_no_cancelled_one_whatever_the_status_of_its_task(place: Place) -> None:
    place.said[STATUS] = [Reply(410), services.manifest("/out/core.ndjson")]
    place.said[f"Task/{JOB}"] = as_json(services.task(JOB, "DELETED") | {"status": "cancelled"})
    assert place.run().files == 1
    assert len(place.asked("$extract-data")) == 2


def test_why_a_job_failed_is_kept_and_its_codes_are_said(place: Place) -> None:
    place.said[STATUS] = Reply(500, outcome(issue("fatal", "exception"), issue("error", "timeout")), JSON)
    error = place.fails(ServiceError)
    assert "1 fatal (exception), 1 error (timeout)" in error.message
    (kept,) = (place.context.job_dir / "extraction/failed").iterdir()
    assert CANARY in kept.read_text()
    assert oct(kept.stat().st_mode)[-3:] == "600"


def test_a_paused_job_is_shown_with_the_command_that_resumes_it(place: Place) -> None:
    paused = Reply(
        202, outcome(issue("information", "informational", diagnostics="PAUSED")), JSON | {"X-Progress": "Paused"}
    )
    place.said[STATUS] = [paused, services.manifest("/out/core.ndjson")]
    place.said[f"Task/{JOB}"] = as_json(services.task(JOB, "PAUSED"))
    place.run()
    assert any("PAUSED" in text and "extraction resume" in text for text in place.context.meter.snapshot().warnings)


# Results


def parameters(*urls: str) -> Reply:
    outputs = [{"name": "output", "part": [{"name": "url", "valueUrl": url}]} for url in urls]
    return as_json({"resourceType": "Parameters", "parameter": outputs})


@pytest.mark.parametrize(
    "reply",
    [
        parameters("/out/core.ndjson"),
        as_json({"output": [{"type": 7, "url": "/out/core.ndjson", "count": "many"}], "requiresAccessToken": "true"}),
        as_json({"output": [{"url": "/out/core.ndjson"}] * 2, "extension": 7, "error": [], "deleted": {}}),
    ],
)  # fmt: skip
def test_only_the_urls_of_a_result_are_read(place: Place, reply: Reply) -> None:
    place.said[STATUS] = reply
    assert place.run().files == 1


@pytest.mark.parametrize(
    ("document", "reference"),
    [
        ({"output": []}, "no-matching-data"), ({"output": [], "error": [{"url": "/errors"}]}, "extraction-errors"),
        ({"resourceType": "Parameters", "parameter": []}, "no-matching-data"), ({}, "result-unreadable"),
        ({"output": {}}, "result-unreadable"), ({"output": [{"type": "Patient"}]}, "result-unreadable"),
        ({"output": [{"url": "ftp://host/x"}]}, "result-url"),
    ],
)  # fmt: skip
def test_a_result_without_files_has_its_reason(place: Place, document: Any, reference: str) -> None:
    place.said[STATUS] = as_json(document)
    error = place.fails(SluiceError)
    assert (error.reference, error.exit_code) == (reference, 1)


@pytest.mark.parametrize(
    ("url", "absolute"),
    [
        ("HTTP://o.example/x", "HTTP://o.example/x"), ("/fhir/x", "https://h.example/torch/fhir/x"),
        ("/torch/fhir/x", "https://h.example/torch/fhir/x"), ("out/x", "https://h.example/torch/out/x"),
        ("//o.example/x", "https://o.example/x"), ("o:8080/x", "https://o:8080/x"),
        ("h.example/torch/x", "https://h.example/torch/x"), ("core.ndjson", "https://h.example/torch/core.ndjson"),
        ("ftp://o.example/x", None), ("http://", None), ("http://[o/x", None),
    ],
)  # fmt: skip
def test_urls_of_the_server_become_absolute(url: str, absolute: str | None) -> None:
    if absolute is not None:
        assert resolve(url, "https://h.example/torch") == absolute
    else:
        with pytest.raises(ServiceError, match="a URL that cannot be used"):
            resolve(url, "https://h.example/torch")


def test_names_come_from_the_urls_and_never_overwrite_each_other(place: Place) -> None:
    place.files = {"x.ndjson": LINE, "y": LINE * 2}
    place.said[STATUS] = services.manifest("/out/x.ndjson", "/out/a/x.ndjson?token=secret", "out/y")
    place.said["a/x.ndjson"] = Reply(200, LINE * 3)
    report = place.run(max_concurrent_downloads=1)
    assert report.lines_out == 6
    assert sorted(path.name for path in (place.context.job_dir / "import").iterdir()) == [
        "x-2.ndjson.zst", "x.ndjson.zst", "y.ndjson.zst",
    ]  # fmt: skip
    assert b"secret" not in b"".join(path.read_bytes() for path in (place.context.job_dir / ".done").rglob("*.json"))


def test_a_finished_file_belongs_to_its_url_not_to_its_name(place: Place) -> None:
    place.run()
    place.said[STATUS] = services.manifest("/out/core.ndjson", "/new/b1.ndjson")
    place.said["new/b1.ndjson"] = Reply(200, LINE * 5)
    assert place.run().lines_out == 6
    assert not place.asked("out/core.ndjson", "GET")


NO_LENGTH = Raw(b"HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize(
    ("head", "get", "attempts"),
    [
        (Reply(200, LINE), None, 1), (Reply(404), Reply(206, b"{"), 1), (Reply(403), Reply(200, b"{"), 1),
        (NO_LENGTH, Reply(206, b"{"), 1), (NO_LENGTH, Reply(404), 3), (Reply(405), Reply(404), 3),
        (Reply(503), None, 3), (Reply(200, b""), None, 3),
    ],
)  # fmt: skip
def test_a_file_is_fetched_when_it_is_available(
    place: Place, head: Reply | Raw, get: Reply | None, attempts: int
) -> None:
    place.said[STATUS] = services.manifest("/out/b1.ndjson")

    def script(seen: SeenRequest) -> Reply | Raw | None:
        if seen.target.endswith("b1.ndjson"):
            if seen.method == "HEAD":
                return head
            if "range" in seen.headers:
                return get
        return Place.script(place, seen)

    place.script = script  # type: ignore[method-assign]
    if attempts == 1:
        assert place.run(file_ready_retries=3).files == 1
    else:
        assert place.fails(ServiceBusyError, file_ready_retries=3).reference == "file-not-available"
    assert len(place.asked("b1.ndjson", "HEAD")) == attempts
    place.run(file_ready_retries=0) if get is None else None
    if get is None:
        assert not place.asked("b1.ndjson", "HEAD")


def test_a_broken_connection_does_not_end_the_wait_for_a_file(place: Place) -> None:
    place.said["HEAD /out/b1.ndjson"] = [Reply(reset=True), Reply(200, LINE)]
    assert place.run().files == 2
    assert len(place.asked("b1.ndjson", "HEAD")) == 2


def test_four_files_are_fetched_at_once(place: Place) -> None:
    together, lock, under_way = threading.Barrier(4), threading.Lock(), [0, 0]
    place.files = {f"b{number}.ndjson": LINE for number in range(8)}
    place.said[STATUS] = services.manifest(*(f"/out/{name}" for name in place.files))

    def script(seen: SeenRequest) -> Reply | Raw | None:
        if seen.method == "GET" and seen.target.endswith(".ndjson"):
            with lock:
                under_way[:] = under_way[0] + 1, max(under_way[1], under_way[0] + 1)
            together.wait(20)
            with lock:
                under_way[0] -= 1
        return Place.script(place, seen)

    place.script = script  # type: ignore[method-assign]
    assert place.run().files == 8
    assert under_way == [0, 4]


def test_credentials_go_to_the_host_of_the_server_and_elsewhere_only_where_the_manifest_says_so(place: Place) -> None:
    auth = {"username": "u", "password": "p"}
    with ScriptedServer(lambda _: Reply(200, LINE)) as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost") + "/f.ndjson"
        for needed, sent in ((False, False), (True, True), ("true", True)):
            report = {"url": "extractor-patient-exclusions", "valueUrl": f"{elsewhere}{needed}.csv"}
            result = {"output": [{"url": elsewhere}], "requiresAccessToken": needed, "extension": [report]}
            place.said[STATUS] = as_json(result)
            other.seen.clear()
            place.run(auth=auth)
            assert [bool(seen.authorization) for seen in other.seen] == [sent] * 3, "HEAD, GET, and the report"
            assert place.asked(STATUS)[0].authorization
            place.store.save(None)
            for record in (place.context.job_dir / ".done/1").iterdir():
                record.unlink()


def test_reports_and_consent_audits_come_beside_the_data_and_may_be_missing(place: Place) -> None:
    extension = "https://torch/fhir/StructureDefinition/"
    place.said[STATUS] = as_json(
        {
            "output": [{"url": "/out/b1.ndjson", "count": 9}],
            "extension": [
                {"url": f"{extension}torch-job-diagnostics-summary", "valueUrl": "/reports/job-summary.json"},
                {"url": f"{extension}extractor-patient-exclusions", "valueUrl": "/reports/patients.csv"},
                {"url": "extractor-job-issues", "valueObject": [{"severity": "WARNING", "msg": CANARY}]},
            ],
        }
    )
    place.said["job-summary.json"] = Reply(200, b"{}")
    task = services.task(JOB, "COMPLETED") | {
        "output": [{"type": {"text": "Consent audit NDJSON"}, "valueUrl": "/out/b1_consent.ndjson"}]
    }
    place.said[f"Task/{JOB}"] = as_json(task)
    place.said["b1_consent.ndjson"] = Reply(200, LINE)
    report = place.run()
    kept = place.context.job_dir / "extraction"
    assert [path.name for path in (kept / "reports").iterdir()] == ["job-summary.json"]
    assert [path.name for path in (kept / "consent").iterdir()] == ["b1_consent.ndjson"]
    assert (kept / "manifest.json").exists()
    told = "\n".join(report.warnings)
    assert all(part in told for part in ("patients.csv", "the manifest counts 9 lines, the file has 2"))
    assert CANARY not in told


def test_a_log_of_an_export_among_the_files_is_left_out_with_a_warning(place: Place) -> None:
    place.files = {"b1.ndjson": LINE, "log.ndjson": b'{"exportId":"e1","eventId":"kickoff"}\n'}
    report = place.run()
    assert (report.files, report.lines_out) == (1, 1)
    assert any("the log of an export tool" in warning and "log.ndjson" in warning for warning in report.warnings)


def test_the_url_of_a_complete_result_needs_no_query(place: Place) -> None:
    place.said[STATUS] = services.manifest("/out/b1.ndjson")
    assert place.run(given={"input": place.url + STATUS}).files == 1
    assert not place.asked("$extract-data")
    place.said[STATUS] = RUNNING
    assert place.fails(ServiceBusyError, given={"input": place.url + STATUS}).reference == "result-not-complete"
    place.said[STATUS] = Reply(404)
    assert place.fails(ServiceError, given={"input": place.url + STATUS}).reference == "dead-handle"
    (error,) = STEP.checks(CheckContext(PipelineConfig(), GivenInputs(input="http://host/x")))
    assert error.reference == "result-url-unknown"
