"""The made-up resource that goes to the flattening service first (document 3 §5): what is believed of it."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.flattening.app import FlatteningOptions, flattening_service
from tasks.flattening.probe import service as declared_service
from tests.peers import job
from tests.peers.flattening import FakeFlattening
from tests.peers.server import Reply


def probe_service(url: str) -> list[Any]:
    config = job.configuration({"flattening": {"service_url": url}})
    return job.probed(declared_service(config), config)


def test_a_probe_that_returns_the_row_passes_and_sends_only_made_up_data() -> None:
    with FakeFlattening() as service:
        assert probe_service(service.url) == []
    assert [request.ids for request in service.requests] == [["sluice-probe-patient"]]


def test_the_sandbox_service_passes() -> None:
    with serve_in_thread(flattening_service(FlatteningOptions())) as served:
        assert probe_service(served.url) == []


def test_a_row_with_keys_that_are_no_column_is_that_of_another_service() -> None:
    with FakeFlattening(lambda *_: Reply(body=b'{"id":"sluice-probe-patient","more":1}')) as service:
        (found,) = probe_service(service.url)
    assert (found.reference, found.transient) == ("wrong-service", False)
    assert found.context.startswith("services.flattening.service_url: POST http://127.0.0.1")


@pytest.mark.parametrize("kind", ["application/x-ndjson; charset=utf-8", "APPLICATION/NDJSON", "application/json", ""])
def test_rows_may_come_under_several_media_types_or_none(kind: str) -> None:
    with FakeFlattening() as service:
        service.content_type = kind
        assert probe_service(service.url) == []


def test_a_500_may_be_a_service_that_starts() -> None:
    with FakeFlattening(lambda *_: Reply(500)) as service:
        (found,) = probe_service(service.url)
    assert found.transient
