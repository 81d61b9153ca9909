"""Events whose predecessor the server never saw are evaluated at once (``flows/engine/server/event_order.py``).

Prefect's server is imported by the tests that need it: that takes three seconds.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from tests.conftest import ask_prefect, own_name, wait_until

if TYPE_CHECKING:
    from prefect.server.events.ordering.memory import CausalOrdering
    from prefect.server.events.schemas.events import ReceivedEvent

pytestmark = pytest.mark.slow


def event(follows: UUID | None = None) -> ReceivedEvent:
    from prefect.server.events.schemas.events import ReceivedEvent

    resource = {"prefect.resource.id": "prefect.flow-run.x"}
    return ReceivedEvent.model_validate(
        {"occurred": datetime.now(UTC), "event": "told", "resource": resource, "id": uuid4(), "follows": follows}
    )


async def evaluated(ordering: CausalOrdering, *events: ReceivedEvent) -> list[UUID]:
    """Evaluate events as Prefect's triggers do; the ids in the order in which that was done."""
    done: list[UUID] = []

    async def evaluate(one: ReceivedEvent, depth: int = 0) -> None:
        async with ordering.preceding_event_confirmed(evaluate, one, depth=depth):
            await asyncio.sleep(0.01)
            done.append(one.id)

    await asyncio.gather(*map(evaluate, events))
    assert await ordering.get_lost_followers() == []
    return done


def test_an_event_whose_predecessor_was_never_seen_is_not_held_back() -> None:
    from prefect.server.events.ordering import EventArrivedEarly, memory

    from flows.engine.server import event_order

    orphan = event(follows=uuid4())
    assert asyncio.run(evaluated(event_order.CausalOrdering(str(uuid4())), orphan)) == [orphan.id]
    with pytest.raises(EventArrivedEarly):  # the order that is replaced: 15 minutes
        asyncio.run(evaluated(memory.CausalOrdering(str(uuid4())), orphan))


def test_an_event_still_waits_for_the_one_before_while_that_is_evaluated() -> None:
    from flows.engine.server import event_order

    before = event()
    after = event(follows=before.id)
    assert asyncio.run(evaluated(event_order.CausalOrdering(str(uuid4())), before, after)) == [before.id, after.id]


def test_a_server_of_ours_acts_at_once_on_an_event_that_follows_an_unknown_one(
    prefect_api: str, tmp_path: Path
) -> None:
    name = f"told.{own_name(tmp_path)}"
    trigger = {"type": "event", "posture": "Reactive", "expect": [name], "threshold": 1, "within": 0}
    automation = {"name": name, "trigger": trigger, "actions": [{"type": "do-nothing"}]}
    made = ask_prefect("POST", f"{prefect_api}/automations/", automation)["id"]
    fired = {"event": {"name": ["prefect.automation.triggered"]}, "resource": {"id": [f"prefect.automation.{made}"]}}

    def acted() -> bool:
        # An event that comes before the server has read the new automation is lost to it, so one is sent each time.
        told = event(follows=uuid4()).model_dump(mode="json", exclude={"received"}) | {"event": name}
        ask_prefect("POST", f"{prefect_api}/events", [told])
        return ask_prefect("POST", f"{prefect_api}/events/filter", {"filter": fired})["total"] > 0

    try:
        # Prefect writes events down after some seconds; its own order of them takes 15 minutes.
        wait_until(acted, every=0.5)
    finally:
        ask_prefect("DELETE", f"{prefect_api}/automations/{made}")
