"""``transfer_load`` against a FHIR store, and the receiving process behind it (docs/services.md)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import stat
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
import zstandard

from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.serve import serve_in_thread
from tasks.send.step import STEP
from tasks.shared.errors import DataError, NetworkError, ServiceError, SluiceError
from tasks.shared.report import StepReport
from tests.peers.server import Reply, ScriptedServer
from tests.peers.services import FhirDouble, as_json, searchset
from tests.tasks.send.place import SendJob

SYSTEM = "http://medizininformatik-initiative.de/sid/project-identifier"
PROJECT, ORGANIZATION = "Test_PROJECT-1", "dic.example.org"
LINE = b'{"resourceType":"Patient","id":"p%d","extension":[{"valueDecimal":1.50}]}\n'


class TransferJob(SendJob):
    """A job whose files are handed over."""

    def fill(self, patients: int = 20) -> dict[str, bytes]:
        """Write NDJSON in both forms; return what the receiver must find."""
        core = b'{"resourceType":"Organization","id":"o","name":"Klinik"}\n'
        files = {"core.ndjson": core, "batch-1.ndjson": b"".join(LINE % n for n in range(patients))}
        self.put("core.ndjson", core)
        self.put("batch-1.ndjson.zst", zstandard.compress(files["batch-1.ndjson"]))
        return files

    def send(self, url: str, *, project: str = PROJECT, organization: str = ORGANIZATION) -> StepReport:
        transfer = {"project_identifier": project, "organization_identifier": organization}
        return STEP.run(self.prepare(self.configuration("transfer_load", url, transfer=transfer)))

    @property
    def state_files(self) -> set[str]:
        return {path.name for path in (self.directory / "send").iterdir()} - {"failed"}


@dataclass
class Received:
    """Result of the receiving process."""

    document: dict[str, Any]
    archive: bytes = field(repr=False)

    @property
    def attachment(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["content"][0]["attachment"]
        return found

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the zip without the manifest."""
        with zipfile.ZipFile(io.BytesIO(self.archive)) as zipped:
            assert zipped.testzip() is None
            return {name: zipped.read(name) for name in zipped.namelist() if name != "manifest.json"}


