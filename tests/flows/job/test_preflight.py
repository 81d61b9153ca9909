"""Preflight findings before a job exists or continues."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config import CompressionConfig, PipelineConfig
from flows.job.inputs import JobInputs
from flows.job.preflight import RESERVE, preflight, space_needed
from flows.job.problem import as_one_error, exit_code
from tasks import declared
from tasks.http_import.run import findings
from tasks.shared.errors import InputError, NetworkError, SluiceError
from tasks.shared.file_work import Done, digest, records_of
from tasks.shared.files.part_file import write_whole
from tasks.shared.step import CheckContext, GivenInputs
from tests.peers.server import Loopback, Raw, Reply, SeenRequest, loopback
from tests.peers.services import pseudonyms

CANARY = "Canaryperson"
RESULT = "https://torch.invalid/fhir/__status/6f1c2b1e-0000-4000-8000-000000000000"
LINE = b'{"resourceType":"Patient","id":"1"}\n'


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, SluiceError]]:
    """Return the findings by reference, for steps, service blocks and arguments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "good.ndjson").write_bytes(LINE)

    def find(
        steps: str,
        services: str = "",
        *,
        job: dict[str, Any] | None = None,
        retry: str = "{max_attempts: 1}",
        **inputs: Any,
    ) -> dict[str, Any]:
        (tmp_path / "config.yaml").write_text(
            f"services: {{local_import: {{dir: data}}{services}}}\npipeline: {{enabled_steps: [{steps}]}}\n"
            f"jobs_dir: jobs\nretry: {retry}\n"
        )
        arguments = JobInputs(config=str(tmp_path / "config.yaml"), **inputs)
        findings = preflight(arguments.load(), arguments, **(job or {}))
        assert CANARY not in "".join(finding.render() for finding in findings)
        return {finding.reference: finding for finding in findings}

    return find


EXTRACTOR = ', extractor: {base_url: "http://127.0.0.1:9"}'
PSEUDONYMIZER = ', pseudonymizer: {url: "http://127.0.0.1:9", anonymization_config: rules.yaml}'
FLATTENING = ', flattening: {service_url: "http://127.0.0.1:9", lookup_path: lookup.json}'

NOT_APPLIED = "no step applies the query: local_import imports all resources it finds"


class TestCrtdl:
    @pytest.mark.parametrize(
        ("steps", "services", "given"),
        [("extractor", EXTRACTOR, None), ("http_import, flattening", FLATTENING, "http://127.0.0.1:9/x")],
    )
    def test_extraction_and_flattening_need_a_crtdl(self, found, steps, services, given):
        assert "crtdl-missing" in found(steps, services, input=given)

    def test_the_url_of_a_complete_result_needs_none(self, found):
        assert "crtdl-missing" not in found("extractor", EXTRACTOR, input=RESULT)

    @pytest.mark.parametrize(
        ("steps", "services", "warning"),
        [
            ("local_import", "", NOT_APPLIED),
            (
                "local_import, flattening",
                FLATTENING,
                f"{NOT_APPLIED}; flattening reads only its attribute groups",
            ),
            ("extractor", EXTRACTOR, None),
        ],
    )
    def test_a_query_that_no_step_applies_is_warned_of(self, found, tmp_path, steps, services, warning):
        (tmp_path / "query.json").write_text("{}")
        told = []
        found(steps, services, job={"tell": told.append}, crtdl=str(tmp_path / "query.json"))
        given = [text for text in told if text.startswith("no step")]
        assert given == ([warning] if warning else [])

    def test_flattening_needs_one_also_for_a_complete_result(self, found):
        error = found("extractor, flattening", EXTRACTOR + FLATTENING, input=RESULT)["crtdl-missing"]
        assert "flattening" in error.message
        assert "extractor" not in error.message


def test_a_run_without_a_terminal_records_every_finding():
    busy = NetworkError("connect-failed", "no answer", context="https://a")
    wrong = InputError("crtdl-missing", "no query")
    assert as_one_error([busy]) is busy
    one = as_one_error([busy, wrong])
    assert (one.exit_code, one.message) == (2, "2 checks failed\n- no answer (https://a)\n- no query")
    assert as_one_error([busy, busy]).exit_code == 3


