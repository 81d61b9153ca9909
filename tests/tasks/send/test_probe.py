"""Use of a FHIR server's metadata before data are sent (docs/services.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.send.step import STEP
from tasks.shared.service import ProbeWarning
from tests.peers import job
from tests.peers.server import Reply, loopback
from tests.peers.services import JSON

SERVER: dict[str, Any] = {"resource": [{"type": "Patient"}], "interaction": [{"code": "transaction"}]}


def statement(*rest: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"resourceType": "CapabilityStatement", "fhirVersion": "4.0.1", "rest": list(rest), **more}


def probe_service(url: str, mode: str = "direct_resource_load") -> list[Any]:
    config = job.configuration({"send": {"send_as": mode, "url": url}})
    return job.probed(*STEP.services(config), config)


def probe_with_metadata(document: Any, mode: str = "direct_resource_load", status: int = 200) -> list[Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    with loopback([Reply(status, body, JSON)]) as server:
        found = probe_service(server.url, mode)
    assert [(seen.method, seen.target, seen.body) for seen in server.seen] == [("GET", "/fhir/metadata", b"")]
    return found


@pytest.mark.parametrize("mode", ["direct_resource_load", "transfer_load"])
def test_a_fhir_server_is_believed(mode: str) -> None:
    named = {"software": {"name": "Pseudonymised research store"}, "name": "pseudonymization"}
    assert probe_with_metadata(statement(SERVER, **named), mode) == []


OTHERS: dict[str, Any] = {
    "no JSON": b"<html>",
    "another resource": {"resourceType": "OperationOutcome"},
    "R5": statement(SERVER, fhirVersion="5.0.0"),
    "STU3": statement(SERVER, fhirVersion="3.0.2"),
    "no version": {"resourceType": "CapabilityStatement", "rest": [SERVER]},
    "no rest": statement(),
    "no resources": statement({"interaction": [{"code": "transaction"}]}),
    "a pseudonymizer by its operation": statement(SERVER | {"operation": [{"name": "de-identify"}]}),
    "an extraction server": statement(SERVER | {"operation": [{"name": "extract-data"}]}),
    "a flattener": statement(SERVER | {"operation": [
        {"name": "run", "definition": "http://sql-on-fhir.org/OperationDefinition/$run"}]}),
    "a flattener by its type": statement(SERVER | {"resource": [
        {"type": "ViewDefinition", "operation": [{"name": "run"}]}]}),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["direct_resource_load", "transfer_load"])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_another_service_gets_nothing(name: str, mode: str) -> None:
    (found,) = probe_with_metadata(OTHERS[name], mode)
    assert (found.reference, found.transient) == ("wrong-service", False)


def test_a_server_that_says_it_takes_no_transactions_is_none_for_a_direct_load() -> None:
    reading = statement(SERVER | {"interaction": [{"code": "batch"}]})
    (found,) = probe_with_metadata(reading)
    assert "no transactions" in found.message
    assert probe_with_metadata(reading, "transfer_load") == []


@pytest.mark.parametrize("status", [401, 403, 404])
def test_metadata_that_are_not_shown_are_a_doubt(status: int) -> None:
    (found,) = probe_with_metadata(b"", status=status)
    assert isinstance(found, ProbeWarning)


def test_a_server_that_does_not_say_what_it_takes_is_a_doubt() -> None:
    (found,) = probe_with_metadata(statement({"resource": [{"type": "Patient"}]}))
    assert isinstance(found, ProbeWarning)


@pytest.mark.parametrize("end", ["", "/"])
def test_data_go_below_fhir_of_the_root_that_is_configured(end: str) -> None:
    with loopback([Reply(200, json.dumps(statement(SERVER)).encode(), JSON)]) as server:
        assert probe_service(f"{server.url}/base{end}") == []
        assert [one.target for one in server.seen] == ["/base/fhir/metadata"]
