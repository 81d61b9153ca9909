"""The calls to the extraction server as they travel (document 2)."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tasks.extractor.client import PAUSE, ExtractionClient
from tasks.extractor.task import Priority
from tasks.shared.errors import InputError, ServiceBusyError, ServiceError, SluiceError
from tests.peers.extraction import BASE, OTHER_JOB, configuration, crtdl, extraction_client, http_client
from tests.peers.services import JOB, task

STATUS = f"{BASE}/fhir/__status/{JOB}"


class ScriptedAnswers:
    """Gives one answer after the other, the last one for ever."""

    def __init__(self, *answers: httpx.Response | Callable[[httpx.Request], httpx.Response]) -> None:
        self.answers = list(answers)
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, httpx.Response) else answer(request)


def accepted(location: str = STATUS, status: int = 202) -> httpx.Response:
    return httpx.Response(status, headers={"Content-Location": location} if location else {})


@pytest.fixture
def query(tmp_path: Path) -> Path:
    path = tmp_path / "query.json"
    path.write_bytes(json.dumps(crtdl(number=1)).encode() + b"\n ")
    return path


def fails(kind: type[SluiceError], call: Callable[[], object]) -> SluiceError:
    with pytest.raises(kind) as caught:
        call()
    assert "CANARY" not in caught.value.render()
    return caught.value


class TestSubmission:
    def test_the_crtdl_travels_in_base64_byte_for_byte_in_a_parameters_resource(self, query: Path) -> None:
        server = ScriptedAnswers(accepted())
        assert extraction_client(server).submit(query) == STATUS
        (request,) = server.seen
        assert (request.method, str(request.url)) == ("POST", f"{BASE}/fhir/$extract-data")
        assert request.headers["content-type"] == "application/fhir+json"
        assert request.headers["accept"] == "application/fhir+json"
        body = json.loads(request.content)
        assert body["resourceType"] == "Parameters"
        (parameter,) = body["parameter"]
        assert parameter["name"] == "crtdl"
        assert base64.b64decode(parameter["valueBase64Binary"]) == query.read_bytes()

    def test_a_crtdl_in_memory_is_sent_as_application_json(self) -> None:
        server = ScriptedAnswers(accepted())
        extraction_client(server).submit(json.dumps(crtdl()).encode())
        assert server.seen[0].headers["content-type"] == "application/json"

    def test_patients_are_repeated_parameters(self, query: Path) -> None:
        server = ScriptedAnswers(accepted())
        extraction_client(server).submit(query, ["p1", "p2"])
        assert json.loads(server.seen[0].content)["parameter"][1:] == [
            {"name": "patient", "valueString": "p1"},
            {"name": "patient", "valueString": "p2"},
        ]

    @pytest.mark.parametrize("status", [200, 201, 202, 204])
    def test_any_2xx_with_a_content_location_is_success(self, query: Path, status: int) -> None:
        assert extraction_client(ScriptedAnswers(accepted(status=status))).submit(query) == STATUS

    @pytest.mark.parametrize(
        ("location", "base", "absolute"),
        [
            (f"/fhir/__status/{JOB}", BASE, STATUS),
            (f"/fhir/__status/{JOB}", f"{BASE}/torch", f"{BASE}/torch/fhir/__status/{JOB}"),
            (f"//inner.example/fhir/__status/{JOB}", BASE, f"https://inner.example/fhir/__status/{JOB}"),
        ],
    )
    def test_a_relative_content_location_is_made_absolute(
        self, query: Path, location: str, base: str, absolute: str
    ) -> None:
        assert extraction_client(ScriptedAnswers(accepted(location)), base).submit(query) == absolute

    def test_one_content_location_said_twice_is_one(self, query: Path) -> None:
        twice = httpx.Response(202, headers=[("Content-Location", STATUS), ("Content-Location", f" {STATUS} ")])
        assert extraction_client(ScriptedAnswers(twice)).submit(query) == STATUS

    @pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
    def test_it_is_never_retried(self, query: Path, status: int) -> None:
        server = ScriptedAnswers(httpx.Response(status, text="CANARY"))
        error = fails(ServiceBusyError, lambda: extraction_client(server).submit(query))
        assert (error.operation, error.status, error.transient) == ("submit", status, True)
        assert len(server.seen) == 1

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 500])
    def test_a_refusal_is_terminal(self, query: Path, status: int) -> None:
        server = ScriptedAnswers(httpx.Response(status, text="CANARY"))
        error = fails(ServiceError, lambda: extraction_client(server).submit(query))
        assert (error.operation, error.status) == ("submit", status)
        assert len(server.seen) == 1

    @pytest.mark.parametrize("content", [b"", b"no json", b"{", b"\xff"])
    def test_a_file_that_is_no_json_is_not_sent(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "query.json"
        path.write_bytes(content)
        server = ScriptedAnswers(accepted())
        assert fails(InputError, lambda: extraction_client(server).submit(path)).reference == "crtdl-not-json"
        assert server.seen == []

    def test_the_configured_auth_is_sent(self, query: Path) -> None:
        server = ScriptedAnswers(accepted())
        config = configuration(auth={"username": "u", "password": "p", "api_key": "k"})
        ExtractionClient(http_client(server, config), BASE).submit(query)
        assert server.seen[0].headers["authorization"].startswith("Basic ")
        assert server.seen[0].headers["x-api-key"] == "k"


def test_the_status_elsewhere_gets_no_credentials() -> None:
    server = ScriptedAnswers(httpx.Response(202))
    config = configuration(auth={"username": "u", "password": "p"})
    client = ExtractionClient(http_client(server, config), BASE)
    client.poll(STATUS)
    client.poll("https://elsewhere.example/fhir/__status/x")
    assert "authorization" in server.seen[0].headers
    assert "authorization" not in server.seen[1].headers


class TestPreview:
    def test_the_query_is_posted_as_plain_json_and_the_list_gives_the_ids(self) -> None:
        entries = [{"item": {"reference": f"Patient/p{n}"}} for n in range(3)]
        server = ScriptedAnswers(
            httpx.Response(200, json={"resourceType": "List", "status": "current", "entry": entries})
        )
        query = json.dumps(crtdl()).encode()
        assert extraction_client(server).evaluate_cohort(query) == ("p0", "p1", "p2")
        (request,) = server.seen
        assert str(request.url) == f"{BASE}/fhir/$evaluate-cohort"
        assert request.headers["content-type"] == "application/json"
        assert request.content == query

    def test_a_list_without_entries_is_an_empty_cohort(self) -> None:
        assert (
            extraction_client(ScriptedAnswers(httpx.Response(200, json={"resourceType": "List"}))).evaluate_cohort(
                b"{}"
            )
            == ()
        )

    def test_a_transient_failure_is_repeated_because_nothing_is_created(self) -> None:
        server = ScriptedAnswers(httpx.Response(503), httpx.Response(200, json={"resourceType": "List"}))
        assert extraction_client(server).evaluate_cohort(b"{}") == ()


class TestTaskApi:
    def test_search_takes_ids_and_states_and_strict_handling(self) -> None:
        server = ScriptedAnswers(httpx.Response(200, json={"resourceType": "Bundle", "entry": [{"resource": task()}]}))
        client = extraction_client(server)
        (found,) = client.tasks([JOB, "b"], ["PAUSED", "FAILED"], strict=True)
        client.tasks()
        assert found.id == JOB
        assert str(server.seen[0].url) == f"{BASE}/fhir/Task?_id={JOB},b&status=PAUSED,FAILED"
        assert server.seen[0].headers["prefer"] == "handling=strict"
        assert str(server.seen[1].url) == f"{BASE}/fhir/Task"
        assert "prefer" not in server.seen[1].headers

    @pytest.mark.parametrize("operation", ["pause", "resume", "cancel"])
    def test_operations_are_posted_without_a_body_and_give_the_updated_task(self, operation: str) -> None:
        server = ScriptedAnswers(httpx.Response(200, json=task(status="PAUSED")))
        assert extraction_client(server).change(JOB, operation).status == "PAUSED"
        (request,) = server.seen
        assert (request.method, str(request.url)) == ("POST", f"{BASE}/fhir/Task/{JOB}/${operation}")
        assert request.content == b""

    @pytest.mark.parametrize("status", [409, 412])
    def test_a_state_that_forbids_the_request_is_an_error_with_its_status_and_no_retry(self, status: int) -> None:
        server = ScriptedAnswers(httpx.Response(status, text="CANARY"), httpx.Response(200, json=task(status="PAUSED")))
        assert fails(ServiceError, lambda: extraction_client(server).change(JOB, "pause")).status == status
        assert [request.method for request in server.seen] == ["POST", "GET"]

    @pytest.mark.parametrize("status", [409, 412])
    @pytest.mark.parametrize(
        ("operation", "state"), [("pause", "RUNNING_GET_COHORT"), ("resume", "PAUSED"), ("cancel", "PENDING")]
    )
    def test_a_stale_version_is_read_again_and_the_operation_repeated(
        self, operation: str, state: str, status: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = ScriptedAnswers(
            httpx.Response(status), httpx.Response(200, json=task(status=state)), httpx.Response(200, json=task())
        )
        pauses: list[float] = []
        monkeypatch.setattr("time.sleep", pauses.append)
        extraction_client(server).change(JOB, operation)
        assert [request.method for request in server.seen] == ["POST", "GET", "POST"]
        assert pauses == [PAUSE]

    @pytest.mark.parametrize("status", [429, 503])
    def test_operations_and_delete_are_repeated_after_429_and_503(self, status: int) -> None:
        for call in (lambda client: client.change(JOB, "pause"), lambda client: client.delete(JOB)):
            server = ScriptedAnswers(httpx.Response(status), httpx.Response(200, json=task(status="PAUSED")))
            call(extraction_client(server))
            assert len(server.seen) == 2

    @pytest.mark.parametrize("answer", [httpx.Response(502), httpx.Response(504), httpx.ReadTimeout("CANARY")])
    def test_what_may_have_been_done_is_not_asked_for_twice(self, answer: httpx.Response | Exception) -> None:
        def once(_: httpx.Request) -> httpx.Response:
            if isinstance(answer, Exception):
                raise answer
            return answer

        server = ScriptedAnswers(once)
        client = extraction_client(server)
        for call in (lambda: client.change(JOB, "cancel"), lambda: client.delete(JOB)):
            assert fails(SluiceError, call).transient
        assert [request.method for request in server.seen] == ["POST", "DELETE"]

    def test_a_search_for_ids_that_gives_other_jobs_is_a_wrong_answer(self) -> None:
        found = {"resourceType": "Bundle", "entry": [{"resource": task()}, {"resource": task(OTHER_JOB)}]}
        client = extraction_client(ScriptedAnswers(httpx.Response(200, json=found)))
        assert fails(ServiceError, lambda: client.tasks([JOB])).reference == "extractor-answer"
        assert len(client.tasks([JOB.upper(), OTHER_JOB])) == len(client.tasks()) == 2

    def test_delete(self) -> None:
        server = ScriptedAnswers(httpx.Response(204))
        extraction_client(server).delete(JOB)
        assert (server.seen[0].method, str(server.seen[0].url)) == ("DELETE", f"{BASE}/fhir/Task/{JOB}")

    def test_prioritize_sends_the_weak_etag_of_the_current_version(self) -> None:
        server = ScriptedAnswers(httpx.Response(200, json=task()), httpx.Response(200, json=task(priority="asap")))
        assert extraction_client(server).prioritize(JOB, Priority.HIGH).priority is Priority.HIGH
        request = server.seen[1]
        assert request.method == "PUT"
        assert request.headers["if-match"] == 'W/"3"'
        assert request.headers["content-type"] == "application/fhir+json"
        assert json.loads(request.content) == {
            "resourceType": "Task", "id": JOB, "status": "in-progress", "intent": "order", "priority": "asap",
        }  # fmt: skip

    @pytest.mark.parametrize("status", [409, 412])
    def test_prioritize_reads_a_stale_version_again_and_repeats(
        self, status: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moved = task(meta={"versionId": "4"})
        server = ScriptedAnswers(
            httpx.Response(200, json=task()),
            httpx.Response(status),
            httpx.Response(200, json=moved),
            httpx.Response(200, json=task(priority="asap")),
        )
        pauses: list[float] = []
        monkeypatch.setattr("time.sleep", pauses.append)
        extraction_client(server).prioritize(JOB, Priority.HIGH)
        assert [r.headers["if-match"] for r in server.seen if r.method == "PUT"] == ['W/"3"', 'W/"4"']
        assert pauses == [PAUSE]

    @pytest.mark.parametrize("status", [409, 412])
    def test_prioritize_gives_up_when_the_version_moves_on_ten_times(
        self, status: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tasks.extractor.client.PAUSE", 0)

        def answer(request: httpx.Request) -> httpx.Response:
            return httpx.Response(status) if request.method == "PUT" else httpx.Response(200, json=task())

        server = ScriptedAnswers(answer)
        error = fails(ServiceError, lambda: extraction_client(server).prioritize(JOB, Priority.HIGH))
        assert error.status == status
        assert len([r for r in server.seen if r.method == "PUT"]) == 10

    def test_a_priority_that_is_right_already_is_not_written(self) -> None:
        server = ScriptedAnswers(httpx.Response(200, json=task()))
        extraction_client(server).prioritize(JOB, Priority.NORMAL)
        assert [request.method for request in server.seen] == ["GET"]

    @pytest.mark.parametrize("body", [b"", b"<html>", b"{}"])
    def test_the_task_is_read_again_when_the_put_answers_something_else(self, body: bytes) -> None:
        server = ScriptedAnswers(
            httpx.Response(200, json=task()),
            httpx.Response(200, content=body),
            httpx.Response(200, json=task(priority="asap")),
        )
        assert extraction_client(server).prioritize(JOB, Priority.HIGH).priority is Priority.HIGH

    def test_428_is_an_error_with_its_status(self) -> None:
        server = ScriptedAnswers(httpx.Response(200, json=task()), httpx.Response(428))
        assert fails(ServiceError, lambda: extraction_client(server).prioritize(JOB, Priority.HIGH)).status == 428

    def test_ids_cannot_lead_elsewhere(self) -> None:
        server = ScriptedAnswers(httpx.Response(200, json=task("../../admin?x=1")))
        extraction_client(server).task("../../admin?x=1")
        assert str(server.seen[0].url) == f"{BASE}/fhir/Task/..%2F..%2Fadmin%3Fx%3D1"