class TestNamedFiles:
    def test_patients_that_no_enabled_step_reads_are_a_finding_that_names_the_step(self, found, tmp_path):
        (tmp_path / "p.txt").write_text("1\n")
        findings = found("local_import", patients=str(tmp_path / "p.txt"))
        assert "extractor" in (findings["patients-unused"].hint or "")
        assert exit_code(list(findings.values())) == 2

    def test_patients_cannot_restrict_a_complete_result(self, found, tmp_path):
        (tmp_path / "p.txt").write_text("1\n")
        assert "patients-unused" in found("extractor", EXTRACTOR, input=RESULT, patients=str(tmp_path / "p.txt"))

    def test_patients_are_a_file_that_can_be_read(self, found, tmp_path):
        path = tmp_path / "p.txt"
        assert str(path) in (found("extractor", EXTRACTOR, patients=str(path))["patients-unreadable"].context or "")
        path.write_text("")
        assert "patients-empty" in found("extractor", EXTRACTOR, patients=str(path))
        path.write_text(f"{CANARY} with a name\n")
        assert "patients-invalid" in found("extractor", EXTRACTOR, patients=str(path))
        assert "patients-unreadable" in found("extractor", EXTRACTOR, patients=str(tmp_path / "data"))

    def test_rules_that_no_enabled_step_reads_are_a_finding_that_names_the_step(self, found, tmp_path):
        (tmp_path / "rules.yaml").write_text("fhirVersion: R4\n")
        error = found("local_import", anonymization_config=str(tmp_path / "rules.yaml"))
        error = error["anonymization-config-unused"]
        assert "--anonymization-config" in error.message
        assert "pseudonymizer" in error.message

    def test_the_rules_of_the_configuration_and_of_the_option_must_be_there(self, found, tmp_path):
        configured = found("local_import, pseudonymizer", PSEUDONYMIZER)["file-unreadable"]
        assert "services.pseudonymizer.anonymization_config: rules.yaml" in (configured.context or "")
        (tmp_path / "rules.yaml").write_text("fhirVersion: R4\n")
        assert "file-unreadable" not in found("local_import, pseudonymizer", PSEUDONYMIZER)
        option = found("local_import, pseudonymizer", PSEUDONYMIZER, anonymization_config=str(tmp_path / "other.yaml"))
        assert "other.yaml" in (option["file-unreadable"].context or "")
        os.mkfifo(tmp_path / "pipe.yaml")
        option = found("local_import, pseudonymizer", PSEUDONYMIZER, anonymization_config=str(tmp_path / "pipe.yaml"))
        assert "file-unreadable" in option
        (tmp_path / "rules.yaml").write_text("")
        assert "file-empty" in found("local_import, pseudonymizer", PSEUDONYMIZER)

    def test_the_lookup_file_must_be_there_when_flattening_is_enabled(self, found, tmp_path):
        error = found("local_import, flattening", FLATTENING)["lookup-unreadable"]
        assert "services.flattening.lookup_path" in error.message
        (tmp_path / "lookup.json").write_text("[]")
        assert "lookup-unreadable" not in found("local_import, flattening", FLATTENING)

    def test_files_of_steps_that_are_not_enabled_or_are_done_are_not_asked_for(self, found, tmp_path):
        assert found("local_import", PSEUDONYMIZER + FLATTENING) == {}
        done = {"done": [1, 2]}
        assert "file-unreadable" not in found("local_import, pseudonymizer", PSEUDONYMIZER, job=done)
        gone = str(tmp_path / "gone.txt")
        assert found("extractor, wait", EXTRACTOR, patients=gone, job={"done": [1]}) == {}