def receive(url: str) -> Received:
    """Receive as the real process does: first hit, first attachment, its Binary, a zip that matches it."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
        found = http.get("/fhir/DocumentReference", params={"identifier": f"{SYSTEM}|{PROJECT}"}).json()
        document = found["entry"][0]["resource"]
        attachment = document["content"][0]["attachment"]
        answer = http.get(f"/fhir/{attachment['url']}", headers={"Accept": attachment["contentType"]})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
    assert attachment["size"] == len(answer.content)
    assert base64.b64decode(attachment["hash"]) == hashlib.sha1(answer.content).digest()
    return Received(document, answer.content)


@pytest.fixture
def job(tmp_path: Path) -> TransferJob:
    return TransferJob(tmp_path / "job")


@pytest.fixture(params=["json", "raw"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """In which form the Binary goes, whatever its size."""
    if request.param == "raw":
        monkeypatch.setattr("tasks.send.transfer.RAW_ABOVE", 0)
    return str(request.param)


@contextmanager
def sandbox(max_body: int | None = None, **options: Any) -> Iterator[str]:
    service = fhir_service(**options)
    service.max_body = max_body
    with serve_in_thread(service) as served:
        yield served.url


@pytest.fixture
def store() -> Iterator[ScriptedServer]:
    with ScriptedServer(FhirDouble()) as server:
        yield server


def put(server: ScriptedServer, identity: str, **more: Any) -> None:
    """Store a DocumentReference of somebody else."""
    document = {"resourceType": "DocumentReference", "id": identity, "status": "current"}
    document |= {"masterIdentifier": {"system": SYSTEM, "value": PROJECT}} | more
    server.answer.resources[f"DocumentReference/{identity}"] = json.dumps(document).encode()


def writes(server: ScriptedServer) -> list[str]:
    return [seen.target.split("/")[2] for seen in server.seen if seen.method == "PUT"]


@pytest.mark.parametrize("manners", ["hapi", "blaze"])
def test_the_receiving_process_finds_a_zip_that_equals_the_sources(job: TransferJob, form: str, manners: str) -> None:
    files = job.fill()
    with sandbox(manners=manners) as url:
        result = job.send(url)
        received = receive(url)
    assert received.files == files
    assert result.bytes_out == len(received.archive)
    document, attachment = received.document, received.attachment
    assert document["masterIdentifier"] == {"system": SYSTEM, "value": PROJECT}
    assert (document["status"], document["docStatus"]) == ("current", "final")
    identifier = {"system": "http://dsf.dev/sid/organization-identifier", "value": ORGANIZATION}
    assert document["author"] == [{"type": "Organization", "identifier": identifier}]
    assert document["date"].endswith(("Z", "+00:00"))
    assert attachment.keys() == {"contentType", "url", "title", "size", "hash"}
    assert (attachment["contentType"], attachment["url"][:7]) == ("application/zip", "Binary/")


def test_the_search_comes_first_then_the_binary_and_the_document_last(
    job: TransferJob, store: ScriptedServer, form: str
) -> None:
    job.fill()
    job.send(store.url)
    assert [seen.method for seen in store.seen] == ["GET", "PUT", "PUT"]
    assert writes(store) == ["Binary", "DocumentReference"]
    assert store.seen[1].headers["content-type"] == f"application/{'fhir+json' if form == 'json' else 'zip'}"
    assert store.seen[1].headers["content-length"] == str(len(store.seen[1].body))
    ids = [seen.target.rpartition("/")[2] for seen in store.seen[1:]]
    assert [uuid.UUID(one).version for one in ids] == [5, 5]
    assert ids[1] != ids[0]


@pytest.mark.slow
def test_above_64_mib_the_binary_goes_as_it_is(job: TransferJob, store: ScriptedServer) -> None:
    job.put("random.csv", os.urandom(64 << 20))
    job.send(store.url)
    assert store.seen[1].headers["content-type"] == "application/zip"


def test_ids_are_those_of_project_and_organization(tmp_path: Path, store: ScriptedServer) -> None:
    found = []
    for number, (project, organization) in enumerate([("P", "o"), ("P", "o2"), ("P2", "o"), ("P", "o")]):
        job = TransferJob(tmp_path / str(number))
        job.fill(number + 1)
        store.answer.resources.clear()
        details = job.send(store.url, project=project, organization=organization).details
        found.append((details["document"], details["binary"]))
    assert len({one for pair in found for one in pair}) == 6
    assert found[0] == found[3]
    assert found[0][0] == "DocumentReference/bccf374c-a616-55d8-a13c-ca1814aba4e5"


@pytest.mark.parametrize(("project", "value"), [("A & B", "A & B"), ("a,b|c$d\\e", r"a\,b\|c\$d\\e")])
def test_the_search_is_that_of_the_receiving_process(
    job: TransferJob, store: ScriptedServer, project: str, value: str
) -> None:
    job.fill()
    job.send(store.url, project=project)
    query = parse_qs(urlsplit(store.seen[0].target).query, strict_parsing=True)
    assert query == {"identifier": [f"{SYSTEM}|{value}"]}


def test_a_second_send_changes_nothing_and_new_data_replace_the_old_ones(
    tmp_path: Path, job: TransferJob, store: ScriptedServer
) -> None:
    job.fill()
    first = job.send(store.url)
    state = dict(store.answer.resources)
    again = TransferJob(tmp_path / "again")
    again.fill()
    second = again.send(store.url)
    assert store.answer.resources == state
    assert (first.details["already_there"], second.details["already_there"]) == (False, True)
    other = TransferJob(tmp_path / "other")
    files = other.fill(patients=3)
    result = other.send(store.url)
    assert store.answer.resources.keys() == state.keys()
    assert receive(store.url).files == files
    assert result.warnings == ()


def test_more_than_one_hit_is_a_warning_and_the_first_one_keeps_its_id(job: TransferJob, store: ScriptedServer) -> None:
    files = job.fill()
    for name in ("b", "a", "c"):
        put(store, name, content=[{"attachment": {"url": "Binary/shared"}}])
    result = job.send(store.url)
    assert result.details["document"] == "DocumentReference/b"
    assert receive(store.url).files == files
    assert "3 DocumentReferences" in result.warnings[0]
    assert len(store.answer.resources) == 4


def test_tables_are_sent_as_they_are(tmp_path: Path, store: ScriptedServer) -> None:
    job = TransferJob(tmp_path, "csv")
    tables = {"Diagnosen.csv": b'id,text\n1,"a\nb"\n', "Größe.csv": b"id\n"}
    for name, content in tables.items():
        job.put(name, content)
    job.put("Labor.csv.partial", b"half")
    result = job.send(store.url)
    assert receive(store.url).files == tables
    assert result.files == 2


# The zip


def zipped(tmp_path: Path, store: ScriptedServer, files: dict[str, bytes], *, compress: bool = False) -> bytes:
    job = TransferJob(tmp_path)
    for name, content in files.items():
        job.put(f"{name}.zst" if compress else name, zstandard.compress(content) if compress else content)
    store.answer.resources.clear()
    job.send(store.url)
    return receive(store.url).archive


def test_the_same_contents_give_the_same_bytes_however_they_are_stored(tmp_path: Path, store: ScriptedServer) -> None:
    files = {f"{name}.ndjson": LINE % n for n, name in enumerate("bacd")} | {"sub/x.csv": b"a,b\n1,2\n"}
    one = zipped(tmp_path / "1", store, files)
    other = zipped(tmp_path / "2", store, dict(reversed(files.items())), compress=True)
    assert one == other


def test_names_are_plain_and_sorted_and_the_manifest_is_last(tmp_path: Path, store: ScriptedServer) -> None:
    files = {"b.ndjson": LINE % 1 + b"\n" + LINE % 2, "ä.csv": b'x\n"y\nz"', "B.ndjson": LINE % 2}
    with zipfile.ZipFile(io.BytesIO(zipped(tmp_path, store, files, compress=True))) as found:
        assert found.namelist() == ["B.ndjson", "b.ndjson", "ä.csv", "manifest.json"]
        for info in found.infolist():
            assert (info.date_time, info.compress_type) == ((1980, 1, 1, 0, 0, 0), zipfile.ZIP_DEFLATED)
            assert (info.external_attr >> 16, info.create_system) == (stat.S_IFREG | 0o600, 3)
            assert not info.flag_bits & 0x08, "sizes stand before the data, not behind them"
        listed = json.loads(found.read("manifest.json"))["files"]
    assert [(one["name"], one["lines"]) for one in listed] == [("B.ndjson", 1), ("b.ndjson", 2), ("ä.csv", 3)]
    for one in listed:
        content = files[one["name"]]
        assert (one["size"], one["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("names", [("a.ndjson", "a.ndjson.zst"), ("manifest.json",)])
def test_two_files_with_one_name_in_the_zip_are_an_error(
    job: TransferJob, store: ScriptedServer, names: tuple[str, ...]
) -> None:
    for name in names:
        job.put(name, b"x\n")
    with pytest.raises(DataError) as caught:
        job.send(store.url)
    assert (caught.value.reference, store.seen) == ("name-clash", [])


def test_a_truncated_zst_leaves_no_zip(job: TransferJob, store: ScriptedServer) -> None:
    job.put("a.ndjson.zst", zstandard.compress(LINE % 1 * 1000)[:-5])
    with pytest.raises(SluiceError) as caught:
        job.send(store.url)
    assert caught.value.reference == "zst-truncated"
    assert job.state_files == set()


def test_the_zip_of_a_run_that_failed_is_used_and_removed_at_the_end(job: TransferJob, store: ScriptedServer) -> None:
    files, found = job.fill(), []
    store.script = lambda seen: Reply(503) if seen.method == "PUT" else None
    for _ in range(2):
        with pytest.raises(SluiceError):
            job.send(store.url)
        (name,) = job.state_files
        found.append((job.directory / "send" / name).stat())
    assert (found[0].st_ino, found[0].st_mtime_ns) == (found[1].st_ino, found[1].st_mtime_ns)
    assert stat.S_IMODE(found[0].st_mode) == 0o600
    store.script = None
    job.send(store.url)
    assert receive(store.url).files == files
    assert job.state_files == set()


# Errors


def test_a_larger_upload_may_take_longer(job: TransferJob, store: ScriptedServer) -> None:
    job.put("core.ndjson", b'{"resourceType":"Basic","x":"%s"}' % os.urandom(500_000).hex().encode())
    store.script = lambda seen: time.sleep(0.5) if "/Binary/" in seen.target else None  # type: ignore[func-returns-value]
    transfer = {"project_identifier": PROJECT, "organization_identifier": ORGANIZATION}
    config = job.configuration("transfer_load", store.url, attempts=1, timeout="250ms", transfer=transfer)
    assert STEP.run(job.prepare(config)).files == 1


def test_a_conflict_of_two_writers_passes(job: TransferJob, store: ScriptedServer) -> None:
    files, conflicts = job.fill(), [Reply(409)]
    store.script = lambda seen: conflicts.pop() if seen.method == "PUT" and conflicts else None
    job.send(store.url)
    assert receive(store.url).files == files


@pytest.mark.parametrize(
    ("reply", "reference", "hint"),
    [
        (Reply(413), "transfer-too-large", "raise"),
        (Reply(507), "transfer-store-full", "space"),
        (Reply(reset=True), "connection-broken", "proxy"),
    ],
)
def test_an_upload_that_is_not_taken_says_what_to_do(
    job: TransferJob, store: ScriptedServer, reply: Reply, reference: str, hint: str
) -> None:
    job.fill()
    store.script = lambda seen: reply if "/Binary/" in seen.target else None
    with pytest.raises(ServiceError if reply.status > 400 else NetworkError) as caught:
        job.send(store.url)
    assert caught.value.reference == reference
    assert hint in (caught.value.hint or "")


@pytest.mark.slow
def test_a_body_limit_that_answers_before_the_upload_ended_is_understood(job: TransferJob, form: str) -> None:
    job.put("random.csv", os.urandom(6_000_000))
    with sandbox(max_body=1_000_000) as url, pytest.raises(ServiceError) as caught:
        job.send(url)
    assert caught.value.reference == "transfer-too-large"


FOREIGN = {
    "resourceType": "DocumentReference",
    "id": "theirs",
    "masterIdentifier": {"system": SYSTEM, "value": "Other"},
}
WRONG_SEARCHES: dict[str, Callable[[], Reply]] = {
    "a login page": lambda: Reply(200, b"<html>canary</html>", {"Content-Type": "text/html"}),
    "202": lambda: replace(searchset(), status=202),
    "an OperationOutcome": lambda: as_json({"resourceType": "OperationOutcome", "issue": []}),
    "a document without an id": lambda: searchset({"resourceType": "DocumentReference"}),
    "documents of another project": lambda: searchset(FOREIGN),
}


@pytest.mark.parametrize("name", WRONG_SEARCHES)
def test_a_search_that_is_answered_wrongly_ends_the_step_before_anything_is_written(
    job: TransferJob, store: ScriptedServer, name: str
) -> None:
    job.fill()
    store.script = lambda _: WRONG_SEARCHES[name]()
    with pytest.raises(ServiceError) as caught:
        job.send(store.url)
    assert caught.value.reference == "transfer-answer"
    assert "canary" not in caught.value.render()
    assert len(store.seen) == 1
    assert job.state_files == set()
