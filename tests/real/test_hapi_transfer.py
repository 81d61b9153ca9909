"""Transfer to HAPI's JPA server (document 3 §7, "transfer_load"), read as the receiving process reads it."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.send.comparison import compare
from tasks.send.transfer import transfer
from tasks.send.transfer.store import TransferBounds
from tasks.shared.report import StepReport
from tests.real.conftest import Measure
from tests.real.hapi_server import Hapi
from tests.real.job import job, observation, write
from tests.real.victim import killed_while_sending

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PROJECT = "http://medizininformatik-initiative.de/sid/project-identifier"
ORGANIZATION = "http://dsf.dev/sid/organization-identifier"


def send(hapi: Hapi, directory: Path, project: str, **options: Any) -> StepReport:
    identifiers = {"project_identifier": project, "organization_identifier": "hospital.test"}
    services = {"send": {"send_as": "transfer_load", "url": hapi.url, "transfer": identifiers}}
    context = job(directory, services)
    return transfer.run(context, compare(context), **options)


def found(hapi: Hapi, project: str) -> list[dict[str, Any]]:
    """Return the results of the receiving process's search."""
    answer = hapi.get(str(httpx.URL("DocumentReference", params={"identifier": f"{PROJECT}|{project}"})))
    return [entry["resource"] for entry in answer.raise_for_status().json().get("entry", [])]


def attachment(document: dict[str, Any]) -> dict[str, Any]:
    (content,) = document["content"]
    held: dict[str, Any] = content["attachment"]
    return held


def download(hapi: Hapi, document: dict[str, Any]) -> bytes:
    return hapi.get(attachment(document)["url"], attachment(document)["contentType"]).raise_for_status().content


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """Return a project identifier of the test's own."""
    return f"project-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}"


@pytest.mark.parametrize("raw", [False, True], ids=["base64 in json", "raw bytes"])
def test_the_receiving_process_finds_the_document_and_its_zip(
    hapi: Hapi, tmp_path: Path, project: str, raw: bool, figure: Measure
) -> None:
    source = write(tmp_path, "a.ndjson", *(observation(f"o{number}") for number in range(3000)))
    bounds = TransferBounds(raw_above=0) if raw else None
    result = figure(
        "hapi", f"a transfer, {'raw bytes' if raw else 'Base64 in JSON'}",
        lambda: send(hapi, tmp_path, project, bounds=bounds),
    )  # fmt: skip
    assert result.warnings == ()
    (document,) = found(hapi, project)
    assert document["masterIdentifier"] == {"system": PROJECT, "value": project}
    assert (document["status"], document["docStatus"]) == ("current", "final")
    assert document["author"] == [
        {"type": "Organization", "identifier": {"system": ORGANIZATION, "value": "hospital.test"}}
    ]
    assert attachment(document)["contentType"] == "application/zip"
    data = download(hapi, document)
    assert attachment(document)["size"] == len(data)
    assert attachment(document)["hash"] == base64.b64encode(hashlib.sha1(data).digest()).decode()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert archive.read("a.ndjson") == source.read_bytes()


def test_a_second_transfer_of_the_same_data_changes_nothing(hapi: Hapi, tmp_path: Path, project: str) -> None:
    for run in ("first", "second"):
        write(tmp_path / run, "a.ndjson", observation("o"))
        send(hapi, tmp_path / run, project)
    (document,) = found(hapi, project)
    assert document["meta"]["versionId"] == "1"
    assert hapi.version(attachment(document)["url"]) == "1"


def test_other_data_replace_the_earlier_ones_and_the_old_binary_is_removed(
    hapi: Hapi, tmp_path: Path, project: str
) -> None:
    write(tmp_path / "first", "a.ndjson", observation("old"))
    send(hapi, tmp_path / "first", project)
    (before,) = found(hapi, project)
    write(tmp_path / "second", "a.ndjson", observation("new"))
    send(hapi, tmp_path / "second", project)
    (after,) = found(hapi, project)
    assert after["id"] == before["id"]
    assert attachment(after)["url"] != attachment(before)["url"]
    assert b"new" in zipfile.ZipFile(io.BytesIO(download(hapi, after))).read("a.ndjson")
    assert hapi.get(attachment(before)["url"]).status_code == 410


def test_a_document_that_was_there_before_keeps_its_id(hapi: Hapi, tmp_path: Path, project: str) -> None:
    old = {
        "resourceType": "DocumentReference",
        "id": f"old-{project}",
        "status": "current",
        "masterIdentifier": {"system": PROJECT, "value": project},
        "content": [{"attachment": {"title": "made up"}}],
    }
    hapi.put(old)
    write(tmp_path, "a.ndjson", observation("o"))
    send(hapi, tmp_path, project)
    (document,) = found(hapi, project)
    assert document["id"] == old["id"]
    assert download(hapi, document).startswith(b"PK")


def test_more_than_one_document_of_a_project_is_a_warning(hapi: Hapi, tmp_path: Path, project: str) -> None:
    for number in (1, 2):
        old = {
            "resourceType": "DocumentReference",
            "id": f"old-{number}-{project}",
            "status": "current",
            "identifier": [{"system": PROJECT, "value": project}],
            "content": [{"attachment": {"title": "made up"}}],
        }
        hapi.put(old)
    first = found(hapi, project)[0]["id"]
    write(tmp_path, "a.ndjson", observation("o"))
    assert send(hapi, tmp_path, project).warnings != ()
    assert hapi.version(f"DocumentReference/{first}") == "2"


def test_a_project_identifier_with_separators_is_found_by_the_search(hapi: Hapi, tmp_path: Path, project: str) -> None:
    awkward = f"{project} a&b,c"
    write(tmp_path, "a.ndjson", observation("o"))
    for _ in range(2):
        send(hapi, tmp_path, awkward)
    documents = found(hapi, awkward.replace(",", "\\,"))
    assert len(documents) == 1


@pytest.mark.parametrize("moments", [3])
def test_killed_at_random_moments_and_continued_one_document_and_one_zip_are_there(
    hapi: Hapi, tmp_path: Path, project: str, moments: int
) -> None:
    source = write(
        tmp_path,
        "a.ndjson",
        *(observation(f"o{number}", code={"text": f"{number:x}" * 40}) for number in range(20_000)),
    )
    identifiers = {"project_identifier": project, "organization_identifier": "hospital.test"}
    service = {"send_as": "transfer_load", "url": hapi.url, "transfer": identifiers}
    assert killed_while_sending(tmp_path, {"send": service}, times=moments, seconds=0.6)
    send(hapi, tmp_path, project)
    (document,) = found(hapi, project)
    with zipfile.ZipFile(io.BytesIO(download(hapi, document))) as archive:
        assert archive.read("a.ndjson") == source.read_bytes()
    assert not (tmp_path / "send" / "transfer.zip").exists()
