"""The ``extraction`` commands over real HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.run import run
from tests.peers.extraction import PatientExtraction, extraction_server, project
from tests.peers.server import Reply, SeenRequest, closed_port

UNKNOWN = "99999999-9999-4999-8999-999999999999"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PatientExtraction]:
    monkeypatch.chdir(tmp_path)
    with extraction_server(PatientExtraction()) as running:
        project(tmp_path, running.url)
        yield running


@pytest.fixture
def job(server: PatientExtraction) -> str:
    server.submit()
    return next(iter(server.tasks))


def state(server: PatientExtraction, job: str) -> str:
    return str(server.tasks[job]["businessStatus"]["coding"][0]["code"])


class TestExtractionPreview:
    def test_it_prints_the_size_of_the_cohort_and_no_id(self, server: PatientExtraction, capsys) -> None:
        assert run(["extraction", "preview", "config.yaml", "query.json"]) == 0
        assert capsys.readouterr().out == "3 patients\n"
        assert server.seen[-1].body == Path("query.json").read_bytes()
        assert server.seen[-1].headers["content-type"] == "application/json"

    @pytest.mark.slow
    def test_while_the_server_takes_long_it_says_what_it_does(
        self, server: PatientExtraction, capsys, monkeypatch
    ) -> None:
        late = "tasks.extractor.server.ExtractionServer.evaluate_cohort"
        monkeypatch.setattr(late, lambda *_: time.sleep(0.7) or ["p"])
        assert run(["extraction", "preview", "config.yaml", "query.json"]) == 0
        assert capsys.readouterr().err == "asking the extraction server\n"

    def test_ids_are_written_as_patients_reads_them_for_this_user_only(self, server: PatientExtraction, capsys) -> None:
        assert run(["extraction", "preview", "config.yaml", "query.json", "--ids", "ids.txt"]) == 0
        assert capsys.readouterr().out == "3 patients\nids: ids.txt\n"
        assert Path("ids.txt").read_text() == "p0\np1\np2\n"
        assert Path("ids.txt").stat().st_mode & 0o777 == 0o600

    def test_ids_never_replace_a_link(self, server: PatientExtraction, capsys) -> None:
        Path("link").symlink_to("old.txt")
        assert run(["extraction", "preview", "config.yaml", "query.json", "--ids", "link"]) == 2
        assert "error[file-unwritable]" in capsys.readouterr().err
        assert server.seen == []

    @pytest.mark.parametrize("content", ["no json", "[]", '{"resourceType": "Parameters"}'])
    def test_anything_else_is_an_error_of_the_input(self, server: PatientExtraction, content: str, capsys) -> None:
        Path("other.json").write_text(content)
        assert run(["extraction", "preview", "config.yaml", "other.json"]) == 2
        assert "error[crtdl-" in capsys.readouterr().err
        assert server.seen == []


class TestList:
    def test_it_lists_the_jobs(self, server: PatientExtraction, job: str, capsys) -> None:
        assert run(["extraction", "list", "config.yaml"]) == 0
        head, line = capsys.readouterr().out.splitlines()
        assert head.split() == ["EXTRACTION", "STATE", "PRIORITY", "AUTHORED", "PROGRESS"]
        assert line.split() == [job, "RUNNING_PROCESS_BATCH", "normal"]

    def test_given_ids_travel(self, server: PatientExtraction, job: str) -> None:
        assert run(["extraction", "list", "config.yaml", job, UNKNOWN]) == 0
        assert server.seen[-1].target == f"/fhir/Task?_id={job},{UNKNOWN}"


def test_show_tells_what_the_task_says(server: PatientExtraction, job: str, capsys) -> None:
    parts = [{"url": "batchesTotal", "valueInteger": 4}, {"url": "batchesCompleted", "valueInteger": 1}]
    server.tasks[job]["extension"] = [{"url": "https://x/extractor-job-progress", "extension": parts}]
    server.tasks[job]["executionPeriod"] = {"start": "2026-01-01T10:00:00Z", "end": "2026-01-01T10:02:05Z"}
    assert run(["extraction", "show", "config.yaml", job]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"extraction {job}\n  state                RUNNING_PROCESS_BATCH (in-progress)\n")
    assert "  progress             25%, 1/4 batches\n" in out
    assert "  took                 2 min 5 s\n" in out


@pytest.mark.parametrize(
    ("command", "after"), [("pause", "PAUSED"), ("resume", "RUNNING_PROCESS_BATCH"), ("cancel", "CANCELLED")]
)
def test_operations_change_the_job_and_print_it(
    server: PatientExtraction, job: str, command: str, after: str, capsys
) -> None:
    assert run(["extraction", command, "config.yaml", job]) == 0
    assert capsys.readouterr().out.startswith(f"extraction {job}\n  state                {after} (")
    assert state(server, job) == after


@pytest.mark.parametrize(
    ("command", "why"), [("pause", "running"), ("resume", "paused"), ("cancel", "completed, failed or cancelled")]
)
def test_409_is_explained_with_the_state_of_the_job(
    server: PatientExtraction, job: str, command: str, why: str, capsys
) -> None:
    current = "COMPLETED"
    server.tasks[job]["businessStatus"]["coding"][0]["code"] = current
    server.override = lambda seen: Reply(409, b"CANARY") if seen.method == "POST" else None
    assert run(["extraction", command, "config.yaml", job]) == 1
    error = capsys.readouterr().err
    assert f"error[extraction-state]: {command} is not allowed in the job's state: {current}" in error
    assert why in error
    assert "CANARY" not in error
    assert [seen.method for seen in server.seen].count("POST") == 1  # the state does not allow it: not repeated


def test_delete_removes_the_job(server: PatientExtraction, job: str, capsys) -> None:
    assert run(["extraction", "delete", "config.yaml", job]) == 0
    assert capsys.readouterr().out == f"{job} is deleted\n"
    assert server.tasks == {}


class TestPrioritize:
    def test_high_is_the_default_and_normal_takes_it_back(self, server: PatientExtraction, job: str, capsys) -> None:
        version = server.tasks[job]["meta"]["versionId"]
        assert run(["extraction", "prioritize", "config.yaml", job]) == 0
        assert server.tasks[job]["priority"] == "asap"
        (put,) = [seen for seen in server.seen if seen.method == "PUT"]
        assert put.headers["if-match"] == f'W/"{version}"'
        capsys.readouterr()
        assert run(["extraction", "prioritize", "config.yaml", job, "--priority", "normal"]) == 0
        assert server.tasks[job]["priority"] == "routine"
        assert "  priority             normal\n" in capsys.readouterr().out

    @pytest.mark.slow
    def test_a_stale_version_is_read_again(self, server: PatientExtraction, job: str) -> None:
        stale = [Reply(409), Reply(412)]

        def override(seen: SeenRequest) -> Reply | None:
            return stale.pop() if seen.method == "PUT" and stale else None

        server.override = override
        assert run(["extraction", "prioritize", "config.yaml", job]) == 0
        assert server.count("PUT", job) == 3
        assert server.tasks[job]["priority"] == "asap"


def test_an_id_may_be_the_beginning_of_one_and_must_name_one_job(server: PatientExtraction, job: str, capsys) -> None:
    assert run(["extraction", "show", "config.yaml", job[:4].upper()]) == 0
    assert f"extraction {job}" in capsys.readouterr().out
    assert run(["extraction", "cancel", "config.yaml", "0000"]) == 2
    assert "error[extraction-unknown]: no extraction job's id begins with 0000" in capsys.readouterr().err
    other = f"{job[:8]}{UNKNOWN[8:]}"
    server.tasks[other] = server.tasks[job] | {"id": other}
    assert run(["extraction", "cancel", "config.yaml", job[:8]]) == 2
    err = capsys.readouterr().err
    assert "error[id-ambiguous]" in err
    assert job in err
    assert other in err
    assert state(server, job) != "CANCELLED"


def test_one_unknown_job_does_not_keep_the_others_from_being_done(server: PatientExtraction, job: str, capsys) -> None:
    assert run(["extraction", "cancel", "config.yaml", UNKNOWN, job]) == 2
    captured = capsys.readouterr()
    assert "error[extraction-unknown]" in captured.err
    assert captured.out.startswith(f"extraction {job}\n")


@pytest.mark.parametrize("command", ["show", "pause", "resume", "cancel", "delete", "prioritize"])
def test_an_id_is_needed_and_latest_may_be_somebody_elses(server: PatientExtraction, command: str, capsys) -> None:
    assert run(["extraction", command, "config.yaml"]) == 2
    assert run(["extraction", command, "config.yaml", "latest"]) == 2
    assert "error[extraction-unknown]" in capsys.readouterr().err
    assert {seen.target for seen in server.seen} == {"/fhir/Task"}


def test_a_server_that_is_not_there_is_exit_code_3(server: PatientExtraction, capsys) -> None:
    override = f"services.extractor.base_url=http://127.0.0.1:{closed_port()}"
    assert run(["extraction", "show", "config.yaml", str(uuid.uuid4()), "--set", override]) == 3
    assert "error[connect-failed]" in capsys.readouterr().err


def test_without_an_extraction_server_in_the_configuration_it_says_so(server: PatientExtraction, capsys) -> None:
    Path("other.yaml").write_text("services: {local_import: {dir: .}}\npipeline: {enabled_steps: [local_import]}\n")
    assert run(["extraction", "list", "other.yaml"]) == 2
    assert "error[extractor-url]" in capsys.readouterr().err
