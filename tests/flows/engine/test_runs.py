"""Start of a run in Prefect's engine."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    get_current_settings,
    temporary_settings,
)

from flows.engine import runs
from flows.prefect.address import ApiAddress


def test_a_run_has_no_heartbeat_and_the_same_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, found = get_current_settings(), []
    client = SimpleNamespace(read_flow_run=lambda run_id: run_id)
    monkeypatch.setattr(runs, "get_client", lambda sync_client: nullcontext(client))
    monkeypatch.setattr(runs, "run_flow", lambda *_, **__: found.append(get_current_settings()))
    address = ApiAddress("http://127.0.0.1:9/api", home=tmp_path)
    runs.execute(SimpleNamespace(), str(uuid4()), address)  # type: ignore[arg-type]
    (during,) = found
    assert before.flows.heartbeat_frequency
    assert during.flows.heartbeat_frequency is None
    assert during.results == before.results
    assert get_current_settings() is before


def test_everything_that_a_command_asks_prefect_for_goes_through_one_client() -> None:
    address = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}
    with temporary_settings(address), runs.one_client():
        with get_client(sync_client=True) as first:
            pass
        with get_client(sync_client=True) as second:
            assert first is second
    assert first._closed
