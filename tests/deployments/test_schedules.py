"""Schedules make runs (``4-product.md`` §6)."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flows.engine.api import PrefectApi
from tests.conftest import address_of, own_name, wait_until
from tests.e2e.machines import deployment


@pytest.mark.slow
def test_a_deployment_with_a_schedule_gets_runs(prefect_api: str, tmp_path: Path) -> None:
    deployment(prefect_api, pool := f"pool-{own_name(tmp_path)}", tmp_path)
    with PrefectApi(address_of(prefect_api)) as api:
        (made,) = api.request("POST", "/deployments/filter", {"work_pools": {"name": {"any_": [pool]}}})
        schedule = {"schedule": {"cron": "30 1 * * *", "timezone": "Europe/Berlin"}, "active": True}
        api.request("POST", f"/deployments/{made['id']}/schedules", [schedule])

        def runs() -> list[dict[str, Any]]:
            return list(api.request("POST", "/flow_runs/filter", {"deployments": {"id": {"any_": [made["id"]]}}}))

        wait_until(lambda: len(runs()) >= 2, 120)  # the scheduler looks for new deployments every few seconds
        assert {run["state_type"] for run in runs()} == {"SCHEDULED"}
        starts = sorted(datetime.fromisoformat(run["expected_start_time"]) for run in runs())
    assert {start.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") for start in starts} == {"01:30"}
