"""The states that a job is shown in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flows.job.state import job_state

STEPS = {"job.steps": "send"}
WAITS = STEPS | {"job.waiting": "{}"}


def run(kind: str, name: str | None = None, *, seconds: float = 0, **more: Any) -> dict[str, Any]:
    return {"state_type": kind, "state_name": name or kind.capitalize(), "seconds": seconds} | more


@pytest.mark.parametrize(
    ("found", "free", "held"),
    [
        (run("COMPLETED"), "completed", "completed"),
        (run("FAILED"), "failed", "failed"),
        (run("CANCELLED"), "cancelled", "cancelled"),
        (run("CANCELLING"), "cancelled", "running"),
        (run("PAUSED", labels=WAITS), "waiting", "waiting"),
        (run("PAUSED", "Suspended", labels=STEPS), "stopped", "running"),
        (run("CRASHED", "Stopped"), "stopped", "running"),
        (run("CRASHED"), "interrupted", "running"),
        (run("RUNNING"), "interrupted", "running"),
        (run("PENDING"), "interrupted", "running"),
        (run("SCHEDULED", seconds=9999, deployment_id="d"), "pending", "running"),
        (run("PENDING", seconds=100, deployment_id="d"), "pending", "running"),
        (run("PENDING", seconds=140, deployment_id="d"), "interrupted", "running"),
        (run("RUNNING", seconds=100, deployment_id="d"), "running", "running"),
        (run("RUNNING", seconds=140, deployment_id="d"), "interrupted", "running"),
    ],
)
def test_a_state_follows_from_prefects_and_the_lock(found: dict[str, Any], free: str, held: str) -> None:
    timestamp = (datetime.now(UTC) - timedelta(seconds=found["seconds"])).isoformat()
    found |= {"state": {"timestamp": timestamp}}
    assert (job_state(found, held=False).value, job_state(found, held=True).value) == (free, held)
