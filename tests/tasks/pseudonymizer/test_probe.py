"""The made-up resource that goes to the pseudonymization service first (document 3 §4): what is believed of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.pseudonymization.app import PseudonymizationOptions, pseudonymization_service
from tasks.pseudonymizer.client import BUNDLE, PATIENT
from tasks.pseudonymizer.client import service as declared_service
from tasks.shared.errors import SluiceError
from tests.peers import job
from tests.peers.pseudonymization import RULES, FakePseudonymizer, PseudonymizationRequest, identity
from tests.peers.server import Reply, loopback
from tests.peers.services import pseudonyms

Change = Callable[[dict[str, Any]], Any]


def probe_service(url: str, rules: Path | None = None, **more: Any) -> list[Any]:
    settings = {"url": url, "anonymization_config": rules and str(rules)} | more
    config = job.configuration({"pseudonymizer": settings}, attempts=1 if more else 3)
    return job.probed(declared_service(config), config, sleep=lambda _: None)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_bytes(RULES)
    return path


def answering(change: Change) -> Callable[[bytes], bytes]:
    """Return a service that answers its resource as ``change`` makes it."""

    def answer(resource: bytes) -> bytes:
        document = json.loads(pseudonyms(resource))
        changed = change(document)
        return json.dumps(document if changed is None else changed).encode()

    return answer


@pytest.mark.parametrize("with_rules", [False, True])
def test_a_probe_that_is_pseudonymized_passes_and_sends_only_made_up_data(rules: Path, *, with_rules: bool) -> None:
    with FakePseudonymizer(pseudonyms) as service:
        assert probe_service(service.url, rules if with_rules else None) == []
    assert [json.loads(request.resource) for request in service.requests] == [json.loads(BUNDLE)]
    assert [request.config for request in service.requests] == [RULES if with_rules else None]
    assert [json.loads(request.resource) for request in service.probes] == [PATIENT] * with_rules


def test_the_sandbox_service_passes(tmp_path: Path) -> None:
    with serve_in_thread(pseudonymization_service(PseudonymizationOptions())) as served:
        assert probe_service(served.url) == []


def remove_first(document: dict[str, Any]) -> None:
    del document["entry"][0]


@pytest.mark.parametrize("with_rules", [False, True])
def test_a_service_that_changes_nothing_is_another_one(rules: Path, *, with_rules: bool) -> None:
    with FakePseudonymizer(identity) as service:
        (found,) = probe_service(service.url, rules if with_rules else None)
    assert isinstance(found, SluiceError)
    assert (found.reference, found.transient) == ("wrong-service", False)
    assert "did not pseudonymize" in found.message
    assert found.context is not None
    assert found.context.startswith("services.pseudonymizer.url: POST http://127.0.0.1")


def test_rules_that_remove_may_take_a_type_away(tmp_path: Path) -> None:
    removing = tmp_path / "removing.yaml"
    removing.write_bytes(b"fhirPathRules:\n  - {path: nodesByType('Patient'), method: remove}\n")
    with FakePseudonymizer(answering(remove_first)) as service:
        assert probe_service(service.url, removing) == []


def test_a_service_before_2_34_0_gets_no_resource(rules: Path) -> None:
    with FakePseudonymizer(pseudonyms) as service:
        service.reads_config = False
        (found,) = probe_service(service.url, rules)
    assert (found.reference, found.exit_code) == ("pseudonymizer-too-old", 2)
    assert "2.34.0" in found.message
    assert service.requests == []


def test_a_rule_that_the_service_cannot_use_is_found_with_the_made_up_resource(rules: Path) -> None:
    def refuses(_: int, request: PseudonymizationRequest) -> Reply | None:
        return Reply(400, b'{"which":"rule"}') if request.config else None

    with FakePseudonymizer(pseudonyms, refuses) as service:
        (found,) = probe_service(service.url, rules)
    assert (found.reference, found.exit_code, found.status) == ("rules-refused", 2, 400)
    assert found.answer.body == b'{"which":"rule"}'
    assert [request.config for request in service.requests] == [RULES]


@pytest.mark.parametrize(("status", "reference"), [(400, "wrong-service"), (404, "wrong-service"),
                                                   (405, "wrong-service"), (415, "wrong-service"),
                                                   (401, "service-unauthorized"), (403, "service-forbidden"),
                                                   (307, "redirect-refused")])  # fmt: skip
def test_a_refusal_is_terminal(status: int, reference: str) -> None:
    reply = Reply(status, headers={"Location": "http://127.0.0.1:1/"} if status == 307 else {})
    with FakePseudonymizer(script=lambda *_: reply) as service:
        (found,) = probe_service(service.url)
    assert (found.reference, found.transient) == (reference, False)


@pytest.mark.parametrize("status", [400, 404, 501])
def test_what_an_issuer_of_tokens_refuses_says_nothing_about_the_service(status: int) -> None:
    with loopback([Reply(status, b"{}")]) as issuer, FakePseudonymizer(pseudonyms) as service:
        auth = {"oauth_issuer_uri": issuer.url, "oauth_client_id": "c", "oauth_client_secret": "s"}
        (found,) = probe_service(service.url, auth=auth)
    assert found.reference.startswith("oauth-") or found.operation == "obtain token"
    assert found.reference != "wrong-service"
    assert service.seen == []


def test_rules_that_cannot_be_read_are_a_finding_of_their_own(tmp_path: Path) -> None:
    with FakePseudonymizer(pseudonyms) as service:
        assert probe_service(service.url, tmp_path / "missing.yaml") == []
    assert service.seen == []
