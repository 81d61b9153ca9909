"""A service as a step declares it: one construction of its client, its credentials for its own origin, its probe."""

from __future__ import annotations

import ast

import pytest
from pydantic import SecretStr

from config import STEPS, AuthConfig, PipelineConfig
from tasks import declared
from tasks.shared.errors import ServiceError, SluiceError
from tasks.shared.http.answer import Answer
from tasks.shared.service import METADATA, HttpProbe, Service
from tests.conftest import ROOT
from tests.peers.server import Reply, closed_port, loopback

CONFIG = PipelineConfig.model_validate({"retry": {"max_attempts": 1}})


def test_a_client_is_made_in_one_place() -> None:
    made = {
        str(path.relative_to(ROOT))
        for package in ("tasks", "flows")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ServiceClient"
    }
    assert made == {"tasks/shared/service.py"}


def test_a_probe_asks_below_the_address_once_and_without_credentials() -> None:
    with loopback([Reply(500)]) as server:
        auth = AuthConfig(api_key=SecretStr("s3cret"))
        service = Service("send", f"{server.url}/", auth, METADATA)
        assert list(METADATA.ask(service, CONFIG)) == []
        assert [(seen.method, seen.target) for seen in server.seen] == [("GET", "/fhir/metadata")]
        assert "s3cret" not in str(server.seen[0].headers)


def test_a_probe_says_in_its_own_words_what_is_wrong_with_an_answer() -> None:
    def fhir(service: Service, answer: Answer) -> SluiceError | None:
        return None if answer.status == 200 else ServiceError("no-fhir", f"{service.key}: this is no FHIR server")

    with loopback([Reply(404)]) as server:
        (wrong,) = HttpProbe(check=fhir).ask(Service("send", server.url), CONFIG)
    assert wrong.reference == "no-fhir"


def test_a_service_that_is_not_there_is_a_finding_and_one_without_address_is_not_asked() -> None:
    (gone,) = METADATA.ask(Service("send", f"http://127.0.0.1:{closed_port()}"), CONFIG)
    assert gone.reference == "connect-failed"
    assert list(METADATA.ask(Service("send"), CONFIG)) == []


@pytest.mark.parametrize("name", STEPS)
def test_a_service_is_declared_under_the_key_of_its_step(name: str) -> None:
    for service in declared(name).services(CONFIG):
        assert service.key == name
        assert service.probe is not None
