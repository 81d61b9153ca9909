"""The FHIR server: transactions, references, search by identifier, Binaries, and what survives."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.data import DATA
from deployments.sandbox.fhir.app import fhir_service
from tests.deployments.sandbox.conftest import JSON, SandboxClient, diagnostics

Serve = Callable[..., SandboxClient]


def patient(key: str, **more: Any) -> dict[str, Any]:
    return {"resourceType": "Patient", "id": key} | more


def about(key: str, target: str) -> dict[str, Any]:
    return {"resourceType": "Observation", "id": key, "subject": {"reference": target}}


def bundle(*resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    entries = [
        {"resource": each, "request": {"method": "PUT", "url": f"{each['resourceType']}/{each['id']}"}}
        for each in resources
    ]
    return {"resourceType": "Bundle", "type": "transaction", "entry": entries} | more


@pytest.fixture
def fhir(serve: Serve) -> SandboxClient:
    return serve(fhir_service())


def test_a_transaction_stores_all_its_resources_in_any_order(fhir: SandboxClient) -> None:
    document = bundle(about("o", "Patient/p"), patient("p"))
    answers = [fhir.post("/fhir", json=document), fhir.post("/fhir", json=document)]
    answers.append(fhir.post("/fhir", json=bundle(patient("p", gender="female"))))
    responses = [[entry["response"] for entry in answer.json()["entry"]] for answer in answers]
    assert [[one["status"] for one in found] for found in responses] == [
        ["201 Created"] * 2,
        ["200 OK"] * 2,
        ["200 OK"],
    ]
    assert [found[-1]["location"] for found in responses] == [f"Patient/p/_history/{n}" for n in (1, 1, 2)]
    assert fhir.get("/fhir/Patient/p").headers["etag"] == 'W/"2"'


@pytest.mark.parametrize(("manners", "status", "code"), [("hapi", 400, "processing"), ("blaze", 409, "conflict")])
def test_a_missing_reference_undoes_the_whole_transaction(serve: Serve, manners: Any, status: int, code: str) -> None:
    fhir = serve(fhir_service(manners=manners))
    answer = fhir.post("/fhir", json=bundle(patient("p"), about("o", "Patient/none")))
    assert (answer.status_code, answer.json()["issue"][0]["code"]) == (status, code)
    assert "Patient/none" in diagnostics(answer)
    assert fhir.get("/fhir/Patient/p").status_code == 404
    assert fhir.put("/fhir/Observation/o", json=about("o", "Patient/none")).status_code == status


REFUSED: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "not a Bundle"),
    "no Bundle": (patient("p"), "type transaction"),
    "a batch": (bundle(patient("p"), type="batch"), "type transaction"),
    "a POST": (bundle() | {"entry": [{"resource": patient("p"), "request": {"method": "POST", "url": "Patient"}}]},
               "PUT Type/id"),
    "the same twice": (bundle(patient("p"), patient("p")), "HAPI-0535"),
    "a numeric id": (bundle(patient("12")), "HAPI-0960"),
    "an unknown type": (bundle({"resourceType": "Colour", "id": "c"}), "not of the type"),
    "another id": (bundle() | {"entry": [{"resource": patient("p"), "request": {"method": "PUT", "url": "Patient/q"}}]},
                   "must be equal"),
    "an unresolved placeholder": (bundle(about("o", "urn:uuid:1")), "HAPI-0541"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_server_cannot_do_is_400_with_a_sentence(fhir: SandboxClient, name: str) -> None:
    body, text = REFUSED[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = fhir.post("/fhir", content=content, headers={"content-type": JSON})
    assert (answer.status_code, text in diagnostics(answer)) == (400, True), answer.text
    assert fhir.get("/_sandbox/resources").content == b""


def test_a_body_of_another_kind_is_415(fhir: SandboxClient) -> None:
    assert fhir.post("/fhir", content=b"x", headers={"content-type": "text/plain"}).status_code == 415


def test_search_by_identifier(fhir: SandboxClient) -> None:
    for key, system in (("a", "s"), ("b", "t")):
        fhir.put(f"/fhir/Patient/{key}", json=patient(key, identifier=[{"system": system, "value": "1,2"}]))
    master = {"resourceType": "DocumentReference", "id": "d", "masterIdentifier": {"system": "s", "value": "v"}}
    fhir.put("/fhir/DocumentReference/d", json=master, headers={"prefer": "return=minimal"})
    for query, expected in (
        ("Patient?identifier=s|1\\,2", ["a"]), ("Patient?identifier=1\\,2", ["a", "b"]), ("Patient?identifier=s|x", []),
        ("Patient?identifier=s|1\\,2,t|1\\,2", ["a", "b"]), ("Patient", ["a", "b"]),
        ("DocumentReference?identifier=s|v", ["d"]),
    ):  # fmt: skip
        found = fhir.get(f"/fhir/{query}").json()
        assert found["total"] == len(expected)
        assert [entry["resource"]["id"] for entry in found.get("entry", [])] == expected
    assert fhir.get("/fhir/Patient?_summary=count").json() == {
        "resourceType": "Bundle", "type": "searchset", "total": 2,
    }  # fmt: skip
    assert fhir.get("/fhir/Patient?colour=blue").status_code == 400


def test_binaries_keep_their_bytes_and_media_type(fhir: SandboxClient) -> None:
    content = bytes(range(256))
    assert fhir.put("/fhir/Binary/raw", content=content, headers={"content-type": "application/zip"}).status_code == 201
    wrapped = {"resourceType": "Binary", "id": "json", "contentType": "application/zip"}
    wrapped["data"] = base64.b64encode(content).decode()
    assert fhir.put("/fhir/Binary/json", json=wrapped).status_code == 201
    for key in ("raw", "json"):
        answer = fhir.get(f"/fhir/Binary/{key}", headers={"accept": "application/zip"})
        assert (answer.content, answer.headers["content-type"]) == (content, "application/zip")
    assert fhir.get("/fhir/Binary/json", headers={"accept": JSON}).json() == wrapped
    assert fhir.head("/fhir/Binary/raw").headers["content-length"] == "256"


def test_everything_survives_the_end_of_the_server_as_it_was_sent(serve: Serve, tmp_path: Path) -> None:
    fhir = serve(fhir_service(state=tmp_path))
    for path in sorted(DATA.glob("*.ndjson")):  # core comes first by its name
        for line in path.read_bytes().splitlines():
            assert fhir.post("/fhir", content=line, headers={"content-type": JSON}).status_code == 200
    stored = serve(fhir_service(state=tmp_path)).get("/_sandbox/resources").content
    assert b'"value":1.50,' in stored
    texts = b"".join(path.read_bytes() for path in DATA.glob("*.ndjson"))
    assert [line for line in stored.splitlines() if line not in texts] == []
