"""How a run is given to Prefect's engine."""

from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    get_current_settings,
    temporary_settings,
)

from flows.engine import runs


def test_it_has_no_heartbeat_and_all_other_settings() -> None:
    before = get_current_settings()
    with runs.without_heartbeat():
        found = get_current_settings()
        assert PREFECT_FLOWS_HEARTBEAT_FREQUENCY.value() is None
        assert (found.api, found.results) == (before.api, before.results)
    assert get_current_settings() is before


def test_everything_that_a_command_asks_prefect_for_goes_through_one_client() -> None:
    address = {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}
    with temporary_settings(address), runs.one_client():
        with get_client(sync_client=True) as first:
            pass
        with get_client(sync_client=True) as second:
            assert first is second
    assert first._closed
