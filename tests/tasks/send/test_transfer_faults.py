"""Faults between a transfer and its store (issue 6 "Show", document 3 §1 and §7)."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.common.serve import serve_in_thread
from tasks.send.comparison import compare
from tasks.send.transfer.store import TransferBounds
from tasks.send.transfer.transfer import run
from tasks.shared.errors import NetworkError, ServiceBusyError, ServiceError, SluiceError, Stopped
from tests.peers.oauth import IssuerSettings, OAuthIssuer
from tests.peers.server import Reply, SeenRequest
from tests.peers.transfer import Endpoint, TransferJob, serving

TRANSIENT = [408, 429, 500, 502, 504]
TERMINAL = [301, 400, 401, 403, 404, 405, 413, 415, 422, 501, 507]
CANARY = "Canaryperson-4711"
MODES = {"json": TransferBounds(), "raw": TransferBounds(raw_above=0)}
PUTS = ["*/Binary/*", "*/DocumentReference/*"]


@pytest.fixture
def job(tmp_path: Path) -> TransferJob:
    return TransferJob(tmp_path)


def fault(action: str, path: str, method: str = "PUT", **more: Any) -> dict[str, Any]:
    return {"action": action, "method": method, "path": path, **more}


@pytest.mark.parametrize("status", [503, 409, *(pytest.param(one, marks=pytest.mark.slow) for one in TRANSIENT)])
@pytest.mark.parametrize("path", PUTS)
@pytest.mark.parametrize("at", ["body", "applied"])
def test_a_transient_status_is_repeated_and_the_target_is_as_without_it(
    job: TransferJob, status: int, path: str, at: str
) -> None:
    files = job.fill()
    with serving() as store:
        store.faults(fault("status", path, status=status, at=at))
        job.send(store.url)
        assert store.receive().files == files
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}
    assert job.slept == [0.1]


@pytest.mark.parametrize("status", [429, 503])
def test_when_the_attempts_are_used_up_the_step_fails_transiently_and_goes_on_later(
    job: TransferJob, status: int
) -> None:
    files = job.fill()
    with serving() as store:
        store.faults(fault("status", PUTS[0], status=status, times=3, headers={"Retry-After": "7"}))
        with pytest.raises(ServiceBusyError) as caught:
            job.send(store.url)
        assert caught.value.exit_code == 3
        assert job.slept == [7.0, 7.0]
        assert "transfer.zip" in job.state_files
        job.send(store.url)
        assert store.receive().files == files
    assert job.state_files == {"transfer.json"}


@pytest.mark.parametrize("status", TERMINAL)
@pytest.mark.parametrize("path", PUTS)
def test_a_terminal_status_ends_the_step_at_once_without_quoting_the_answer(
    job: TransferJob, status: int, path: str
) -> None:
    files = job.fill()
    issue = {"severity": "error", "code": "processing", "diagnostics": CANARY}
    with serving() as store:
        body = {"resourceType": "OperationOutcome", "issue": [issue]}
        store.faults(fault("status", path, status=status, body=body, headers={"Location": "/elsewhere"}))
        with pytest.raises(ServiceError) as caught:
            job.send(store.url)
        assert not caught.value.transient
        assert caught.value.status == status
        assert caught.value.hint
        assert CANARY not in caught.value.render() + repr(caught.value)
        assert job.slept == []
        job.send(store.url)
        assert store.receive().files == files


@pytest.mark.parametrize(
    ("status", "reference", "hint"), [(413, "transfer-too-large", "raise"), (507, "transfer-store-full", "space")]
)
def test_too_large_and_full_say_what_to_do_on_the_server(
    job: TransferJob, status: int, reference: str, hint: str
) -> None:
    job.fill()
    with serving() as store:
        store.faults(fault("status", PUTS[0], status=status))
        with pytest.raises(ServiceError) as caught:
            job.send(store.url)
    assert (caught.value.reference, caught.value.status, caught.value.exit_code) == (reference, status, 1)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_body_limit_that_answers_before_the_upload_ended_is_understood(job: TransferJob, mode: str) -> None:
    job.write("random.csv", os.urandom(6_000_000))
    with serving(max_body=1_000_000) as store, pytest.raises(ServiceError) as caught:
        job.send(store.url, bounds=MODES[mode])
    assert caught.value.reference == "transfer-too-large"


@pytest.mark.parametrize("mode", ["json", pytest.param("raw", marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", PUTS)
@pytest.mark.parametrize("at", ["head", "body", "applied"])
def test_a_reset_before_in_or_after_the_body_is_repeated(job: TransferJob, mode: str, path: str, at: str) -> None:
    files = job.fill()
    with serving() as store:
        store.faults(fault("reset", path, at=at))
        job.send(store.url, bounds=MODES[mode])
        assert store.receive().files == files
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}


def test_a_connection_that_breaks_every_time_points_to_limits_of_proxies(job: TransferJob) -> None:
    job.fill()
    with serving() as store:
        store.faults(fault("reset", PUTS[0], times=None))
        with pytest.raises(NetworkError) as caught:
            job.send(store.url)
    assert caught.value.exit_code == 3
    assert caught.value.hint is not None
    assert "proxy" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("path", PUTS)
def test_a_store_that_stalls_is_asked_again_after_the_timeout(job: TransferJob, path: str) -> None:
    files = job.fill()
    with serving() as store:
        store.faults(fault("delay", path, seconds=30))
        job.send(store.url, timeout="1s")
        assert store.receive().files == files
    assert job.slept == [0.1]


@pytest.mark.slow
@pytest.mark.parametrize("fault_at", ["cut", "stall"])
def test_an_answer_to_the_search_that_breaks_off_is_repeated(job: TransferJob, fault_at: str) -> None:
    files = job.fill()
    with serving() as store:
        store.faults(fault(fault_at, "*/DocumentReference", "GET", bytes=10))
        job.send(store.url, timeout="1s")
        assert store.receive().files == files


@pytest.mark.parametrize("action", ["html-200", "status"])
def test_a_search_answered_without_result_ends_the_step_before_anything_is_created(
    job: TransferJob, action: str
) -> None:
    job.fill()
    with serving() as store:
        more = {"status": 200, "body": CANARY} if action == "status" else {}
        store.faults(fault(action, "*/DocumentReference", "GET", **more))
        with pytest.raises(ServiceError) as caught:
            job.send(store.url)
        assert store.writes() == []
    assert caught.value.reference == "transfer-answer"
    assert CANARY not in caught.value.render()
    assert job.state_files == set()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_url_or_wrong_credentials_are_found_before_the_zip_is_made(job: TransferJob, status: int) -> None:
    job.fill()
    with serving() as store:
        store.faults(fault("status", "*/DocumentReference", "GET", status=status))
        with pytest.raises(ServiceError):
            job.send(store.url)
    assert job.state_files == set()


@pytest.mark.parametrize("status", [400, 404, 405, 410, 501])
def test_a_server_that_cannot_say_whether_it_has_the_binary_gets_it(job: TransferJob, status: int) -> None:
    files = job.fill()
    with serving() as store:
        store.faults(fault("status", "*/Binary/*", "HEAD", status=status, times=None))
        for _ in range(2):
            job.send(store.url)
        assert store.receive().files == files
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}


def test_a_half_binary_under_the_same_id_is_sent_again(job: TransferJob, tmp_path: Path) -> None:
    files = job.fill()
    with serving() as store:
        first = job.send(store.url)
        store.http.put(f"/fhir/{first.details['binary']}", content=b"PK", headers={"Content-Type": "application/zip"})
        other = TransferJob(tmp_path / "other")
        other.fill()
        result = other.send(store.url)
        assert store.receive().files == files
    assert not result.details["already_there"]


def test_a_binary_that_somebody_removed_is_sent_again_by_the_same_job(job: TransferJob) -> None:
    files = job.fill()
    with serving() as store:
        first = job.send(store.url)
        store.http.delete(f"/fhir/{first.details['binary']}").raise_for_status()
        job.send(store.url)
        assert store.receive().files == files


@pytest.mark.parametrize("mode", MODES)
def test_a_token_that_expires_in_the_middle_of_the_upload_is_renewed(job: TransferJob, mode: str) -> None:
    files = job.fill()
    issuer = OAuthIssuer(IssuerSettings())
    asked = 0

    def accepts(token: str) -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:  # search, HEAD, and now the upload
            issuer.revoke_all()
        return issuer.accepts(token)

    with serve_in_thread(issuer.app) as served, serving(RequiredCredentials(accepts_token=accepts)) as store:
        auth = {
            "oauth_issuer_uri": served.url,
            "oauth_client_id": issuer.settings.client_id,
            "oauth_client_secret": issuer.settings.client_secret,
        }
        job.send(store.url, bounds=MODES[mode], auth=auth)
        statuses = [
            status for method, path, status in store.requests() if path.startswith("Binary") and method == "PUT"
        ]
        assert statuses == [401, 201]
        token = store.http.post(f"{served.url}/token", data={
            "grant_type": "client_credentials", "client_id": issuer.settings.client_id,
            "client_secret": issuer.settings.client_secret}).json()["access_token"]  # fmt: skip
        store.http.headers["Authorization"] = f"Bearer {token}"
        assert store.receive().files == files
    assert issuer.issued == 3


def test_an_upload_that_the_server_sends_back_is_not_read(job: TransferJob) -> None:
    """Some servers ignore ``Prefer: return=minimal``."""
    job.fill()

    def script(_: str, seen: SeenRequest, honest: Reply) -> Reply:
        return Reply(201, b"x" * 1000, length=1 << 40) if seen.method == "PUT" else honest

    with Endpoint(script) as server:
        job.send(server.url)
    assert [seen.method for seen in server.seen] == ["GET", "HEAD", "PUT", "HEAD", "GET", "PUT", "GET"]


def test_headers_are_those_that_hapi_wants(job: TransferJob) -> None:
    job.fill()

    with Endpoint() as server:
        job.send(server.url, bounds=MODES["raw"])
    search, look, upload, _, again, commit, _ = server.seen
    assert search.headers["cache-control"] == again.headers["cache-control"] == "no-cache"
    assert look.headers["accept"] == upload.headers["content-type"] == "application/zip"
    assert upload.headers["prefer"] == commit.headers["prefer"] == "return=minimal"
    assert commit.headers["content-type"] == "application/fhir+json"
    assert upload.headers["content-length"] == str(len(upload.body))


@pytest.mark.slow
def test_a_stop_during_the_upload_ends_the_step_within_seconds_and_can_be_continued(job: TransferJob) -> None:
    files = job.fill()
    with serving() as store:
        store.faults(fault("delay", PUTS[0], seconds=30))
        context = job.make_context(store.url)
        timer = threading.Timer(0.3, context.stop.request, ["SIGTERM"])
        timer.start()
        started = time.monotonic()
        with pytest.raises(Stopped):
            run(context, compare(context))
        timer.join()
        assert time.monotonic() - started < 10 + 0.3  # what 4-product.md §4 allows, from the moment it is asked to
        store.faults()
        job.send(store.url)
        assert store.receive().files == files


@pytest.mark.parametrize("status", [422, 507])
def test_nothing_of_a_person_is_outside_the_zip(
    job: TransferJob, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    line = json.dumps({"resourceType": "Patient", "id": CANARY, "name": [{"family": CANARY}]}).encode()
    (job.input / "a.ndjson.zst").write_bytes(zstandard.compress(line))
    caplog.set_level("DEBUG")
    auth = {"username": "u", "password": "canary-password-7f3a"}
    with serving() as store:
        store.faults(fault("status", PUTS[1], status=status, body=line.decode()))
        with pytest.raises(SluiceError) as caught:
            job.send(store.url, auth=auth)
        result = job.send(store.url, auth=auth)
    texts = [
        caught.value.render(),
        repr(caught.value),
        repr(result),
        caplog.text,
        repr(job.context and job.context.meter),
    ]
    texts += [path.read_text() for path in (job.directory / "send").iterdir() if path.is_file()]
    for text in texts:
        assert CANARY not in text
        assert "canary-password" not in text
