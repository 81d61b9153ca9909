"""The order in which Prefect's server evaluates events: ``PREFECT_SERVER_EVENTS_CAUSAL_ORDERING`` names this module.

Each change of a state follows the change before. Prefect holds an event back for 15 minutes where its server did not
see the event before: a run that the scheduler made has none, and after a restart the server has forgotten all. No
notification would be sent in that time.
"""

from __future__ import annotations

from prefect.server.events.ordering import EventArrivedEarly, memory
from prefect.server.events.schemas.events import ReceivedEvent


class CausalOrdering(memory.CausalOrdering):
    """Wait for an event that is being evaluated (some seconds), and for no other."""

    async def wait_for_leader(self, event: ReceivedEvent) -> None:
        """Return when ``event`` can be evaluated."""
        try:
            await super().wait_for_leader(event)
        except EventArrivedEarly:
            await self.forget_follower(event)
