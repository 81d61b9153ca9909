"""Faults on demand, over real connections (``4-product.md`` §8)."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.conftest import wait_until
from tests.deployments.sandbox.conftest import JSON, SandboxClient

PATIENT = '{"resourceType":"Patient","id":"p1"}'


def put(client: SandboxClient) -> httpx.Response:
    return client.store("Patient/p1", PATIENT)


def raw(client: SandboxClient, path: str = "/fhir/Patient/p1") -> tuple[bytes, bytes]:
    """Return head and body of a GET as received, read to the end of the connection."""
    port = client.base_url.port
    assert port
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        received = b""
        while piece := connection.recv(65536):
            received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    return head.lower(), body


def test_a_status_comes_with_its_headers_and_body(fhir: SandboxClient) -> None:
    fhir.faults(
        {"action": "status", "status": 429, "headers": {"Retry-After": "7"}, "body": "busy", "times": 1},
        {"action": "status", "status": 503, "body": {"resourceType": "OperationOutcome", "issue": []}},
        {"action": "status", "status": 500},
    )
    answers = [put(fhir) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [429, 503, 500, 201]
    assert (answers[0].headers["retry-after"], answers[0].text) == ("7", "busy")
    assert answers[1].json()["issue"] == []
    assert answers[2].json()["resourceType"] == "OperationOutcome"


@pytest.mark.parametrize(("moment", "stored"), [("head", False), ("body", False), ("applied", True)])
@pytest.mark.parametrize("action", ["status", "reset"])
def test_a_fault_strikes_before_or_after_the_service_did_its_work(
    fhir: SandboxClient, action: str, moment: str, stored: bool
) -> None:
    fhir.faults({"action": action, "at": moment})
    if action == "reset":
        with pytest.raises(httpx.TransportError):
            put(fhir)
    else:
        assert put(fhir).status_code == 503
    assert (fhir.get("/fhir/Patient/p1").status_code == 200) is stored


def test_a_reset_is_a_reset_and_not_an_orderly_end(fhir: SandboxClient) -> None:
    fhir.faults({"action": "reset", "at": "body"})
    with pytest.raises(ConnectionResetError):
        raw(fhir)


def test_method_path_and_text_choose_the_requests(fhir: SandboxClient) -> None:
    fhir.faults({"action": "status", "method": "PUT", "path": "/fhir/Pat*", "contains": '"id":"p2"', "times": None})
    assert put(fhir).status_code == 201
    assert fhir.store("Patient/p2", '{"resourceType":"Patient","id":"p2"}').status_code == 503
    assert fhir.store("Basic/p2", '{"resourceType":"Basic","id":"p2"}').status_code == 201
    assert fhir.get("/fhir/Patient/p2").status_code == 404


def test_skip_lets_the_first_ones_pass_and_times_limits_the_rest(fhir: SandboxClient) -> None:
    fhir.faults({"action": "status", "skip": 2, "times": 3})
    assert [put(fhir).status_code for _ in range(7)] == [201, 200, 503, 503, 503, 200, 200]
    described = fhir.get("/_sandbox/faults").json()
    assert [(rule["action"], rule["met"], rule["struck"]) for rule in described] == [("status", 7, 3)]


def test_faults_go_when_they_are_deleted(fhir: SandboxClient) -> None:
    fhir.faults({"action": "status", "times": None})
    assert put(fhir).status_code == 503
    assert fhir.delete("/_sandbox/faults").status_code == 204
    assert put(fhir).status_code == 201
    assert fhir.get("/_sandbox/faults").json() == []


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"{}",
        b'[{"action":"explode"}]',
        b"[{}]",
        b'[{"action":"status","times":-1}]',
        b'[{"action":"status","status":99}]',
        b'[{"action":"cut","seconds":3}]',
        b'[{"action":"reset","at":"lunch"}]',
    ],
)
def test_rules_that_mean_nothing_are_400_and_change_nothing(fhir: SandboxClient, document: bytes) -> None:
    fhir.faults({"action": "status", "times": None})
    response = fhir.put("/_sandbox/faults", content=document)
    assert response.status_code == 400
    assert response.json()["resourceType"] == "OperationOutcome"
    assert put(fhir).status_code == 503


def test_a_cut_announces_more_than_it_sends(fhir: SandboxClient) -> None:
    put(fhir)
    fhir.faults({"action": "cut", "bytes": 5}, {"action": "cut"}, {"action": "cut", "bytes": 1000})
    for expected, announced in ((5, len(PATIENT)), (len(PATIENT) // 2, len(PATIENT)), (len(PATIENT), len(PATIENT) + 1)):
        head, body = raw(fhir)
        assert body == PATIENT.encode()[:expected]
        assert f"content-length: {announced}".encode() in head
    fhir.faults({"action": "cut", "bytes": 5})
    with pytest.raises(httpx.RemoteProtocolError):
        fhir.get("/fhir/Patient/p1")


def test_a_stall_sends_a_part_and_then_nothing(fhir: SandboxClient) -> None:
    put(fhir)
    fhir.faults({"action": "stall", "bytes": 10})
    with socket.create_connection(("127.0.0.1", fhir.base_url.port), timeout=30) as connection:
        connection.sendall(b"GET /fhir/Patient/p1 HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while not received.endswith(b"\r\n\r\n" + PATIENT.encode()[:10]):
            received += (piece := connection.recv(65536))
            assert piece
        assert received.startswith(b"HTTP/1.1 200 ")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
    assert fhir.get("/fhir/Patient/p1").text == PATIENT


@pytest.mark.parametrize("delta", [10, -10])
def test_a_wrong_length_belies_the_whole_body(fhir: SandboxClient, delta: int) -> None:
    put(fhir)
    fhir.faults({"action": "wrong-length", "delta": delta})
    head, body = raw(fhir)
    assert body == PATIENT.encode()
    assert f"content-length: {len(PATIENT) + delta}".encode() in head


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["head", "applied"])
def test_a_delayed_answer_is_the_true_one(fhir: SandboxClient, moment: str) -> None:
    fhir.faults({"action": "delay", "at": moment, "seconds": 60})
    head = f"PUT /fhir/Patient/p1 HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\nContent-Length: {len(PATIENT)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", fhir.base_url.port), timeout=0.05) as connection:
        connection.sendall((head + PATIENT).encode())
        wait_until(lambda: fhir.request_log()["in_flight"] == 1)
        if moment == "applied":
            wait_until(lambda: fhir.get("/fhir/Patient/p1").status_code == 200)
        else:
            assert fhir.get("/fhir/Patient/p1").status_code == 404
        with pytest.raises(TimeoutError):
            connection.recv(1)
    fhir.faults({"action": "delay", "at": moment, "seconds": 0.05})
    assert put(fhir).status_code in (200, 201)


def test_html_200_is_a_login_page(fhir: SandboxClient) -> None:
    fhir.faults({"action": "html-200"})
    response = put(fhir)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert response.text.startswith("<!DOCTYPE html>")
    assert fhir.counts() == {}


def test_the_request_log_counts_and_never_quotes(fhir: SandboxClient) -> None:
    secret = "Geheimnis"
    body = f'{{"resourceType":"Patient","id":"p1","language":"{secret}"}}'
    fhir.bundle(("PUT", "Patient/p1", body), ("PUT", "Basic/b1", '{"resourceType":"Basic","id":"b1"}'))
    fhir.get(f"/fhir/Patient?identifier={secret}")
    fhir.faults({"action": "reset"})
    with pytest.raises(httpx.TransportError):
        fhir.get("/fhir/metadata")
    text = fhir.get("/_sandbox/requests").text
    assert secret not in text
    seen: dict[str, Any] = json.loads(text)
    assert (seen["total"], seen["in_flight"], seen["max_in_flight"], seen["max_entries"]) == (3, 0, 1, 2)
    assert seen["by_status"] == {"200": 2, "none": 1}
    first, second, third = seen["requests"]
    assert (first["method"], first["path"], first["entries"]) == ("POST", "/fhir", 2)
    assert first["types"] == {"Patient": 1, "Basic": 1}
    assert seen["max_body_bytes"] == first["request_bytes"] > 100
    assert second["path"] == "/fhir/Patient"
    assert (third["fault"], third["status"]) == ("reset", None)
    assert first["started"] <= first["ended"] <= second["started"]
    fhir.delete("/_sandbox/requests")
    assert fhir.request_log()["total"] == 0


def test_unknown_sandbox_endpoints_are_404(fhir: SandboxClient) -> None:
    assert fhir.get("/_sandbox/secrets").status_code == 404
    assert fhir.post("/_sandbox/faults").status_code == 404
