"""Prefect's server as our application: the events and runs it stores (``flows/engine/server/app.py``)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from tests.conftest import address_of, ask_prefect, own_name, wait_until

ENOUGH = 20
"""Events that Prefect writes down at once, instead of after some seconds."""


def event(name: str, resource: dict[str, str], payload: dict[str, Any] | None = None) -> dict[str, Any]:
    moment = datetime.now(UTC).isoformat()
    return {"id": str(uuid4()), "event": name, "occurred": moment, "resource": resource, "payload": payload or {}}


WRITERS = 8


def test_requests_that_write_at_once_wait_for_each_other(prefect_api: str, tmp_path: Path) -> None:
    """None is answered with 503: then Prefect's clients would wait for seconds."""
    flow = ask_prefect("POST", f"{prefect_api}/flows/", {"name": own_name(tmp_path)})["id"]

    headers = dict(address_of(prefect_api).headers)

    def make_run(_: int) -> int:
        body = {"flow_id": flow, "state": {"type": "PENDING"}}
        url = f"{prefect_api}/flow_runs/"
        return httpx.post(url, json=body, headers=headers, trust_env=False, timeout=60).status_code

    with ThreadPoolExecutor(WRITERS) as pool:
        assert set(pool.map(make_run, range(5 * WRITERS))) == {201}


def test_a_task_run_is_made_of_its_events_and_they_are_not_kept_beside_it(prefect_api: str, tmp_path: Path) -> None:
    run, other = f"prefect.task-run.{uuid4()}", f"{own_name(tmp_path)}-other"
    made_of = event(
        "prefect.task-run.Completed",
        {"prefect.resource.id": run, "prefect.orchestration": "client"},
        {
            "validated_state": {"type": "COMPLETED", "name": "Completed", "state_details": {}},
            "task_run": {"task_key": "a", "dynamic_key": run, "name": "a step"},
        },
    )
    # What others say of a task run is theirs, and kept.
    others = [event("prefect.task-run.told", {"prefect.resource.id": f"{other}.{n}"}) for n in range(1, ENOUGH)]
    ask_prefect("POST", f"{prefect_api}/events", [made_of, *others])

    def count_events(**resource: list[str]) -> int:
        found = ask_prefect("POST", f"{prefect_api}/events/filter", {"filter": {"resource": resource}})
        return int(found["total"])

    wait_until(lambda: count_events(id_prefix=[other]) == len(others))
    body = {"task_runs": {"id": {"any_": [run.removeprefix("prefect.task-run.")]}}}
    wait_until(lambda: bool(ask_prefect("POST", f"{prefect_api}/task_runs/filter", body)))
    (made,) = ask_prefect("POST", f"{prefect_api}/task_runs/filter", body)
    assert (made["name"], made["state_name"]) == ("a step", "Completed")
    assert count_events(id=[run]) == 0
