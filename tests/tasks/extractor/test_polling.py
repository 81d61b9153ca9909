"""Every row of the poll table (document 1, "States and transitions"), on a simulated clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.shared.errors import ServiceError, SluiceError, TerminalError
from tasks.shared.step import Handle, StepContext
from tests.peers.extraction import (
    BASE,
    BUNDLE,
    Answer,
    ExtractorJob,
    MockExtraction,
    RecordingStore,
    configuration,
    manifest,
    running,
)
from tests.peers.services import JOB, task

FILE = f"{BASE}/out/batch.ndjson"


def job(tmp_path: Path, *polls: Answer, **extractor: Any) -> ExtractorJob:
    server = MockExtraction(polls=list(polls), files={FILE: BUNDLE})
    return ExtractorJob(tmp_path / "job", server, config=configuration(**extractor))


def polls(run: ExtractorJob) -> int:
    return len(run.server.requests("GET", "__status"))


def fails(run: ExtractorJob, kind: type[SluiceError] = SluiceError) -> SluiceError:
    with pytest.raises(kind) as caught:
        run.run()
    assert "CANARY" not in caught.value.render()
    return caught.value


@pytest.mark.parametrize("status", [202, 102])
def test_202_and_102_mean_running_and_the_interval_doubles_up_to_its_cap(tmp_path: Path, status: int) -> None:
    run = job(
        tmp_path, *[httpx.Response(status)] * 5, manifest(FILE), polling_interval="PT5S", max_polling_interval="PT30S"
    )
    run.run()
    assert run.clock.sleeps[:5] == [5, 10, 20, 30, 30]


def test_a_poll_is_a_single_get_that_accepts_json(tmp_path: Path) -> None:
    run = job(tmp_path, manifest(FILE))
    run.run()
    (poll,) = run.server.requests("GET", "__status")
    assert poll.headers["accept"] == "application/json"
    assert poll.url == f"{BASE}/fhir/__status/{JOB}"


@pytest.mark.slow
def test_202_for_hours_goes_on_because_the_window_is_no_total_cap(tmp_path: Path) -> None:
    run = job(tmp_path, *[running()] * 2000, manifest(FILE), extraction_timeout="PT5M")
    run.run()
    assert run.clock.now - 1000 > 15 * 3600


def test_the_liveness_window_ends_it_when_neither_200_nor_202_came_for_so_long(tmp_path: Path) -> None:
    run = job(tmp_path, running(), httpx.Response(503), extraction_timeout="PT30M")
    error = fails(run, TerminalError)
    assert error.reference == "extraction-timeout"
    assert (error.operation, error.transient) == ("poll", False)
    # The 202 came at second 0, the wait after it took 5.
    assert 1800 < run.clock.now - 1000 < 1802
    assert len(run.server.submissions) == 1
    assert run.store.load() == Handle(f"{BASE}/fhir/__status/{JOB}", JOB)


def test_every_202_resets_the_window(tmp_path: Path) -> None:
    storm: list[Answer] = [httpx.Response(503)] * 3
    run = job(tmp_path, *[*storm, running()] * 20, manifest(FILE), extraction_timeout="PT1M")
    run.run()
    assert run.clock.now - 1000 > 600


@pytest.mark.parametrize("status", [408, 429, 501, 502, 503, 504, 599])
def test_408_429_and_5xx_other_than_500_are_asked_again_with_backoff(tmp_path: Path, status: int) -> None:
    run = job(tmp_path, *[httpx.Response(status, text="CANARY")] * 4, manifest(FILE))
    run.run()
    assert run.clock.sleeps[:4] == [5, 10, 20, 30]


def test_retry_after_lengthens_the_wait(tmp_path: Path) -> None:
    run = job(tmp_path, httpx.Response(503, headers={"Retry-After": "77"}), manifest(FILE))
    run.run()
    assert run.clock.sleeps[0] == 77


def test_a_wait_never_reaches_beyond_the_liveness_window(tmp_path: Path) -> None:
    polite = httpx.Response(503, headers={"Retry-After": "3600"})
    run = job(tmp_path, polite, manifest(FILE), extraction_timeout="PT1M")
    run.run()
    assert run.clock.sleeps[0] < 61


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("CANARY"),
        httpx.ConnectTimeout("CANARY"),
        httpx.ReadTimeout("CANARY"),
        httpx.ReadError("CANARY"),
        httpx.RemoteProtocolError("CANARY"),
    ],
)
def test_a_network_failure_of_the_poll_is_swallowed(tmp_path: Path, failure: Exception) -> None:
    run = job(tmp_path, running(), failure, failure, running(), manifest(FILE))
    run.run()
    assert polls(run) == 5
    assert len(run.server.submissions) == 1


def test_the_log_has_a_line_for_each_state_and_not_for_each_poll(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    busy, away = httpx.Response(503), httpx.ConnectError("CANARY")
    run = job(tmp_path, running(), *[busy] * 20, *[away] * 20, *[running()] * 3, *[busy] * 5, manifest(FILE))
    run.server.tasks[JOB] = task()
    caplog.set_level("INFO", "sluice")
    run.run()
    told = [record.message for record in caplog.records if record.name == "sluice"]
    about = [text for text in told if "asking again" in text or "answers again" in text or "RUNNING" in text]
    assert about == [
        f"extraction job {JOB}: RUNNING_PROCESS_BATCH",
        "extractor: the server answered 503, asking again",
        "extractor: no answer (connect-failed), asking again",
        "extractor: the server answers again",
        "extractor: the server answered 503, asking again",
    ]


def test_network_failures_alone_end_with_the_liveness_window(tmp_path: Path) -> None:
    run = job(tmp_path, httpx.ConnectError("CANARY"), extraction_timeout="PT10M")
    assert fails(run).reference == "extraction-timeout"


def test_500_is_a_terminal_failure_of_the_job(tmp_path: Path) -> None:
    outcome = {
        "resourceType": "OperationOutcome",
        "issue": [{"severity": "fatal", "code": "exception", "diagnostics": "CANARY"}],
    }
    run = job(tmp_path, running(), httpx.Response(500, json=outcome))
    error = fails(run, ServiceError)
    assert (error.reference, error.operation, error.status, error.transient) == (
        "extraction-failed",
        "poll",
        500,
        False,
    )
    assert "exception" in error.message
    assert polls(run) == 2


OUTCOME = {
    "resourceType": "OperationOutcome",
    "issue": [
        {"severity": "fatal", "code": "exception", "diagnostics": "CANARY-1"},
        {"severity": "error", "code": "CANARY-2"},
        {"severity": "information", "code": "informational", "diagnostics": "CANARY-3"},
    ],
}
ISSUES = [
    {"severity": "ERROR", "msg": "CANARY-4", "diagnostics": "hidden-key"},
    {"severity": "WARNING", "msg": "x"},
]


class TestReasonOfAFailure:
    def test_codes_and_counts_are_in_the_error_and_the_texts_in_a_file(self, tmp_path: Path) -> None:
        run = job(tmp_path, running(), httpx.Response(500, json=OUTCOME), auth={"api_key": "hidden-key"})
        extension = {"url": "https://x/torch-job-issues", "valueObject": ISSUES}
        run.server.tasks[JOB] = task(status="FAILED", extension=[extension])
        error = fails(run, ServiceError)
        assert "1 fatal (exception), 1 error; its Task reports 1 error" in error.message
        assert "extraction/failed.json" in (error.hint or "")
        kept = run.path / "extraction/failed.json"
        assert kept.stat().st_mode & 0o777 == 0o600
        document = json.loads(kept.read_bytes())
        assert document["answer"] == OUTCOME
        assert [issue["severity"] for issue in document["task_issues"]] == ["ERROR", "WARNING"]
        assert b"CANARY-4" in kept.read_bytes()
        assert b"hidden-key" not in kept.read_bytes()

    def test_a_server_without_task_and_outcome_fails_the_same_way(self, tmp_path: Path) -> None:
        run = job(tmp_path, httpx.Response(500, html="<h1>CANARY</h1>"))
        error = fails(run, ServiceError)
        assert error.message.endswith("the extraction job has failed")
        assert json.loads((run.path / "extraction/failed.json").read_bytes())["text"] == "<h1>CANARY</h1>"

    def test_the_reason_of_another_run_does_not_stay(self, tmp_path: Path) -> None:
        run = job(tmp_path, httpx.Response(500, json=OUTCOME))
        fails(run, ServiceError)
        run.server.polls = [httpx.Response(404), manifest(FILE)]
        run.run()
        assert not (run.path / "extraction/failed.json").exists()


@pytest.mark.parametrize("status", [400, 401, 403, 405, 409, 418, 422])
def test_other_4xx_are_terminal(tmp_path: Path, status: int) -> None:
    error = fails(job(tmp_path, httpx.Response(status, text="CANARY")), ServiceError)
    assert (error.operation, error.status, error.transient) == ("poll", status, False)


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_to_another_host_is_terminal(tmp_path: Path, status: int) -> None:
    error = fails(job(tmp_path, httpx.Response(status, headers={"Location": "https://login.example/?next=CANARY"})))
    assert isinstance(error, ServiceError)
    assert error.reference == "redirect-cross-origin"


def test_progress_comes_from_the_task_with_the_fraction_of_the_contract(tmp_path: Path) -> None:
    def active(stage: str) -> dict[str, object]:
        inner = [{"url": "batchId", "valueString": "x"}, {"url": "stage", "valueString": stage}]
        return {"url": "activeBatch", "extension": inner}

    parts = [
        {"url": "cohortSize", "valueInteger": 4200},
        {"url": "batchSize", "valueInteger": 500},
        {"url": "batchesTotal", "valueInteger": 10},
        {"url": "batchesCompleted", "valueInteger": 3},
        active("DIRECT_LOAD"),
        active("COPY_REDACT"),
    ]
    run = job(tmp_path, running("25%"), manifest(FILE))
    extension = {"url": "https://example.org/x/torch-job-progress", "extension": parts}
    run.server.tasks[JOB] = task(extension=[extension])
    seen = watch(run)
    run.run()
    assert (None, (3 + 1 / 5 + 4 / 5) / 10) in [(None, fraction) for _, fraction in seen]
    message = next(text for text, fraction in seen if fraction)
    assert message == "extracting: 3/10 batches, cohort of 4,200 patients, 1 in DIRECT_LOAD, 1 in COPY_REDACT"


def watch(run: ExtractorJob) -> list[tuple[str | None, float | None]]:
    """Return a list that collects the progress text and fraction at every sleep."""
    seen: list[tuple[str | None, float | None]] = []
    sleep = run.clock.sleep

    def remember(seconds: float) -> None:
        snapshot = run.context.meter.snapshot()
        seen.append((snapshot.message, snapshot.fraction))
        sleep(seconds)

    run.clock.sleep = remember  # type: ignore[method-assign]
    return seen


def test_without_a_task_progress_comes_from_the_diagnostics(tmp_path: Path) -> None:
    text = f"Job: {JOB}\nStatus: RUNNING_PROCESS_BATCH\nProgress: 40%\nCohort size: 1234"
    run = job(tmp_path, running(text), running(text), manifest(FILE))
    seen = watch(run)
    run.run()
    assert seen[0] == ("extracting: RUNNING_PROCESS_BATCH, 40%, cohort of 1,234 patients", 0.4)


class TestNothingMoves:
    """A 202 alone resets the liveness window, so only the person who waits can notice (document 3 §2)."""

    RESUME = f"sluice extraction resume CONFIG {JOB}"

    def test_a_paused_job_is_shown_with_the_command_that_resumes_it(self, tmp_path: Path) -> None:
        run = job(tmp_path, *[running("Status: PAUSED\nProgress: 40%")] * 3, running(), manifest(FILE))
        run.server.tasks[JOB] = task(status="PAUSED")
        seen = watch(run)
        warned = warnings_of(run)
        run.run()
        assert seen[0] == (f"extracting: PAUSED on the server (PAUSED, 40%); resume it with {self.RESUME}", 0.4)
        assert [text for _, text in warned] == [f"the extraction is {seen[0][0].removeprefix('extracting: ')}"]  # type: ignore[union-attr]
        assert run.context.meter.snapshot().eta_seconds is None

    @pytest.mark.parametrize("answer", [running("Status: PAUSED"), running("", **{"X-Progress": "Paused"})])
    def test_the_202_alone_says_so_where_there_is_no_task(self, tmp_path: Path, answer: httpx.Response) -> None:
        run = job(tmp_path, answer, manifest(FILE))
        seen = watch(run)
        run.run()
        assert self.RESUME in str(seen[0][0])

    def test_after_15_minutes_without_a_change_one_warning_then_one_an_hour(self, tmp_path: Path) -> None:
        run = job(tmp_path, *[running()] * 400, manifest(FILE), max_polling_interval="PT30S")
        run.server.tasks[JOB] = task()
        warned = warnings_of(run)
        run.run()
        assert [round((at - 1000) / 60) for at, _ in warned] == [15, 75, 135, 195]
        assert warned[0][1].startswith(f"nothing has changed at extraction job {JOB} for 15 min")
        assert "RUNNING_PROCESS_BATCH" in warned[0][1]

    @pytest.mark.parametrize(
        "change", [{"meta": {"versionId": "4"}}, {"businessStatus": {"coding": [{"code": "PAUSED"}]}}]
    )
    def test_a_change_of_state_or_version_begins_the_quarter_of_an_hour_anew(
        self, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        run = job(tmp_path, *[running()] * 40, manifest(FILE))
        run.server.tasks[JOB] = task()
        warned = warnings_of(run)
        sleep = run.clock.sleep

        def change_after_ten_minutes(seconds: float) -> None:
            sleep(seconds)
            if run.clock.now > 1600:
                run.server.tasks[JOB].update(change)

        run.clock.sleep = change_after_ten_minutes  # type: ignore[method-assign]
        run.run()
        assert [at for at, text in warned if text.startswith("nothing") and at < 1000 + 1500] == []

    def test_a_task_that_could_not_be_read_for_a_moment_is_no_change(self, tmp_path: Path) -> None:
        run = job(tmp_path, *[running()] * 40, manifest(FILE))
        run.server.tasks[JOB] = task()
        warned = warnings_of(run)
        sleep = run.clock.sleep

        def blink(seconds: float) -> None:
            sleep(seconds)
            run.server.tasks[JOB] = httpx.Response(503) if len(run.clock.sleeps) % 3 == 0 else task()

        run.clock.sleep = blink  # type: ignore[method-assign]
        run.run()
        assert len(warned) == 1


def warnings_of(run: ExtractorJob) -> list[tuple[float, str]]:
    """Return a list that collects the step's warnings while it runs, with their times."""
    warned: list[tuple[float, str]] = []
    new_context = run.new_context

    def watched() -> StepContext:
        context = new_context()
        context.meter.warn = lambda text: warned.append((run.clock.now, text))  # type: ignore[method-assign]
        return context

    run.new_context = watched  # type: ignore[method-assign]
    return warned


