"""``transfer_load`` against a FHIR store, and the receiving process behind it (document 3 §7)."""

from __future__ import annotations

import hashlib
import stat
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from tasks.send.step import run
from tasks.send.transfer.store import TransferBounds
from tasks.shared.step import reconcile
from tests.peers.transfer import NOON, ORGANIZATION, PROJECT, SYSTEM, TransferJob, serving

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
@pytest.mark.parametrize("same_job", [True, False])
def test_a_second_send_leaves_the_target_as_after_the_first(
    job: TransferJob, tmp_path: Path, bounds: TransferBounds, same_job: bool
) -> None:
    job.fill()
    with serving() as store:
        first = job.send(store.url, bounds=bounds)
        state, writes = store.state(), store.writes()
        other = job if same_job else TransferJob(tmp_path / "other")
        other.fill()
        second = other.send(store.url, bounds=bounds, now=NOON + timedelta(days=1))
        assert store.writes() == writes
        assert store.state() == state
        etag = store.http.get(f"/fhir/{store.receive().attachment['url']}").headers["etag"]
    assert etag == 'W/"1"'
    assert second.details["already_there"]
    assert not first.details["already_there"]
    assert (second.bytes_out, second.lines_in) == (first.bytes_out, first.lines_in)


def test_new_data_of_a_project_replace_its_document_and_then_the_old_binary_goes(
    job: TransferJob, tmp_path: Path
) -> None:
    job.fill()
    with serving() as store:
        before = job.send(store.url)
        store.forget_requests()
        other = TransferJob(tmp_path / "other")
        files = other.fill(patients=3)
        result = other.send(store.url)
        assert store.writes() == [("PUT", "Binary"), ("PUT", "DocumentReference"), ("DELETE", "Binary")]
        assert store.requests()[-1] == ("DELETE", before.details["binary"], 204)
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}
        assert store.receive().files == files
    assert result.details["document"] == before.details["document"]
    assert result.details["removed_binaries"] == 1
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


def test_a_document_of_another_organization_is_replaced_and_its_binary_stays(job: TransferJob, tmp_path: Path) -> None:
    other = TransferJob(tmp_path / "other")
    other.fill(patients=2)
    job.fill()
    with serving() as store:
        other.send(store.url, organization="other.example.org")
        result = job.send(store.url)
        assert store.counts() == {"Binary": 2, "DocumentReference": 1}
    assert any("did not name this organization" in text for text in result.warnings)


def test_a_binary_that_another_document_points_to_is_not_removed(job: TransferJob, tmp_path: Path) -> None:
    job.fill()
    with serving() as store:
        before = job.send(store.url)
        content = [{"attachment": {"url": f"{store.url}/fhir/{before.details['binary']}"}}]
        identifier = {"system": SYSTEM, "value": PROJECT}
        store.put("DocumentReference", "z", status="current", masterIdentifier=identifier, content=content)
        other = TransferJob(tmp_path / "other")
        other.fill(patients=2)
        other.send(store.url)
        assert store.counts()["Binary"] == 2


def test_an_old_binary_that_cannot_be_removed_is_a_warning_and_goes_at_the_next_run(
    job: TransferJob, tmp_path: Path
) -> None:
    job.fill()
    other = TransferJob(tmp_path / "other")
    other.fill(patients=2)
    with serving() as store:
        job.send(store.url)
        store.faults({"action": "status", "status": 500, "method": "DELETE", "times": 1})
        result = other.send(store.url)
        assert "could not be removed" in result.warnings[0]
        assert store.counts()["Binary"] == 2
        again = other.send(store.url)
        assert store.counts()["Binary"] == 1
    assert again.warnings == ()
    assert again.details["removed_binaries"] == 1


def test_the_old_binary_stands_until_the_new_document_does(job: TransferJob, tmp_path: Path) -> None:
    files = job.fill()
    other = TransferJob(tmp_path / "other")
    other.fill(patients=2)
    with serving() as store:
        job.send(store.url)
        store.faults({"action": "status", "status": 422, "method": "PUT", "path": "*/DocumentReference/*"})
        with pytest.raises(Exception, match="422"):
            other.send(store.url)
        assert store.receive().files == files
        other.send(store.url)
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}


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
    with serving() as store:
        result = job.send(store.url)
    assert (result.files, result.lines_in, result.resources_in, result.resources_out) == (2, 21, 21, 21)
    reconcile(job.context, result)
    assert result.output is None


def test_afterwards_the_job_directory_holds_only_the_journal_readable_by_its_owner(job: TransferJob) -> None:
    job.fill()
    with serving() as store:
        job.send(store.url)
    assert job.state_files == {"transfer.json"}
    assert stat.S_IMODE((job.directory / "send" / "transfer.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((job.directory / "send").stat().st_mode) == 0o700


def test_the_send_step_runs_it(job: TransferJob) -> None:
    files = job.fill()
    with serving() as store:
        run(job.make_context(store.url))
        assert store.receive().files == files
