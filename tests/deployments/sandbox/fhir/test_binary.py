"""Binary content in other media types, for the transfer target."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import httpx
import pytest

from tests.deployments.sandbox.conftest import SandboxClient, Start

CONTENT = bytes(range(256)) * 4000
ZIP = {"content-type": "application/zip"}


def test_raw_content_goes_in_and_comes_out_as_it_is(fhir: SandboxClient) -> None:
    created = fhir.put("/fhir/Binary/b1", content=CONTENT, headers=ZIP)
    assert created.status_code == 201
    read = fhir.get("/fhir/Binary/b1")
    assert read.content == CONTENT
    assert read.headers["content-type"] == "application/zip"
    assert read.headers["etag"] == 'W/"1"'


def test_the_fhir_form_is_given_when_json_is_asked_for(fhir: SandboxClient) -> None:
    fhir.put("/fhir/Binary/b1", content=CONTENT, headers=ZIP)
    body = fhir.get("/fhir/Binary/b1", headers={"Accept": "application/fhir+json"}).json()
    assert (body["resourceType"], body["id"], body["contentType"]) == ("Binary", "b1", "application/zip")
    assert base64.b64decode(body["data"]) == CONTENT


def test_a_binary_in_fhir_form_comes_out_in_both_forms(fhir: SandboxClient) -> None:
    data = base64.b64encode(CONTENT).decode()
    body = json.dumps({"resourceType": "Binary", "id": "b1", "contentType": "application/zip", "data": data})
    assert fhir.store("Binary/b1", body).status_code == 201
    assert fhir.get("/fhir/Binary/b1").content == CONTENT
    assert fhir.get("/fhir/Binary/b1", headers={"Accept": "application/fhir+json"}).text == body


def test_posted_content_gets_an_id(fhir: SandboxClient) -> None:
    response = fhir.post("/fhir/Binary", content=CONTENT, headers=ZIP)
    assert response.status_code == 201
    path = response.headers["location"].partition("/_history/")[0]
    assert fhir.get(path).content == CONTENT


def test_replaced_and_deleted_content_leaves_no_file_behind(start: Start, tmp_path: Path) -> None:
    client = start(state=tmp_path)
    for content in (b"one", b"two", b"two"):
        client.put("/fhir/Binary/b1", content=content, headers=ZIP)
    assert [path.read_bytes() for path in (tmp_path / "binaries").iterdir()] == [b"two"]
    assert client.get("/fhir/Binary/b1").headers["etag"] == 'W/"3"'
    client.store("Binary/b1", '{"resourceType":"Binary","id":"b1","contentType":"text/plain"}')
    assert list((tmp_path / "binaries").iterdir()) == []
    client.put("/fhir/Binary/b1", content=b"three", headers=ZIP)
    assert client.delete("/fhir/Binary/b1").status_code == 204
    assert list((tmp_path / "binaries").iterdir()) == []
    assert client.get("/fhir/Binary/b1").status_code == 410


def test_an_upload_that_breaks_off_stores_nothing(start: Start, tmp_path: Path) -> None:
    client = start(state=tmp_path)
    client.faults({"action": "reset", "method": "PUT", "at": "body"})
    with pytest.raises(httpx.TransportError):
        client.put("/fhir/Binary/b1", content=CONTENT, headers=ZIP)
    assert client.get("/fhir/Binary/b1").status_code == 404
    assert list((tmp_path / "binaries").iterdir()) == []