@pytest.mark.parametrize("answer", [httpx.Response(404), httpx.Response(200, html="CANARY"), httpx.Response(403)])
def test_an_answer_that_is_no_task_is_not_asked_for_again_in_this_run(tmp_path: Path, answer: httpx.Response) -> None:
    run = job(tmp_path, *[running()] * 4, manifest(FILE))
    run.server.tasks[JOB] = answer
    run.run()
    # One while polling, one for the consent audit files at the end.
    assert len(run.server.requests("GET", f"/fhir/Task/{JOB}")) == 2


def test_a_task_call_that_fails_never_disturbs_the_poll(tmp_path: Path) -> None:
    run = job(tmp_path, *[running()] * 3, manifest(FILE))
    run.server.tasks[JOB] = httpx.Response(503)
    assert run.run().files == 1
    assert polls(run) == 4


class TestDeadHandle:
    @pytest.mark.parametrize("status", [404, 410])
    def test_404_and_410_clear_the_handle_and_submit_afresh_once(self, tmp_path: Path, status: int) -> None:
        run = job(tmp_path, running(), httpx.Response(status), running(), manifest(FILE))
        second = f"{BASE}/fhir/__status/22222222-2222-4222-8222-222222222222"
        run.server.locations.append(second)
        result = run.run()
        assert len(run.server.submissions) == 2
        assert [handle.job_id[:1] if handle else None for handle in run.store.saved] == ["1", None, "2"]
        assert run.store.load() == Handle(second, second.rpartition("/")[2])
        assert any("submitted afresh" in warning for warning in result.warnings)

    def test_the_task_is_read_once_before_the_fresh_submission(self, tmp_path: Path) -> None:
        run = job(tmp_path, httpx.Response(404), manifest(FILE))
        run.run()
        order = [r.url.path for r in run.server.seen if r.url.path.endswith((JOB, "$extract-data"))]
        assert order[:4] == ["/fhir/$extract-data", f"/fhir/__status/{JOB}", f"/fhir/Task/{JOB}", "/fhir/$extract-data"]

    @pytest.mark.parametrize("status", [404, 410])
    def test_a_job_that_a_person_cancelled_is_a_terminal_error_that_says_so(self, tmp_path: Path, status: int) -> None:
        run = job(tmp_path, running(), httpx.Response(status))
        run.server.tasks[JOB] = task(status="CANCELLED")
        run.server.tasks[JOB]["status"] = "cancelled"
        error = fails(run, TerminalError)
        assert error.reference == "extraction-cancelled"
        assert len(run.server.submissions) == 1

    @pytest.mark.parametrize("business", ["DELETED", "ARCHIVED"])
    def test_the_business_status_decides_whether_a_job_was_cancelled(self, tmp_path: Path, business: str) -> None:
        """A deployed server's Task of a job that was deleted reads cancelled."""
        run = job(tmp_path, httpx.Response(410), manifest(FILE))
        run.server.tasks[JOB] = task(status=business) | {"status": "cancelled"}
        run.run()
        assert len(run.server.submissions) == 2

    def test_without_a_business_status_the_status_of_the_task_decides(self, tmp_path: Path) -> None:
        run = job(tmp_path, httpx.Response(410))
        run.server.tasks[JOB] = task(businessStatus={}) | {"status": "cancelled"}
        assert fails(run, TerminalError).reference == "extraction-cancelled"

    def test_a_second_dead_handle_in_one_run_is_the_named_failure(self, tmp_path: Path) -> None:
        run = job(tmp_path, httpx.Response(410))
        error = fails(run, ServiceError)
        assert (error.reference, error.status, error.transient) == ("dead-handle", 410, False)
        assert len(run.server.submissions) == 2
        assert run.store.load() is None

    def test_a_stored_handle_that_is_dead_is_submitted_afresh(self, tmp_path: Path) -> None:
        run = job(tmp_path, httpx.Response(404), manifest(FILE))
        run.store = RecordingStore(Handle(f"{BASE}/fhir/__status/old", "old"))
        run.run()
        assert len(run.server.submissions) == 1


