"""The extraction step as a whole: results, files, availability, credentials, reports (documents 1 and 3)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from tasks.shared.blanked import SECRETS
from tasks.shared.errors import (
    InputError,
    ServiceBusyError,
    ServiceError,
    SluiceError,
    TerminalError,
)
from tasks.shared.step import GivenInputs, Handle
from tests.peers.extraction import BASE, BUNDLE, OTHER_JOB, ExtractorJob, MockExtraction, configuration, crtdl, manifest
from tests.peers.services import JOB, task

OUT = f"{BASE}/out/{JOB}"
CORE = f"{OUT}/core.ndjson"
BATCH = f"{OUT}/b1.ndjson"


def job(
    tmp_path: Path, result: httpx.Response, files: dict[str, bytes], *, compression: bool = False, **more: Any
) -> ExtractorJob:
    base = more.pop("base", BASE)
    config = configuration(base, compression=compression, **more)
    return ExtractorJob(tmp_path / "job", MockExtraction(polls=[result], files=files), config=config)


def fails(run: ExtractorJob, kind: type[SluiceError] = SluiceError) -> SluiceError:
    with pytest.raises(kind) as caught:
        run.run()
    assert "CANARY" not in caught.value.render()
    assert not [name for name in run.imported() if name.endswith(".part")]
    return caught.value


def test_the_files_of_the_manifest_are_imported_and_counted(tmp_path: Path) -> None:
    run = job(tmp_path, manifest(CORE, BATCH), {CORE: BUNDLE, BATCH: BUNDLE * 3})
    result = run.run()
    assert run.imported() == {"core.ndjson": BUNDLE, "b1.ndjson": BUNDLE * 3}
    assert (result.files, result.resources_in, result.resources_out, result.lines_out) == (2, 4, 4, 4)
    assert (result.bytes_in, result.bytes_out, result.output) == (4 * len(BUNDLE), 4 * len(BUNDLE), "import")
    facts = [json.loads(line) for line in (run.path / ".results" / "1-files.ndjson").read_bytes().splitlines()]
    assert {fact["name"]: (fact["lines"], fact["stored_bytes"], fact["sha256"]) for fact in facts} == {
        "core.ndjson": (1, len(BUNDLE), hashlib.sha256(BUNDLE).hexdigest()),
        "b1.ndjson": (3, 3 * len(BUNDLE), hashlib.sha256(BUNDLE * 3).hexdigest()),
    }


def test_the_parameters_shape_is_imported_too(tmp_path: Path) -> None:
    parameter = {"name": "output", "part": [{"name": "url", "valueUrl": BATCH}]}
    shape = httpx.Response(200, json={"resourceType": "Parameters", "parameter": [parameter]})
    assert job(tmp_path, shape, {BATCH: BUNDLE}).run().files == 1


def test_with_compression_the_files_are_zstd(tmp_path: Path) -> None:
    run = job(tmp_path, manifest(BATCH), {BATCH: BUNDLE}, compression=True)
    run.run()
    (name, content), *_ = run.imported().items()
    assert name == "b1.ndjson.zst"
    assert zstandard.ZstdDecompressor().decompressobj().decompress(content) == BUNDLE


def test_files_are_asked_for_as_ndjson(tmp_path: Path) -> None:
    run = job(tmp_path, manifest(BATCH), {BATCH: BUNDLE})
    run.run()
    assert {r.headers["accept"] for r in run.server.seen if "/out/" in r.url.path} == {"application/fhir+ndjson"}


@pytest.mark.parametrize(
    ("base", "url", "absolute"),
    [
        (BASE, "/out/b1.ndjson", f"{BASE}/out/b1.ndjson"),
        (f"{BASE}/torch", "/out/b1.ndjson", f"{BASE}/torch/out/b1.ndjson"),
        (f"{BASE}/torch", "/torch/out/b1.ndjson", f"{BASE}/torch/out/b1.ndjson"),
        (BASE, "files.example:8080/b1.ndjson", "https://files.example:8080/b1.ndjson"),
        (BASE, "https://files.example//x//b1.ndjson", "https://files.example//x//b1.ndjson"),
    ],
)
def test_urls_of_all_kinds_are_resolved(tmp_path: Path, base: str, url: str, absolute: str) -> None:
    run = job(tmp_path, manifest(url), {absolute: BUNDLE}, base=base)
    run.server.locations = [f"{base}/fhir/__status/{JOB}"]
    assert run.run().files == 1


def test_two_outputs_with_one_last_segment_are_two_files(tmp_path: Path) -> None:
    first, second = f"{BASE}/a/x.ndjson", f"{BASE}/b/x.ndjson"
    run = job(tmp_path, manifest(first, second), {first: BUNDLE, second: BUNDLE * 2})
    assert run.run().lines_out == 3
    assert run.imported() == {"x.ndjson": BUNDLE, "x-2.ndjson": BUNDLE * 2}


def test_a_name_that_became_another_files_has_neither_until_the_other_one_is_there(tmp_path: Path) -> None:
    first, second = f"{BASE}/a/x.ndjson", f"{BASE}/b/x.ndjson"
    files: dict[str, Any] = {first: BUNDLE, second: BUNDLE * 2}
    job(tmp_path, manifest(first, second), files).run()
    again = job(tmp_path, manifest(second, first), {first: BUNDLE, second: httpx.Response(403)})
    fails(again, SluiceError)
    assert again.imported().get("x.ndjson") is None
    run = job(tmp_path, manifest(second, first), files)
    assert run.run().lines_out == 3
    assert run.imported() == {"x.ndjson": BUNDLE * 2, "x-2.ndjson": BUNDLE}


@pytest.mark.slow
def test_hundreds_of_files_come_down(tmp_path: Path) -> None:
    files = {f"{OUT}/{number}.ndjson": BUNDLE for number in range(300)}
    result = job(tmp_path, manifest(*files), files, max_concurrent_downloads=8).run()
    assert (result.files, result.lines_out) == (300, 300)


def test_no_output_is_no_matching_data(tmp_path: Path) -> None:
    error = fails(job(tmp_path, manifest(), {}), TerminalError)
    assert error.reference == "no-matching-data"
    assert "criteria" in (error.hint or "")


FALLBACK = ("HEAD", "GET bytes=0-0")
CHUNKED = httpx.Response(200, headers={"Transfer-Encoding": "chunked"})


class TestAvailability:
    def run_with(self, tmp_path: Path, *answers: httpx.Response, **extractor: Any) -> tuple[ExtractorJob, list[str]]:
        """Run the step with these answers for the file, one after the other, and then the file itself."""
        run = job(tmp_path, manifest(BATCH), {BATCH: BUNDLE}, **extractor)
        script, asked = list(answers), []

        def file(request: httpx.Request) -> httpx.Response | None:
            asked.append(request.method + (" " + request.headers["range"] if "range" in request.headers else ""))
            return script.pop(0) if script else None

        run.server.file = file
        return run, asked

    @pytest.mark.parametrize(
        ("answers", "settings", "expected", "sleeps"),
        [
            ([], {}, ["HEAD"], []),
            *(([head, found], {}, FALLBACK, []) for head in (403, 404, 405, CHUNKED) for found in (200, 206)),
            ([httpx.Response(200, headers={"Content-Length": "0"})], {}, ["HEAD", "HEAD"], [10]),
            *(([busy], {}, ["HEAD", "HEAD"], [10]) for busy in (429, 500, 503)),
            ([404] * 14, {"file_ready_interval": "PT7S"}, [*FALLBACK * 7, "HEAD"], [7] * 7),
            ([], {"file_ready_retries": 0}, [], []),
            ([], {"file_ready_retries": -1}, [], []),
        ],
    )
    def test_a_file_is_downloaded_once_it_is_there(
        self,
        tmp_path: Path,
        answers: list[int | httpx.Response],
        settings: dict[str, Any],
        expected: list[str],
        sleeps: list[int],
    ) -> None:
        script = [httpx.Response(one, content=b"{") if isinstance(one, int) else one for one in answers]
        run, asked = self.run_with(tmp_path, *script, **settings)
        run.run()
        assert asked == [*expected, "GET"]
        assert run.clock.sleeps == sleeps

    def test_after_the_last_check_it_is_an_error_that_may_be_another_one_later(self, tmp_path: Path) -> None:
        run, asked = self.run_with(tmp_path, *[httpx.Response(404, text="CANARY") for _ in range(99)])
        error = fails(run, ServiceBusyError)
        assert (error.reference, error.operation, error.status) == ("file-not-available", "download", 404)
        assert asked == ["HEAD", "GET bytes=0-0"] * 10
        assert run.clock.sleeps == [10] * 9

    def test_a_network_failure_of_a_check_is_one_failed_check(self, tmp_path: Path) -> None:
        run, asked = self.run_with(tmp_path)
        plain = run.server.file
        failed: list[httpx.Request] = []

        def file(request: httpx.Request) -> httpx.Response | None:
            if not failed:
                failed.append(request)
                raise httpx.ReadError("CANARY")
            return plain(request)

        run.server.file = file
        run.run()
        assert asked == ["HEAD", "GET"]

    def test_401_ends_it_at_once(self, tmp_path: Path) -> None:
        run, asked = self.run_with(tmp_path, httpx.Response(401, text="CANARY"))
        assert fails(run, ServiceError).reference == "service-unauthorized"
        assert asked == ["HEAD"]


class TestDownload:
    def test_files_of_one_failed_run_are_not_fetched_again(self, tmp_path: Path) -> None:
        run = job(tmp_path, manifest(CORE, BATCH), {CORE: BUNDLE}, max_concurrent_downloads=1, file_ready_retries=1)
        fails(run)
        run.server.files[BATCH] = BUNDLE * 2
        result = run.run()
        assert (result.files, result.lines_out) == (2, 3)
        assert run.server.downloads("core.ndjson") == [CORE]
        assert len(run.server.submissions) == 1

    def test_progress_of_the_download_counts_files(self, tmp_path: Path) -> None:
        run = job(tmp_path, manifest(CORE, BATCH), {CORE: BUNDLE, BATCH: BUNDLE * 2})
        run.run()
        snapshot = run.context.meter.snapshot()
        assert (snapshot.files, snapshot.files_total, snapshot.resources, snapshot.fraction) == (2, 2, 3, 1.0)


class TestFreshExtraction:
    def test_files_of_a_dead_extraction_do_not_stay_under_the_fresh_one(self, tmp_path: Path) -> None:
        old, new = f"{BASE}/out/1/core.ndjson", f"{BASE}/out/2/core.ndjson"
        stale = f"{BASE}/out/1/stale.ndjson"
        missing = f"{BASE}/out/1/missing.ndjson"
        files = {old: BUNDLE, stale: BUNDLE}
        run = job(tmp_path, manifest(old, stale, missing), files, file_ready_retries=1, max_concurrent_downloads=1)
        fails(run)
        assert set(run.imported()) == {"core.ndjson", "stale.ndjson"}
        run.server.polls = [httpx.Response(404), manifest(new)]
        run.server.files = {new: BUNDLE * 5}
        run.server.locations = [f"{BASE}/fhir/__status/{OTHER_JOB}"] * 9
        result = run.run()
        assert run.imported() == {"core.ndjson": BUNDLE * 5}
        assert result.lines_out == 5


class TestCredentials:
    AUTH = {"username": "u", "password": "hidden", "api_key": "key"}  # noqa: RUF012

    def credentials_sent(self, tmp_path: Path, url: str, **more: Any) -> dict[str, bool]:
        run = job(tmp_path, manifest(url, **more), {url: BUNDLE}, auth=self.AUTH)
        run.run()
        files = [request for request in run.server.seen if request.url.path.endswith("x.ndjson")]
        assert {request.method for request in files} == {"HEAD", "GET"}
        return {name: all(name in request.headers for request in files) for name in ("authorization", "x-api-key")}

    @pytest.mark.parametrize(
        ("url", "token", "sent"),
        [
            (f"{BASE}/x.ndjson", False, True),
            (f"{BASE}:8443/x.ndjson", False, True),  # another port of the same host
            ("https://files.example/x.ndjson", False, False),
            ("https://files.example/x.ndjson", True, True),
            ("http://torch.example/x.ndjson", True, False),  # they do not leave TLS
        ],
    )
    def test_they_go_to_the_host_of_base_url_and_where_the_manifest_requires_a_token(
        self, tmp_path: Path, url: str, token: bool, sent: bool
    ) -> None:
        assert set(self.credentials_sent(tmp_path, url, requiresAccessToken=token).values()) == {sent}

    def test_they_never_cross_a_redirect_to_another_host(self, tmp_path: Path) -> None:
        target = "https://files.example/x.ndjson"
        run = job(tmp_path, manifest(f"{BASE}/b1.ndjson", requiresAccessToken=True), {target: BUNDLE}, auth=self.AUTH)
        redirect = httpx.Response(302, headers={"Location": target})
        run.server.file = lambda r: redirect if r.url.host == "torch.example" else None
        assert run.run().files == 1
        beyond = [request for request in run.server.seen if request.url.host == "files.example"]
        assert beyond
        assert not any({"authorization", "x-api-key"} & request.headers.keys() for request in beyond)


class TestDirectResult:
    URL = f"{BASE}/fhir/__status/{JOB}"

    def direct(self, tmp_path: Path, *polls: httpx.Response, url: str = URL) -> ExtractorJob:
        run = job(tmp_path, polls[0], {BATCH: BUNDLE})
        run.server.polls = list(polls)
        run.input = url
        return run

    def test_the_url_is_polled_directly_and_nothing_is_submitted(self, tmp_path: Path) -> None:
        run = self.direct(tmp_path, manifest(BATCH))
        assert run.run().files == 1
        assert run.server.submissions == []
        assert run.store.saved == []

    def test_a_transient_answer_is_asked_again(self, tmp_path: Path) -> None:
        run = self.direct(tmp_path, httpx.Response(503), manifest(BATCH))
        assert run.run().files == 1

    def test_a_result_that_is_not_complete_is_an_error(self, tmp_path: Path) -> None:
        error = fails(self.direct(tmp_path, httpx.Response(202)), ServiceBusyError)
        assert error.reference == "result-not-complete"

    @pytest.mark.parametrize("status", [404, 410])
    def test_a_result_that_is_gone_is_a_dead_handle_and_not_submitted(self, tmp_path: Path, status: int) -> None:
        run = self.direct(tmp_path, httpx.Response(status))
        assert fails(run, ServiceError).reference == "dead-handle"
        assert run.server.submissions == []

    def test_a_url_of_something_else_is_an_error(self, tmp_path: Path) -> None:
        run = self.direct(tmp_path, manifest(BATCH), url=f"{BASE}/data/x.ndjson?sig=CANARY")
        assert fails(run, InputError).reference == "result-url-unknown"


class TestCompanions:
    def reports(self, *names: str) -> list[dict[str, str]]:
        urls = {
            "job-summary.json": "extractor-job-diagnostics-summary",
            "resource-exclusions.csv": "extractor-resource-exclusions",
            "patient-exclusions.csv": "extractor-patient-exclusions",
        }
        return [{"url": urls[name], "valueUrl": f"/out/{JOB}/reports/{name}"} for name in names]

    def test_reports_go_to_reports_and_consent_audits_to_consent(self, tmp_path: Path) -> None:
        csv = b'"Batch-ID","Reason"\r\n'
        audit = b'{"resourceType":"Bundle","type":"collection"}\n'
        files = {
            BATCH: BUNDLE,
            f"{OUT}/reports/resource-exclusions.csv": csv,
            f"{OUT}/reports/job-summary.json": b"{}",
            f"{OUT}/b1_consent.ndjson": audit,
        }
        result = manifest(BATCH, extension=self.reports("job-summary.json", "resource-exclusions.csv"))
        run = job(tmp_path, result, files)
        output = {"type": {"text": "Consent audit NDJSON"}, "valueUrl": f"/out/{JOB}/b1_consent.ndjson"}
        run.server.tasks[JOB] = task(status="COMPLETED", output=[output])
        done = run.run()
        extraction = run.path / "extraction"
        assert (extraction / "reports" / "resource-exclusions.csv").read_bytes() == csv
        assert (extraction / "reports" / "job-summary.json").read_bytes() == b"{}"
        assert (extraction / "consent" / "b1_consent.ndjson").read_bytes() == audit
        assert set(run.imported()) == {"b1.ndjson"}
        assert done.details["reports"] == ["job-summary.json", "resource-exclusions.csv"]
        assert done.details["consent_files"] == 1
        assert (done.files, done.lines_out, done.warnings) == (1, 1, ())
        for path in extraction.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0

    def test_neither_the_manifest_nor_a_report_keeps_a_credential(self, tmp_path: Path) -> None:
        SECRETS.text("secret-of-the-job")
        csv = b'"Batch-ID","secret-of-the-job"\r\n' * 3
        files = {BATCH: BUNDLE, f"{OUT}/reports/resource-exclusions.csv": csv}
        result = manifest(BATCH, extension=self.reports("resource-exclusions.csv"), echo="Bearer secret-of-the-job")
        run = job(tmp_path, result, files)
        assert run.run().warnings == ()
        extraction = run.path / "extraction"
        kept = (extraction / "reports" / "resource-exclusions.csv").read_bytes()
        assert kept == csv.replace(b"secret-of-the-job", b"[blanked]")
        assert json.loads((extraction / "manifest.json").read_bytes())["echo"] == "Bearer [blanked]"

    def test_a_missing_report_is_a_warning_and_no_failure(self, tmp_path: Path) -> None:
        run = job(tmp_path, manifest(BATCH, extension=self.reports("patient-exclusions.csv")), {BATCH: BUNDLE})
        output = {"type": {"text": "Consent audit NDJSON"}, "valueUrl": "/gone_consent.ndjson"}
        run.server.tasks[JOB] = task(status="COMPLETED", output=[output])
        result = run.run()
        assert result.files == 1
        assert sorted(warning.partition(" (")[0] for warning in result.warnings) == [
            "not downloaded: 1 of 1 consent audit files",
            "not downloaded: the report patient-exclusions.csv",
        ]

    def test_hundreds_of_missing_consent_audits_do_not_keep_a_run_waiting(self, tmp_path: Path) -> None:
        run = job(tmp_path, manifest(BATCH), {BATCH: BUNDLE})
        output = [
            {"type": {"text": "Consent audit NDJSON"}, "valueUrl": f"/{number}_consent.ndjson"} for number in range(300)
        ]
        run.server.tasks[JOB] = task(status="COMPLETED", output=output)
        (warning,) = run.run().warnings
        assert warning.startswith("not downloaded: 300 of 300 consent audit files")
        assert sum(run.clock.sleeps) < 60

    def test_a_report_whose_url_cannot_be_used_is_a_warning(self, tmp_path: Path) -> None:
        extension = [{"url": "torch-patient-exclusions", "valueUrl": "file:///etc/CANARY"}]
        result = job(tmp_path, manifest(BATCH, extension=extension), {BATCH: BUNDLE}).run()
        assert [warning.rpartition(" (")[2] for warning in result.warnings] == ["result-url)"]

    def test_a_report_that_is_cut_is_fetched_again(self, tmp_path: Path) -> None:
        url = f"{OUT}/reports/patient-exclusions.csv"
        run = job(
            tmp_path, manifest(BATCH, extension=self.reports("patient-exclusions.csv")), {BATCH: BUNDLE, url: b"abc"}
        )
        cut = [httpx.Response(200, content=b"a", headers={"Content-Length": "3"})]
        run.server.file = lambda r: cut.pop() if str(r.url) == url and cut else None
        assert run.run().warnings == ()
        assert (run.path / "extraction" / "reports" / "patient-exclusions.csv").read_bytes() == b"abc"

    def test_the_manifest_is_kept_as_it_came(self, tmp_path: Path) -> None:
        result = manifest(BATCH, extension=[{"url": "extractor-job", "valueObject": {"id": JOB}}])
        run = job(tmp_path, result, {BATCH: BUNDLE})
        run.run()
        kept = run.path / "extraction" / "manifest.json"
        assert kept.read_bytes() == result.content
        assert kept.stat().st_mode & 0o777 == 0o600

    def test_errors_beside_the_files_are_a_warning(self, tmp_path: Path) -> None:
        result = manifest(BATCH, error=[{"type": "OperationOutcome", "url": "/out/CANARY.ndjson"}])
        done = job(tmp_path, result, {BATCH: BUNDLE}).run()
        assert done.files == 1
        assert done.warnings == ("the result lists 1 errors in addition to its files; see extraction/manifest.json",)

    def test_issues_and_counts_become_details_and_a_warning(self, tmp_path: Path) -> None:
        extension = [
            {
                "url": "torch-job-issues",
                "valueObject": [{"severity": "WARNING", "msg": "CANARY"}, {"severity": "INFO"}],
            },
            {
                "url": "torch-job-diagnostics-summary",
                "valueObject": {"Num-Cohort-Patients": 3, "Num-Final-Patients": 2},
            },
        ]
        run = job(tmp_path, manifest(CORE, BATCH, extension=extension), {CORE: BUNDLE, BATCH: BUNDLE})
        result = run.run()
        assert result.details["issues"] == {"WARNING": 1, "INFO": 1}
        assert result.details["cohort_patients"] == 3
        assert "CANARY" not in json.dumps(result.result())
        assert result.warnings == (
            "the server counts 2 patients in the result, the files hold 1 Bundle",
            "the extraction server reports issues: 1 WARNING; see extraction/manifest.json",
        )


def test_without_a_crtdl_the_step_says_what_it_needs(tmp_path: Path) -> None:
    run = job(tmp_path, manifest(BATCH), {BATCH: BUNDLE})
    context = run.new_context()
    from dataclasses import replace

    from tasks.extractor.extraction import run as step
    from tests.peers.extraction import http_client

    with pytest.raises(InputError) as caught:
        step(replace(context, given=GivenInputs()), client=lambda config, _: http_client(run.server, config))
    assert caught.value.reference == "crtdl-missing"


def test_nothing_of_a_run_shows_data_or_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = {"username": "u", "password": "CANARY"}
    run = job(
        tmp_path, manifest(f"{BATCH}?sig=CANARY"), {BATCH: BUNDLE.replace(b"transaction", b"CANARY")}, auth=secret
    )
    run.store.save(Handle(f"{BASE}/fhir/__status/{JOB}", JOB))
    with caplog.at_level("DEBUG"):
        result = run.run()
    assert "CANARY" not in caplog.text + repr(result) + repr(run.context.meter.snapshot())
    assert "CANARY" not in (run.path / ".results" / "1-files.ndjson").read_text()


def test_an_enrichment_rule_that_did_nothing_is_a_warning_of_the_step(tmp_path: Path) -> None:
    run = job(tmp_path, manifest(BATCH), {BATCH: BUNDLE})
    services = {
        "extractor": {"base_url": BASE},
        "crtdl_preprocessing": {"enabled": True, "enrichments": [{"group_reference": "https://example.org/none"}]},
    }
    run.config = run.config.model_validate(run.config.model_dump() | {"services": services})
    assert [warning[:29] for warning in run.run().warnings] == ["enrichment rule 1 did nothing"]


class TestReportedErrors:
    """Document 1, procedure 5: an empty output is the reported server errors, if there are any."""

    OUTCOME = (
        b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"processing","diagnostics":"CANARY"},'
        b'{"severity":"error","code":"processing","details":{"text":"CANARY"}},{"severity":"fatal","code":"CANARY"},'
        b'{"severity":"warning","code":"not-found"}]}'
    )
    URL = f"{OUT}/error.json"

    def empty(self, tmp_path: Path, files: dict[str, bytes], **more: Any) -> SluiceError:
        self.run = job(tmp_path, manifest(**more), files)
        return fails(self.run)

    @pytest.mark.parametrize("indent", [None, 2])
    def test_the_files_that_hold_them_are_kept_and_told_by_severity_and_code(
        self, tmp_path: Path, indent: int | None
    ) -> None:
        document = json.dumps(json.loads(self.OUTCOME), indent=indent).encode()
        error = self.empty(tmp_path, {self.URL: document}, error=[{"type": "OperationOutcome", "url": self.URL}])
        assert error.reference == "extraction-errors"
        assert error.message.endswith("the server reports 3 errors: 2 error (processing), 1 fatal")
        kept = self.run.path / "extraction" / "errors" / "error.json"
        assert kept.read_bytes() == document
        assert kept.stat().st_mode & 0o777 == 0o600
        assert "extraction/manifest.json and extraction/errors/error.json" in (error.hint or "")

    def test_lines_of_outcomes_are_read_too(self, tmp_path: Path) -> None:
        error = self.empty(tmp_path, {self.URL: self.OUTCOME + b"\n" + self.OUTCOME}, error=[{"url": self.URL}])
        assert error.message.endswith("6 errors: 4 error (processing), 2 fatal")

    def test_issues_of_the_job_and_outcomes_in_the_manifest_itself_are_told(self, tmp_path: Path) -> None:
        issues = [{"severity": "ERROR", "msg": "CANARY"}, {"severity": "WARNING", "msg": "CANARY"}]
        extension = [{"url": "torch-job-issues", "valueObject": issues}]
        error = self.empty(tmp_path, {}, error=[json.loads(self.OUTCOME)], extension=extension)
        assert error.message.endswith("4 errors: 2 error (processing), 1 error, 1 fatal")
        assert "is in extraction/manifest.json of the job" in (error.hint or "")

    @pytest.mark.parametrize("content", [None, b"<html>CANARY", b"[]"])
    def test_one_that_cannot_be_read_is_still_told(self, tmp_path: Path, content: bytes | None) -> None:
        files = {self.URL: content} if content is not None else {}
        error = self.empty(tmp_path, files, error=[{"url": self.URL}, "CANARY"])
        assert error.message.endswith("2 errors: 2 that cannot be read")

    def test_an_outcome_of_warnings_alone_is_no_error(self, tmp_path: Path) -> None:
        outcome = b'{"resourceType":"OperationOutcome","issue":[{"severity":"warning"}]}'
        assert self.empty(tmp_path, {self.URL: outcome}, error=[{"url": self.URL}]).reference == "no-matching-data"

    def test_the_other_shape_names_them_too(self, tmp_path: Path) -> None:
        parameter = {"name": "error", "part": [{"name": "url", "valueUrl": self.URL}]}
        shape = httpx.Response(200, json={"resourceType": "Parameters", "parameter": [parameter]})
        error = fails(job(tmp_path, shape, {self.URL: self.OUTCOME}))
        assert error.message.endswith("2 error (processing), 1 fatal")


def test_a_manifest_that_is_a_lie_is_kept_without_credentials(tmp_path: Path) -> None:
    SECRETS.text("secret-of-the-job")
    run = job(tmp_path, manifest(BATCH, output={}, echo="secret-of-the-job CANARY"), {BATCH: BUNDLE})
    error = fails(run, ServiceError)
    (kept,) = (run.path / "extraction" / "failed").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert json.loads(kept.read_bytes())["echo"] == "[blanked] CANARY"
    assert f"extraction/failed/{kept.name}" in (error.hint or "")


def test_what_a_server_may_refuse_of_the_query_is_submitted_with_a_warning(tmp_path: Path) -> None:
    run = job(tmp_path, manifest(BATCH), {BATCH: BUNDLE})
    (group,) = crtdl()["dataExtraction"]["attributeGroups"]
    document = crtdl(dataExtraction={"attributeGroups": [group | {"attributes": []}]})
    run.crtdl.write_text(json.dumps(document))
    result = run.run()
    (warning,) = (one for one in result.warnings if one.startswith("crtdl-no-attributes"))
    assert warning in run.context.meter.snapshot().warnings
    assert len(run.server.submissions) == 1
