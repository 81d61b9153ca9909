"""A service as a step declares it: one construction of its client, its credentials for its own origin, its probe."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import SecretStr

from config import STEPS, AuthConfig, PipelineConfig, RetryConfig
from tasks import declared
from tasks.extractor.server import MetadataProbe
from tasks.shared.errors import ServiceError
from tasks.shared.service import Service
from tests.conftest import ROOT
from tests.peers import job
from tests.peers.server import Reply, closed_port, loopback

CONFIG = PipelineConfig.model_validate({"retry": {"max_attempts": 1}})


def test_a_client_is_made_for_services_and_for_the_object_store() -> None:
    made = {
        str(path.relative_to(ROOT))
        for package in ("tasks", "flows")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"[=(\s]ServiceClient\(", path.read_text(encoding="utf-8"))
    }
    assert made == {"tasks/shared/service.py", "tasks/send/s3_store.py"}


def test_a_probe_asks_below_the_address_once_and_without_credentials() -> None:
    with loopback([Reply(500)]) as server:
        auth = AuthConfig(api_key=SecretStr("s3cret"))
        service = Service("send", f"{server.url}/", auth, probe=MetadataProbe())
        assert list(MetadataProbe().find_problems(service, CONFIG)) == []
        assert [(seen.method, seen.target) for seen in server.seen] == [("GET", "/fhir/metadata")]
        assert "s3cret" not in str(server.seen[0].headers)


EVERY_SERVICE = {
    "pseudonymizer": ("pseudonymizer", {"url": "{url}"}),
    "flattening": ("flattening", {"service_url": "{url}"}),
    "validation": ("validation", {"url": "{url}"}),
    "direct_resource_load": ("send", {"send_as": "direct_resource_load", "url": "{url}"}),
    "transfer_load": ("send", {"send_as": "transfer_load", "url": "{url}"}),
    "s3_upload": ("send", {"send_as": "s3_upload", "s3": {
        "endpoint": "{url}", "bucket": "data", "region": "r", "access_key_id": "k", "secret_access_key": "s"}}),
}  # fmt: skip


# a FHIR server that takes data may hide its metadata
@pytest.mark.parametrize("name", ["extractor", "pseudonymizer", "flattening", "validation", "s3_upload"])
def test_a_401_before_a_job_exists_is_a_finding(name: str) -> None:
    step, settings = (EVERY_SERVICE | {"extractor": ("extractor", {"base_url": "{url}"})})[name]
    with loopback(lambda _: Reply(401)) as server:
        config = job.configuration({step: json.loads(json.dumps(settings).replace("{url}", server.url))})
        (service,) = declared(step).services(config)
        assert service.probe is not None
        (found,) = service.probe.find_problems(service, config)
    assert isinstance(found, ServiceError)
    assert found.exit_code != 0
    assert "401" in found.message


def test_a_probe_shows_its_credentials_only_after_a_401() -> None:
    with loopback([Reply(401), Reply(200)]) as server:
        service = Service("extractor", server.url, AuthConfig(api_key=SecretStr("s3cret")), probe=MetadataProbe())
        assert list(MetadataProbe().find_problems(service, CONFIG)) == []
        assert ["s3cret" in str(seen.headers) for seen in server.seen] == [False, True]


@pytest.mark.parametrize("name", EVERY_SERVICE)
def test_a_made_up_request_follows_the_retry_block(name: str) -> None:
    step, settings = EVERY_SERVICE[name]
    with loopback(lambda _: Reply(503)) as server:
        config = job.configuration({step: json.loads(json.dumps(settings).replace("{url}", server.url))})
        config = config.model_copy(update={"retry": RetryConfig(max_attempts=3, initial_backoff_ms=1)})
        (service,) = declared(step).services(config)
        (found,) = job.probed(service, config)
        assert len(server.seen) == 3
    assert (found.transient, found.exit_code) == (True, 3)


def test_an_unreachable_service_is_a_finding_and_one_without_address_is_skipped() -> None:
    (gone,) = MetadataProbe().find_problems(Service("send", f"http://127.0.0.1:{closed_port()}"), CONFIG)
    assert gone.reference == "connect-failed"
    assert list(MetadataProbe().find_problems(Service("send"), CONFIG)) == []


@pytest.mark.parametrize("name", STEPS)
def test_a_service_is_declared_under_the_key_of_its_step(name: str) -> None:
    for service in declared(name).services(CONFIG):
        assert service.key == name
        assert service.probe is not None