def test_a_stored_handle_is_re_attached_to_and_nothing_is_submitted(tmp_path: Path) -> None:
    run = job(tmp_path, running(), manifest(FILE))
    run.store = RecordingStore(Handle(f"{BASE}/fhir/__status/{JOB}", JOB))
    run.run()
    assert run.server.submissions == []
    assert polls(run) == 2


def test_the_handle_is_saved_before_the_first_poll(tmp_path: Path) -> None:
    run = job(tmp_path)
    known: list[Handle | None] = []

    def answer(_: httpx.Request) -> httpx.Response:
        known.append(run.store.load())
        return given_manifest()

    def given_manifest() -> httpx.Response:
        return manifest(FILE)

    run.server.polls = [answer]
    run.run()
    assert known == [Handle(f"{BASE}/fhir/__status/{JOB}", JOB)]


def test_a_token_that_cannot_be_renewed_for_the_moment_does_not_end_the_wait(tmp_path: Path) -> None:
    auth = {"oauth_issuer_uri": "https://issuer.example", "oauth_client_id": "sluice", "oauth_client_secret": "hidden"}
    run = job(tmp_path, running(), manifest(FILE), auth=auth)
    tokens = 0
    answer = run.server.__call__

    def issuer(request: httpx.Request) -> httpx.Response:
        nonlocal tokens
        if request.url.host != "issuer.example":
            return answer(request)
        if request.method == "GET":
            return httpx.Response(
                200, json={"issuer": "https://issuer.example", "token_endpoint": "https://issuer.example/token"}
            )
        tokens += 1
        if tokens == 2:
            raise httpx.ConnectError("CANARY")
        return httpx.Response(200, json={"access_token": f"t{tokens}", "token_type": "Bearer"})

    from tasks.extractor.extraction import run as step
    from tests.peers.extraction import http_client

    step(
        run.new_context(), client=lambda config, _: http_client(issuer, config), clock=run.clock, sleep=run.clock.sleep
    )
    assert len(run.server.submissions) == 1
