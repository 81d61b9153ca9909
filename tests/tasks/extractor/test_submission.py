"""One submission per job, whatever dies in between (document 1, procedure 2 and 3; 4-product.md §4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.shared.errors import (
    InputError,
    NetworkError,
    ServiceBusyError,
    ServiceError,
    SluiceError,
    Stopped,
    TerminalError,
)
from tasks.shared.step import Handle
from tests.peers.extraction import (
    BASE,
    BUNDLE,
    OTHER_JOB,
    ExtractorJob,
    MockExtraction,
    RecordingStore,
    crtdl,
    job_extensions,
    make_response,
    manifest,
    running,
)
from tests.peers.services import JOB, task

FILE = f"{BASE}/out/batch.ndjson"
HANDLE = Handle(f"{BASE}/fhir/__status/{JOB}", JOB)


class DiedError(BaseException):
    """Stands for kill -9: nothing after it runs."""


@pytest.fixture
def job(tmp_path: Path) -> ExtractorJob:
    server = MockExtraction(files={FILE: BUNDLE})

    def result(request: httpx.Request) -> httpx.Response:
        parameters = json.loads(server.submissions[-1].content)["parameter"] if server.submissions else []
        patients = [parameter["valueString"] for parameter in parameters if parameter["name"] == "patient"]
        job_id = request.url.path.rpartition("/")[2]
        return manifest(FILE, extension=job_extensions(crtdl(), *patients, job_id=job_id))

    server.polls = [result]
    return ExtractorJob(tmp_path / "job", server)


def fails(job: ExtractorJob, kind: type[SluiceError]) -> SluiceError:
    with pytest.raises(kind) as caught:
        job.run()
    assert "CANARY" not in caught.value.render()
    return caught.value


def died_in_submission(job: ExtractorJob, *, created: bool, **facts: Any) -> None:
    """Run until the process dies in the middle of the submission, with or without a job on the server."""

    def answer(_: httpx.Request) -> httpx.Response:
        if created:
            job.server.tasks[JOB] = task(**facts)
        raise DiedError

    job.server.submit = answer
    with pytest.raises(DiedError):
        job.run()
    job.server.submit = None


def test_the_handle_is_status_url_and_last_path_segment(job: ExtractorJob) -> None:
    job.run()
    assert job.store.saved == [HANDLE]


def test_a_run_after_a_finished_submission_does_not_submit_again(job: ExtractorJob) -> None:
    job.run()
    job.run()
    assert len(job.server.submissions) == 1


def test_a_note_that_a_killed_process_left_unfinished_is_removed(job: ExtractorJob) -> None:
    job.run()
    part = job.path / "extraction" / "submission.json.part"
    part.write_bytes(b"{")
    job.run()
    assert not part.exists()


def test_a_run_killed_before_it_recorded_the_handle_reuses_the_job_it_created(job: ExtractorJob) -> None:
    job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
    died_in_submission(job, created=True)
    result = job.run()
    assert len(job.server.submissions) == 1
    assert job.store.load() == HANDLE
    assert any("was taken for it" in warning for warning in result.warnings)


def test_a_process_that_died_before_the_server_created_a_job_submits(job: ExtractorJob) -> None:
    job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
    died_in_submission(job, created=False)
    job.run()
    assert len(job.server.submissions) == 2
    assert job.store.load() == HANDLE


def test_a_new_job_that_was_deleted_is_none_that_could_be_taken(job: ExtractorJob) -> None:
    died_in_submission(job, created=True, status="DELETED")
    job.server.tasks[JOB]["status"] = "cancelled"
    job.run()
    assert len(job.server.submissions) == 2


def test_a_death_after_the_record_re_attaches(job: ExtractorJob) -> None:
    class KilledAfterSave(RecordingStore):
        def save(self, handle: Handle | None) -> None:
            super().save(handle)
            raise DiedError

    store = KilledAfterSave()
    job.store = store
    with pytest.raises(DiedError):
        job.run()
    job.store = RecordingStore(store.load())
    job.run()
    assert len(job.server.submissions) == 1


def test_a_new_job_from_another_time_is_not_ours(job: ExtractorJob) -> None:
    dated = {"Date": "Sat, 21 Nov 2026 12:00:00 GMT"}
    answer = job.server.__call__
    job.server.file = lambda _: None

    def with_date(request: httpx.Request) -> httpx.Response:
        response = answer(request)
        response.headers.update(dated)
        return response

    job.server.__class__ = type("Dated", (MockExtraction,), {"__call__": lambda _self, request: with_date(request)})
    died_in_submission(job, created=True, authoredOn="2026-11-21T14:00:00Z")
    job.run()
    assert len(job.server.submissions) == 2


def somebody_elses(**changes: Any) -> httpx.Response:
    return manifest(FOREIGN, extension=job_extensions(crtdl(**changes), job_id=OTHER_JOB))


OTHER_COHORT = {"cohortDefinition": {"version": "2", "inclusionCriteria": []}}
FOREIGN = f"{BASE}/out/foreign.ndjson"


class TestTrial:
    """A new job may be ours or somebody else's: nothing of it is imported before its result shows which."""

    def test_a_job_that_still_runs_is_waited_for_on_trial(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server.polls = [running(), running(), *job.server.polls]
        assert job.run().files == 1
        assert len(job.server.submissions) == 1
        assert job.store.load() == HANDLE

    def test_a_job_of_somebody_else_is_never_imported_and_the_query_is_submitted(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=False)
        job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        job.server.results[OTHER_JOB] = somebody_elses(**OTHER_COHORT)
        result = job.run()
        assert result.warnings == ()
        assert len(job.server.submissions) == 2
        assert job.store.load() == HANDLE
        assert job.server.requests("GET", "foreign") == job.server.requests("HEAD", "foreign") == []

    def test_a_trial_survives_a_second_death(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=False)
        job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        died: list[None] = []

        def die(_: httpx.Request) -> httpx.Response:
            died.append(None)
            raise DiedError

        job.server.results[OTHER_JOB] = die
        with pytest.raises(DiedError):
            job.run()
        assert died
        assert job.store.load() == Handle(f"{BASE}/fhir/__status/{OTHER_JOB}", OTHER_JOB)
        job.server.results[OTHER_JOB] = somebody_elses(**OTHER_COHORT)
        job.run()
        assert job.store.load() == HANDLE
        assert job.server.requests("GET", "foreign") == []

    @pytest.mark.parametrize("moment", [1, 2, 3, 4])
    def test_a_death_between_any_two_records_never_makes_it_ours(self, job: ExtractorJob, moment: int) -> None:
        """The process dies at the n-th write of the handle or of the note while the foreign job is given up."""
        died_in_submission(job, created=False)
        job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        job.server.results[OTHER_JOB] = somebody_elses(**OTHER_COHORT)
        from tasks.extractor.submission import Submission

        left = moment
        save, write = RecordingStore.save, Submission._write

        def counted(function: Callable[..., None]) -> Callable[..., None]:
            def call(*arguments: Any) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise DiedError
                function(*arguments)

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RecordingStore, "save", counted(save))
            patch.setattr(Submission, "_write", counted(write))
            with pytest.raises(DiedError):
                job.run()
        job.run()
        assert job.store.load() == HANDLE
        assert job.server.requests("GET", "foreign") == []

    def test_a_result_that_does_not_tell_what_it_was_asked_is_for_a_person(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server.polls = [manifest(FILE)]
        error = fails(job, TerminalError)
        assert error.reference == "submission-unknown"
        assert error.context == f"{BASE}/fhir/__status/{JOB}"
        assert "pipeline start CONFIG with its URL" in (error.hint or "")
        assert job.imported() == {}
        assert job.store.load() is None
        # And the way out that the hint names: nothing is submitted, the result is imported.
        chosen = ExtractorJob(job.path.parent / "chosen", job.server, input=error.context)
        assert chosen.run().files == 1
        assert len(job.server.submissions) == 1

    def test_after_that_the_next_continue_submits(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server.polls = [manifest(FILE)]
        fails(job, TerminalError)
        assert job.run().files == 1
        assert len(job.server.submissions) == 2

    def test_a_job_on_trial_that_failed_is_for_a_person_too(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server.polls = [httpx.Response(500)]
        assert fails(job, TerminalError).reference == "submission-unknown"

    def test_a_job_on_trial_that_is_gone_is_submitted_afresh(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server.results[JOB] = httpx.Response(404)
        job.server.locations.append(f"{BASE}/fhir/__status/{OTHER_JOB}")
        del job.server.tasks[JOB]
        job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        assert job.run().files == 1

    def test_other_patients_are_another_question(self, job: ExtractorJob, tmp_path: Path) -> None:
        job.patients = tmp_path / "patients.txt"
        job.patients.write_text("p1\n")
        died_in_submission(job, created=False)
        job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        job.server.results[OTHER_JOB] = manifest(FOREIGN, extension=job_extensions(crtdl(), "p2", job_id=OTHER_JOB))
        job.run()
        assert len(job.server.submissions) == 2


class TestUnknown:
    def test_several_new_jobs_are_listed_for_a_decision_and_the_next_continue_submits(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        error = fails(job, TerminalError)
        assert error.reference == "submission-unknown"
        assert [line.strip() for line in (error.context or "").splitlines()] == [
            f"{BASE}/fhir/__status/{JOB}",
            f"{BASE}/fhir/__status/{OTHER_JOB}",
        ]
        assert len(job.server.submissions) == 1
        job.run()
        assert len(job.server.submissions) == 2

    def test_of_several_those_that_were_asked_something_else_are_left_out(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server.tasks[OTHER_JOB] = task(OTHER_JOB)
        job.server.results[OTHER_JOB] = somebody_elses(**OTHER_COHORT)
        assert job.run().files == 1
        assert len(job.server.submissions) == 1
        assert job.store.load() == HANDLE

    def test_a_server_that_does_not_list_its_jobs_leaves_it_to_a_person(self, job: ExtractorJob) -> None:
        job.server._task = lambda job_id: httpx.Response(404)  # type: ignore[method-assign]
        died_in_submission(job, created=True)
        error = fails(job, TerminalError)
        assert error.reference == "submission-unknown"
        assert "submits the query again" in (error.hint or "")
        assert len(job.server.submissions) == 1

    def test_a_server_that_is_busy_is_asked_by_the_next_run(self, job: ExtractorJob) -> None:
        died_in_submission(job, created=True)
        job.server._task = lambda job_id: httpx.Response(503)  # type: ignore[method-assign]
        assert fails(job, ServiceBusyError).transient
        del job.server._task
        job.run()
        assert len(job.server.submissions) == 1

    def test_an_answer_that_is_too_large_or_unreadable_leaves_it_open(self, job: ExtractorJob) -> None:
        def answer(_: httpx.Request) -> httpx.Response:
            job.server.tasks[JOB] = task()
            return httpx.Response(202, headers={"Content-Encoding": "x-odd"}, content=b"CANARY")

        job.server.submit = answer
        assert fails(job, ServiceError).reference == "answer-encoding"
        job.server.submit = None
        job.run()
        assert len(job.server.submissions) == 1


class TestFailures:
    @pytest.mark.parametrize("failure", [httpx.ReadTimeout("CANARY"), httpx.ReadError("CANARY")])
    def test_a_network_error_says_what_it_means_and_is_not_retried(self, job: ExtractorJob, failure: Exception) -> None:
        job.server.submit = failure
        error = fails(job, NetworkError)
        assert (error.reference, error.operation, error.transient) == ("submission-unanswered", "submit", True)
        assert "may have created the job or not" in error.message
        assert len(job.server.submissions) == 1

    def test_after_one_the_next_run_takes_the_job_that_the_server_has_created(self, job: ExtractorJob) -> None:
        def answer(_: httpx.Request) -> httpx.Response:
            job.server.tasks[JOB] = task()
            raise httpx.ReadTimeout("CANARY")

        job.server.submit = answer
        fails(job, NetworkError)
        job.server.submit = None
        job.run()
        assert len(job.server.submissions) == 1
        assert job.store.load() == HANDLE

    @pytest.mark.parametrize("failure", [httpx.ConnectError("CANARY"), httpx.ConnectTimeout("CANARY")])
    def test_without_a_connection_nothing_was_submitted(self, job: ExtractorJob, failure: Exception) -> None:
        job.server.submit = failure
        error = fails(job, NetworkError)
        assert error.reference.startswith("connect-")
        assert not (job.path / "extraction" / "submission.json").exists()

    @pytest.mark.parametrize(
        ("status", "certain"), [(503, True), (429, True), (502, False), (504, False), (500, False)]
    )
    def test_what_a_busy_answer_leaves_open_is_remembered(self, job: ExtractorJob, status: int, certain: bool) -> None:
        job.server.submit = httpx.Response(status, text="CANARY")
        error = fails(job, SluiceError)
        assert error.status == status
        assert (job.path / "extraction" / "submission.json").exists() is not certain

    def test_400_is_the_invalid_crtdl_and_the_whole_answer_is_kept(self, job: ExtractorJob) -> None:
        outcome = {"resourceType": "OperationOutcome", "issue": [{"code": "invalid", "diagnostics": "CANARY"}]}
        job.server.submit = httpx.Response(400, json=outcome)
        error = fails(job, ServiceError)
        assert (error.reference, error.status) == ("crtdl-refused", 400)
        kept = job.path / "extraction" / "submission-refused.json"
        assert json.loads(kept.read_bytes()) == outcome
        assert kept.stat().st_mode & 0o777 == 0o600
        assert "extraction/submission-refused.json" in (error.hint or "")

    def test_a_missing_content_location_is_an_error_and_the_next_run_finds_the_job(self, job: ExtractorJob) -> None:
        def answer(_: httpx.Request) -> httpx.Response:
            job.server.tasks[JOB] = task()
            return httpx.Response(202)

        job.server.submit = answer
        assert fails(job, ServiceError).reference == "content-location-missing"
        assert job.run().files == 1
        assert len(job.server.submissions) == 1

    def test_a_stop_during_the_submission_is_remembered(self, job: ExtractorJob) -> None:
        def answer(_: httpx.Request) -> httpx.Response:
            job.server.tasks[JOB] = task()
            raise Stopped("SIGTERM")

        job.server.submit = answer
        with pytest.raises(Stopped):
            job.run()
        job.run()
        assert len(job.server.submissions) == 1

    @pytest.mark.parametrize(
        ("answer", "reference"),
        [
            (httpx.Response(503), "service-busy"),
            (httpx.Response(400, json={"error": "unauthorized_client"}), "oauth-client"),
            (httpx.Response(200, text="no token"), "oauth-issuer"),
        ],
        ids=["busy", "refused", "unreadable"],
    )
    def test_a_token_that_cannot_be_had_means_that_nothing_was_submitted(
        self, job: ExtractorJob, answer: httpx.Response, reference: str
    ) -> None:
        auth = {"oauth_issuer_uri": "https://issuer.example", "oauth_client_id": "c", "oauth_client_secret": "s"}
        job.config = job.config.model_validate(
            job.config.model_dump() | {"services": {"extractor": {"base_url": BASE, "auth": auth}}}
        )
        rest: Callable[[httpx.Request], httpx.Response] = job.server._answer

        def issuer(request: httpx.Request) -> httpx.Response:
            if request.url.host != "issuer.example":
                return rest(request)
            return make_response(answer if request.method == "POST" else httpx.Response(404), request)

        job.server._answer = issuer  # type: ignore[method-assign]
        assert fails(job, SluiceError).reference == reference
        assert job.server.submissions == []
        assert [path.name for path in (job.path / "extraction").iterdir()] == ["failed"]

    @pytest.mark.parametrize(
        ("status", "reference"), [(400, "proxy-refused"), (500, "proxy-unreachable"), (503, "proxy-unreachable")]
    )
    def test_a_proxy_that_makes_no_connection_means_it_too(
        self, job: ExtractorJob, status: int, reference: str
    ) -> None:
        job.server.submit = httpx.ProxyError(f"{status} no")
        assert fails(job, SluiceError).reference == reference
        assert [path.name for path in (job.path / "extraction").iterdir()] == ["failed"]


def test_the_patients_of_the_file_travel_with_the_submission(job: ExtractorJob, tmp_path: Path) -> None:
    job.patients = tmp_path / "patients.txt"
    job.patients.write_text("p1\np2\n")
    job.run()
    parameters = json.loads(job.server.submissions[0].content)["parameter"]
    assert [parameter.get("valueString") for parameter in parameters] == [None, "p1", "p2"]


def test_a_job_keeps_its_own_copy_of_the_patients_for_a_fresh_submission(job: ExtractorJob, tmp_path: Path) -> None:
    job.patients = tmp_path / "patients.txt"
    job.patients.write_text("p1\n")
    job.run()
    copy = job.path / "extraction" / "patients.txt"
    assert copy.read_text() == "p1\n"
    assert copy.stat().st_mode & 0o777 == 0o600
    job.patients.unlink()
    job.server.results[JOB] = httpx.Response(404)
    job.server.locations.append(f"{BASE}/fhir/__status/{OTHER_JOB}")
    job.run()
    first, second = (json.loads(request.content) for request in job.server.submissions)
    assert first == second


def test_patients_of_a_refused_submission_are_read_again(job: ExtractorJob, tmp_path: Path) -> None:
    job.patients = tmp_path / "patients.txt"
    job.patients.write_text("p1\n")
    job.server.submit = httpx.Response(400)
    fails(job, ServiceError)
    job.patients.write_text("p2\n")
    job.server.submit = None
    job.run()
    parameters = json.loads(job.server.submissions[1].content)["parameter"]
    assert [parameter["valueString"] for parameter in parameters[1:]] == ["p2"]


def test_the_file_of_patients_is_not_needed_to_re_attach(job: ExtractorJob, tmp_path: Path) -> None:
    job.patients = tmp_path / "gone.txt"
    job.store = RecordingStore(HANDLE)
    assert job.run().files == 1


def test_a_file_of_patients_that_is_gone_is_an_error_before_anything_is_sent(job: ExtractorJob, tmp_path: Path) -> None:
    job.patients = tmp_path / "gone.txt"
    assert fails(job, InputError).reference == "patients-unreadable"
    assert job.server.seen == []


class TestAnotherQuery:
    """A fresh submission is of the same query, also after a 503 on the submission itself (document 3 §2)."""

    @pytest.mark.parametrize("status", [503, 429, 401])
    def test_an_edited_query_is_not_submitted_after_the_server_was_busy(self, job: ExtractorJob, status: int) -> None:
        job.server.submit = httpx.Response(status)
        fails(job, SluiceError)
        job.server.submit = None
        job.crtdl.write_text(json.dumps(crtdl(display="edited")))
        error = fails(job, InputError)
        assert (error.reference, error.operation) == ("query-changed", "submit")
        assert "the CRTDL" in error.message
        assert len(job.server.submissions) == 1
        job.crtdl.write_text(json.dumps(crtdl(), indent=2))  # put back; its spelling does not matter
        job.run()
        assert len(job.server.submissions) == 2

    def test_other_patients_are_another_query(self, job: ExtractorJob, tmp_path: Path) -> None:
        job.patients = tmp_path / "patients.txt"
        job.patients.write_text("p1\np2\n")
        job.server.submit = httpx.Response(503)
        fails(job, ServiceBusyError)
        job.server.submit = None
        job.patients.write_text("p1\n")
        error = fails(job, InputError)
        assert error.message.startswith("the list of patients changed")
        job.patients.write_text("p2\np1\n")
        job.run()

    def test_a_dead_handle_does_not_let_another_query_in(self, job: ExtractorJob) -> None:
        job.run()
        job.server.results[JOB] = httpx.Response(404)
        job.crtdl.write_text(json.dumps(crtdl(display="edited")))
        assert fails(job, InputError).reference == "query-changed"
        assert len(job.server.submissions) == 1

    @pytest.mark.parametrize("refusal", [400, 413, 422, httpx.ConnectError("CANARY")])
    def test_a_query_that_was_refused_or_never_left_the_house_may_be_mended(
        self, job: ExtractorJob, refusal: Any
    ) -> None:
        job.server.submit = httpx.Response(refusal) if isinstance(refusal, int) else refusal
        fails(job, SluiceError)
        job.server.submit = None
        job.crtdl.write_text(json.dumps(crtdl(display="edited")))
        job.run()
        assert len(job.server.submissions) == 2