class TestDisk:
    """Disk space in bytes, with sparse files for large ones."""

    def test_what_is_free_is_compared_with_what_is_needed(self, found, tmp_path):
        huge = tmp_path / "data" / "huge.ndjson.zst"
        with huge.open("wb") as file:
            file.truncate(1 << 43)
        error = found("local_import")["disk-space"]
        assert error.exit_code == 2
        assert error.message.endswith(", 8.8 TB are needed")

    def test_a_disk_that_takes_no_files_is_not_called_full(self, found, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_, **_options: False)  # as on a read-only disk, also for root
        assert found("local_import")["jobs-dir"].message == "the jobs directory cannot be written"

    def test_the_jobs_directory_inside_the_input_does_not_count_as_input(self, tmp_path):
        (tmp_path / "jobs" / "old" / "import").mkdir(parents=True)
        (tmp_path / "jobs" / "old" / "import" / "a.ndjson.zst").write_bytes(b"x" * 5000)
        (tmp_path / "b.ndjson.zst").write_bytes(b"x" * 1000)
        config = configured(recursive=True, jobs_dir=tmp_path / "jobs")
        assert needed(config, ["local_import"], directory=tmp_path, offered={}, job_dir=None) == RESERVE + 1000

    @pytest.mark.parametrize(
        ("name", "enabled", "factor"),
        [("a.ndjson", True, 1 / 3), ("a.ndjson", False, 1), ("a.ndjson.zst", True, 1), ("a.ndjson.ZST", False, 5)],
    )
    def test_a_file_takes_what_its_form_in_the_job_takes(self, tmp_path, name, enabled, factor):
        (tmp_path / name).write_bytes(b"x" * 3000)
        config = configured(enabled=enabled)
        space = needed(config, ["local_import", "wait"], directory=tmp_path, offered={}, job_dir=None)
        assert space == RESERVE + 3000 * factor

    def test_each_step_that_writes_data_needs_its_space(self, tmp_path):
        (tmp_path / "a.ndjson.zst").write_bytes(b"x" * 1000)
        steps = ["local_import", "wait", "pseudonymizer", "validation", "flattening", "send"]
        assert needed(configured(), steps, directory=tmp_path, offered={}, job_dir=None) == RESERVE + 6000

    @pytest.mark.parametrize(("enabled", "factor"), [(True, 5), (False, 2)])
    def test_tables_are_larger_than_compressed_input(self, tmp_path, enabled, factor):
        (tmp_path / ("a.ndjson.zst" if enabled else "a.ndjson")).write_bytes(b"x" * 1000)
        steps = ["local_import", "flattening"]
        space = needed(configured(enabled=enabled), steps, directory=tmp_path, offered={}, job_dir=None)
        assert space == RESERVE + factor * 1000

    def test_what_a_continued_job_holds_is_not_needed_again(self, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.ndjson.zst").write_bytes(b"x" * 1000)
        (tmp_path / "job" / "import").mkdir(parents=True)
        (tmp_path / "job" / "import" / "a.ndjson.zst.part").write_bytes(b"x" * 400)
        where = {"directory": tmp_path / "in", "offered": {}, "job_dir": tmp_path / "job"}
        assert needed(configured(), ["local_import"], **where) == RESERVE + 600
        assert needed(configured(), ["local_import", "pseudonymizer"], **where) == RESERVE + 1600

    def test_after_the_import_what_it_left_is_the_measure(self, tmp_path):
        for folder, size in (("import", 1000), ("pseudonymized", 300)):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a.ndjson.zst").write_bytes(b"x" * size)
        where: dict[str, Any] = {"directory": None, "offered": {}, "job_dir": tmp_path}
        assert needed(configured(), ["pseudonymizer", "send"], **where) == RESERVE + 700
        assert needed(configured(), ["send"], **where) == RESERVE

    def test_the_directory_of_a_continued_job_reaches_the_check(self, found, tmp_path):
        with (tmp_path / "data" / "huge.ndjson.zst").open("wb") as file:
            file.truncate(1 << 43)
        assert "disk-space" in found("local_import")
        (tmp_path / "jobs" / "job" / "import").mkdir(parents=True)
        with (tmp_path / "jobs" / "job" / "import" / "huge.ndjson.zst").open("wb") as file:
            file.truncate(1 << 43)
        assert found("local_import", job={"job_dir": tmp_path / "jobs" / "job"}) == {}


@pytest.mark.parametrize(("failures", "references"), [(2, []), (3, ["service-busy"])])
def test_a_token_endpoint_is_asked_as_often_as_the_retry_block_says(found, failures, references):
    asked: list[str] = []

    def answer(seen: SeenRequest) -> Reply:
        if "openid-configuration" in seen.target:
            return Reply(404)
        if not seen.target.endswith("/token"):
            return Reply(200, pseudonyms(seen.body), {"Content-Type": "application/json"})
        asked.append(seen.target)
        token = b'{"access_token": "t", "token_type": "Bearer", "expires_in": 300}'
        return Reply(503) if len(asked) <= failures else Reply(200, token, {"Content-Type": "application/json"})

    with loopback(answer) as server:
        auth = f'{{oauth_issuer_uri: "{server.url}", oauth_client_id: c, oauth_client_secret: s}}'
        service = f', pseudonymizer: {{url: "{server.url}", auth: {auth}}}'
        retry = "{max_attempts: 3, initial_backoff_ms: 1, max_backoff_ms: 1}"
        assert list(found("local_import, pseudonymizer", service, retry=retry)) == references
    assert len(asked) == 3


def test_a_job_that_goes_on_asks_only_for_the_urls_it_has_no_file_of(found, tmp_path):
    with loopback([Reply(404)]) as server:
        url = f"{server.url}/Patient.ndjson"
        assert list(found("http_import", input=url)) == ["url-refused"]
        record = Done(file="Patient", identity=digest(url), output="Patient.ndjson")
        write_whole(records_of(tmp_path / "jobs" / "job", 1) / "Patient.json", msgspec.json.encode(record))
        assert found("http_import", input=url, job={"job_dir": tmp_path / "jobs" / "job"}) == {}


class TestSizesOverHttp:
    def test_the_sizes_that_the_server_gives_count(self):
        with loopback([Reply(200, b"x" * 900)]) as server:
            assert remote(server, "/a.ndjson", "/b.ndjson.zst?sig=1") == 300 + 900
            assert {seen.method for seen in server.seen} == {"HEAD"}

    def test_the_url_of_the_command_line_wins(self, found):
        with loopback([Reply(200, b"x" * 900)]) as server:
            assert found("http_import", input=f"{server.url}/b.ndjson") == {}
            assert [(seen.method, seen.target) for seen in server.seen] == [("HEAD", "/b.ndjson")]

    @pytest.mark.parametrize(
        "answer",
        [Reply(500), Reply(401), Reply(302, b"", {"Location": "http://localhost:1/"}), Raw(b"HTTP/1.1 200 OK\r\n\r\n")],
    )
    def test_a_size_that_nobody_gives_counts_as_nothing_and_is_not_asked_for_again(self, answer):
        with loopback([answer]) as server:
            assert remote(server, "/a.zst") == 0
            assert [seen.method for seen in server.seen] == ["HEAD"]

    def test_a_host_that_does_not_answer_is_asked_once(self):
        with loopback([Raw(b"", then="close")]) as server:
            assert remote(server, "/a.zst", "/b.zst", "/c.zst") == 0
            assert server.connections <= 2

    def test_a_job_that_goes_on_needs_what_is_still_to_be_fetched(self, tmp_path):
        (tmp_path / "job" / "import").mkdir(parents=True)
        (tmp_path / "job" / "import" / "a.ndjson.zst").write_bytes(b"x" * 500)
        with loopback([Reply(200, b"x" * 900)]) as server:
            config = configured(urls=[f"{server.url}/a.ndjson.zst", f"{server.url}/b.ndjson.zst"])
            record = Done(file="a", identity=digest(f"{server.url}/a.ndjson.zst"), output="a.ndjson.zst", size=500)
            write_whole(records_of(tmp_path / "job", 1) / "a.json", msgspec.json.encode(record))
            sizes: dict[str, int] = {}
            assert [*findings(CheckContext(config, job_dir=tmp_path / "job", sizes=sizes))] == []
            assert [seen.target for seen in server.seen] == ["/b.ndjson.zst"]
        where = {"directory": None, "offered": sizes, "job_dir": tmp_path / "job"}
        assert needed(config, ["http_import"], **where) == RESERVE + 900
        assert needed(config, ["http_import", "pseudonymizer"], **where) == RESERVE + 900 + 1400

    def test_an_import_larger_than_the_disk_is_found_before_a_job_exists(self, found):
        with loopback([Reply(200, b"", length=1 << 60)]) as server:
            findings = found("http_import", input=f"{server.url}/Patient.ndjson?page=1")
        assert list(findings) == ["disk-space"]


def needed(
    config: PipelineConfig, steps: list[str], *, directory: Path | None, offered: dict[str, int], job_dir: Path | None
) -> int:
    """Return the needed bytes; ``directory`` is to be imported, ``offered`` has the sizes from servers."""
    given = GivenInputs(input=str(directory) if directory is not None else None)
    return space_needed(CheckContext(config, given, job_dir, sizes=offered), [declared(name) for name in steps])


def remote(server: Loopback, *paths: str) -> int:
    """Return the bytes that an import of these paths needs, besides the reserve."""
    config = configured(urls=[server.url + path for path in paths])
    sizes: dict[str, int] = {}
    [*findings(CheckContext(config, sizes=sizes))]
    return needed(config, ["http_import"], directory=None, offered=sizes, job_dir=None) - RESERVE


def configured(
    *, recursive: bool = False, enabled: bool = True, jobs_dir: Path | None = None, urls: list[str] | None = None
) -> PipelineConfig:
    services = {"local_import": {"recursive": recursive}}
    config = PipelineConfig.model_validate({"services": services, "jobs_dir": jobs_dir or Path("jobs")})
    http = config.services.http_import.model_copy(update={"urls": tuple(urls or ())})
    changed = config.services.model_copy(update={"http_import": http})
    compression = CompressionConfig(enabled=enabled)
    return config.model_copy(update={"services": changed, "compression": compression})
