"""``transfer_load`` against a FHIR store, and the receiving process behind it (document 3 §7)."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks.send.step import run
from tasks.send.transfer.store import TransferBounds
from tasks.shared.errors import NetworkError, ServiceError, SluiceError
from tests.peers.server import Reply, SeenRequest
from tests.peers.services import as_json, searchset
from tests.peers.transfer import (
    NOON,
    ORGANIZATION,
    PROJECT,
    SYSTEM,
    Endpoint,
    TransferJob,
    serving,
)

RAW = TransferBounds(raw_above=0)


@pytest.fixture
def job(tmp_path: Path) -> TransferJob:
    return TransferJob(tmp_path)


@pytest.mark.parametrize("manners", ["hapi", "blaze"])
@pytest.mark.parametrize("bounds", [TransferBounds(), RAW], ids=["json", "raw"])
def test_the_search_of_the_receiving_process_finds_a_zip_that_equals_the_sources(
    job: TransferJob, tmp_path: Path, manners: str, bounds: TransferBounds
) -> None:
    files = job.fill()
    with serving(manners=manners) as store:
        result = job.send(store.url, bounds=bounds)
        received = store.receive()
    assert received.files == files
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    assert {entry["name"]: entry["sha256"] for entry in received.manifest} == digests
    assert result.bytes_out == len(received.archive)
    (tmp_path / "got.zip").write_bytes(received.archive)
    unzip = subprocess.run(["unzip", "-t", str(tmp_path / "got.zip")], capture_output=True, check=False)
    assert unzip.returncode == 0, unzip.stdout


def test_the_binary_comes_first_and_the_document_last_as_the_commit(job: TransferJob) -> None:
    job.fill()
    with serving() as store:
        job.send(store.url)
        assert store.writes() == [("PUT", "Binary"), ("PUT", "DocumentReference")]
        assert store.requests()[0] == ("GET", "DocumentReference", 200)


def test_the_document_has_the_fields_of_the_contract(job: TransferJob) -> None:
    job.fill()
    with serving() as store:
        job.send(store.url)
        received = store.receive()
    document, attachment = received.document, received.attachment
    assert document["masterIdentifier"] == {"system": SYSTEM, "value": PROJECT}
    assert (document["status"], document["docStatus"]) == ("current", "final")
    identifier = {"system": "http://dsf.dev/sid/organization-identifier", "value": ORGANIZATION}
    assert document["author"] == [{"type": "Organization", "identifier": identifier}]
    assert document["date"] == "2026-03-02T12:00:00+00:00"
    assert len(document["content"]) == 1
    assert attachment.keys() == {"contentType", "url", "title", "size", "hash"}
    assert attachment["contentType"] == "application/zip"
    assert attachment["url"].startswith("Binary/")


@pytest.mark.slow
@pytest.mark.parametrize(("bounds", "kind"), [(TransferBounds(), "json"), (RAW, "zip")], ids=["json", "raw"])
def test_above_the_bound_the_zip_goes_as_raw_bytes_and_below_as_base64_in_json(
    job: TransferJob, bounds: TransferBounds, kind: str
) -> None:
    job.fill()
    with serving() as store:
        job.send(store.url, bounds=bounds)
        received = store.receive()
        document = store.http.get(f"/fhir/{received.attachment['url']}", headers={"Accept": "application/fhir+json"})
        stored_as_json = store.state()[0].startswith(b'{"resourceType":"Binary"')
    assert stored_as_json == (kind == "json")
    assert document.json()["contentType"] == "application/zip"
    assert TransferBounds().raw_above == 64 * 1024 * 1024


def test_the_timeout_of_an_upload_grows_with_its_size() -> None:
    bounds = TransferBounds()
    assert bounds.upload_timeout(300, 0) == 300
    assert bounds.upload_timeout(300, 1 << 30) == 300 + 4096


@pytest.mark.parametrize("bounds", [TransferBounds(), RAW], ids=["json", "raw"])
def test_a_second_send_leaves_the_target_as_after_the_first(
    job: TransferJob, tmp_path: Path, bounds: TransferBounds
) -> None:
    job.fill()
    with serving() as store:
        first = job.send(store.url, bounds=bounds)
        state = store.state()
        other = TransferJob(tmp_path / "other")
        other.fill()
        second = other.send(store.url, bounds=bounds, now=NOON + timedelta(days=1))
        assert store.state() == state
    assert (first.details["already_there"], second.details["already_there"]) == (False, True)
    assert (second.bytes_out, second.lines_in) == (first.bytes_out, first.lines_in)


def test_new_data_of_a_project_replace_its_binary_and_its_document(job: TransferJob, tmp_path: Path) -> None:
    job.fill()
    with serving() as store:
        before = job.send(store.url)
        store.forget_requests()
        other = TransferJob(tmp_path / "other")
        files = other.fill(patients=3)
        result = other.send(store.url)
        assert store.writes() == [("PUT", "Binary"), ("PUT", "DocumentReference")]
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}
        assert store.receive().files == files
    assert [result.details[name] for name in ("document", "binary")] == [
        before.details[name] for name in ("document", "binary")
    ]
    assert result.warnings == ()


def test_a_document_that_is_there_already_keeps_its_id(job: TransferJob) -> None:
    files = job.fill()
    with serving() as store:
        store.put(
            "DocumentReference", "theirs", status="current", masterIdentifier={"system": SYSTEM, "value": PROJECT}
        )
        result = job.send(store.url)
        assert store.receive().files == files
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}
    assert result.details["document"] == "DocumentReference/theirs"


def test_more_than_one_hit_is_a_warning_and_the_first_one_is_replaced(job: TransferJob) -> None:
    files = job.fill()
    with serving() as store:
        for name in ("b", "a", "c"):
            identifier = {"system": SYSTEM, "value": PROJECT}
            content = [{"attachment": {"url": "Binary/shared"}}]
            store.put("DocumentReference", name, status="current", masterIdentifier=identifier, content=content)
        result = job.send(store.url)
        assert store.receive().files == files
        assert store.counts() == {"Binary": 1, "DocumentReference": 3}
        assert not any(method == "DELETE" for method, _, _ in store.requests())
    assert "3 DocumentReferences" in result.warnings[0]


def test_a_document_of_another_organization_is_replaced_with_a_warning(job: TransferJob, tmp_path: Path) -> None:
    other = TransferJob(tmp_path / "other")
    other.fill(patients=2)
    files = job.fill()
    with serving() as store:
        other.send(store.url, organization="other.example.org")
        result = job.send(store.url)
        assert store.counts() == {"Binary": 2, "DocumentReference": 1}
        assert store.receive().files == files
    assert any("did not name this organization" in text for text in result.warnings)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_that_cannot_say_whether_it_has_the_binary_gets_it(job: TransferJob, status: int) -> None:
    files = job.fill()
    with serving() as store:
        store.faults({"action": "status", "method": "HEAD", "path": "*/Binary/*", "status": status, "times": None})
        for _ in range(2):
            job.send(store.url)
        assert store.receive().files == files


def test_a_binary_that_another_job_replaced_is_sent_again(job: TransferJob) -> None:
    files = job.fill()
    with serving() as store:
        first = job.send(store.url)
        store.http.put(f"/fhir/{first.details['binary']}", content=b"PK", headers={"Content-Type": "application/zip"})
        result = job.send(store.url)
        assert store.receive().files == files
    assert not result.details["already_there"]


def test_tables_of_the_flattening_step_are_sent_as_they_are(tmp_path: Path) -> None:
    job = TransferJob(tmp_path, "csv")
    job.write("Diagnosen.csv", b'id,text\n1,"a\nb"\n')
    job.write("Größe.csv", b"id\n")
    job.write("Labor.csv.partial", b"half")
    with serving() as store:
        result = job.send(store.url)
        received = store.receive()
    assert received.files == {"Diagnosen.csv": b'id,text\n1,"a\nb"\n', "Größe.csv": b"id\n"}
    assert (result.files, result.lines_in, result.resources_in) == (2, None, None)


def test_the_result_counts_lines_as_the_step_before_does(job: TransferJob) -> None:
    job.fill(patients=20)
    job.write("blank.ndjson", b'\n{"resourceType":"Patient","id":"x"}\n \r\n\n{"resourceType":"Patient","id":"y"}')
    with serving() as store:
        result = job.send(store.url)
    assert (result.files, result.lines_in) == (3, 23)
    assert result.output is None


def test_the_zip_of_a_run_that_failed_is_used_and_removed_at_the_end(job: TransferJob) -> None:
    files = job.fill()
    fault = {"action": "status", "method": "PUT", "path": "*/Binary/*", "status": 503, "times": None}
    with serving() as store:
        store.faults(fault)
        with pytest.raises(SluiceError):
            job.send(store.url)
        (name,) = job.state_files
        before = (job.directory / "send" / name).stat()
        store.faults(fault)
        with pytest.raises(SluiceError):
            job.send(store.url)
        after = (job.directory / "send" / name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        assert stat.S_IMODE(after.st_mode) == 0o600
        store.faults()
        job.send(store.url)
        assert store.receive().files == files
    assert job.state_files == set()


@pytest.mark.parametrize(
    ("status", "reference", "hint"), [(413, "transfer-too-large", "raise"), (507, "transfer-store-full", "space")]
)
def test_too_large_and_full_say_what_to_do_on_the_server(
    job: TransferJob, status: int, reference: str, hint: str
) -> None:
    job.fill()
    with serving() as store:
        store.faults({"action": "status", "method": "PUT", "path": "*/Binary/*", "status": status})
        with pytest.raises(ServiceError) as caught:
            job.send(store.url)
    assert (caught.value.reference, caught.value.status, caught.value.exit_code) == (reference, status, 1)
    assert hint in (caught.value.hint or "")


def test_a_connection_that_breaks_every_time_points_to_limits_of_proxies(job: TransferJob) -> None:
    job.fill()
    with serving() as store:
        store.faults({"action": "reset", "method": "PUT", "path": "*/Binary/*", "times": None})
        with pytest.raises(NetworkError) as caught:
            job.send(store.url)
    assert "proxy" in (caught.value.hint or "")


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [TransferBounds(), RAW], ids=["json", "raw"])
def test_a_body_limit_that_answers_before_the_upload_ended_is_understood(
    job: TransferJob, bounds: TransferBounds
) -> None:
    job.write("random.csv", os.urandom(6_000_000))
    with serving(max_body=1_000_000) as store, pytest.raises(ServiceError) as caught:
        job.send(store.url, bounds=bounds)
    assert caught.value.reference == "transfer-too-large"


def test_an_upload_that_the_server_sends_back_is_not_read(job: TransferJob) -> None:
    """Some servers ignore ``Prefer: return=minimal``."""
    job.fill()

    def script(_: str, seen: SeenRequest, honest: Reply) -> Reply:
        return Reply(201, b"x" * 1000, length=1 << 40) if seen.method == "PUT" else honest

    with Endpoint(script) as server:
        job.send(server.url)
    assert [seen.method for seen in server.seen] == ["GET", "PUT", "PUT", "GET"]


FOREIGN = {
    "resourceType": "DocumentReference",
    "id": "theirs",
    "masterIdentifier": {"system": SYSTEM, "value": "Other"},
}
WRONG_SEARCHES: dict[str, Callable[[list[dict[str, Any]]], Reply]] = {
    "a login page": lambda _: Reply(200, b"<html>canary</html>", {"Content-Type": "text/html"}),
    "202": lambda found: replace(searchset(*found), status=202),
    "an OperationOutcome": lambda _: as_json({"resourceType": "OperationOutcome", "issue": []}),
    "a document without an id": lambda _: searchset({"resourceType": "DocumentReference"}),
    "documents of another project": lambda found: searchset(FOREIGN, *found),
}


@pytest.mark.parametrize("name", WRONG_SEARCHES)
def test_a_search_that_is_answered_wrongly_ends_the_step_before_anything_is_written(
    job: TransferJob, name: str
) -> None:
    job.fill()
    with Endpoint(lambda *_: WRONG_SEARCHES[name]([])) as server, pytest.raises(ServiceError) as caught:
        job.send(server.url)
    assert caught.value.reference == "transfer-answer"
    assert "canary" not in caught.value.render()
    assert server.moments == ["search"]
    assert job.state_files == set()


@pytest.mark.parametrize("how", ["nothing", "another first", "another hash"])
def test_a_document_that_is_not_found_afterwards_is_an_error(job: TransferJob, how: str) -> None:
    job.fill()

    def script(moment: str, _seen: SeenRequest, _honest: Reply) -> Reply | None:
        if moment != "search again":
            return None
        (found,) = server.documents
        other = {**found, "id": "other", "content": [{"attachment": {"hash": "AAAA"}}]}
        documents = {"nothing": [], "another first": [other, found], "another hash": [other | {"id": found["id"]}]}
        return searchset(*documents[how])

    with Endpoint(script) as server, pytest.raises(ServiceError) as caught:
        job.send(server.url)
    assert caught.value.reference == "transfer-differs"


def test_the_send_step_runs_it(job: TransferJob) -> None:
    files = job.fill()
    with serving() as store:
        run(job.make_context(store.url))
        assert store.receive().files == files
