"""Run the flow: create a flow run, execute it (again), park it at a wait.

``run_flow`` executes a run that exists already. It is below Prefect's documented API, and only this module uses it.
A run that has run before is set to Pending first, because ``run_flow`` refuses some states.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from uuid import UUID, uuid4

import httpx
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.exceptions import Pause, PrefectHTTPStatusError
from prefect.flow_engine import run_flow
from prefect.input import RunInput, keyset_from_paused_state
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Paused, Pending, Running, Suspended

from flows.output import patience
from flows.prefect.form import FormAnswer
from tasks.shared.errors import NetworkError, TerminalError


class WaitForm(RunInput, FormAnswer):
    """The resume form of a ``wait``.

    The Prefect server checks an answer against the schema of this form, and keeps the run parked if it does not match.
    """


def create(flow: Flow[..., Any], *, name: str, parameters: dict[str, Any]) -> str:
    """Create a run in state Pending and return its id: the job id.

    Raises:
        NetworkError: the Prefect API does not answer, or fails.
    """
    with translated(), get_client(sync_client=True) as client:
        return str(client.create_flow_run(flow, name=name, parameters=parameters, state=Pending()).id)


@contextmanager
def translated() -> Iterator[None]:
    """Raise ``NetworkError`` where Prefect's client reports a failure of the API."""
    try:
        yield
    except (httpx.HTTPError, PrefectHTTPStatusError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith("Failed to reach API"):
            raise
        code = error.response.status_code if isinstance(error, PrefectHTTPStatusError) else None
        status = f", status {code}" if code else ""
        raise NetworkError(
            "prefect-unreachable", f"the Prefect API failed in the middle of a run ({type(error).__name__}{status})",
            hint="check the Prefect server, then continue the job", status=code,
        ) from None  # fmt: skip


def execute(flow: Flow[..., Any], job_id: str) -> None:
    """Run the flow run ``job_id`` now, in this thread. The record says how it ended.

    Raises:
        NetworkError: the Prefect API went away.
    """
    with (
        # With heartbeats, a sync flow waits more than a second for their thread at its end.
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        translated(),
        get_client(sync_client=True) as client,
    ):
        run = client.read_flow_run(UUID(job_id))
        if run.run_count or run.state is None or not run.state.is_pending():
            client.set_flow_run_state(run.id, Pending(message="continued"), force=True)
            run = client.read_flow_run(run.id)
        with suppress(Pause):
            run_flow(flow, flow_run=run, return_type="state")


def current() -> str:
    """Return the id of the flow run this code runs in."""
    return str(flow_run.id)


def pause(position: int, *, deployed: bool) -> tuple[State[Any], str]:
    """Return the state that parks a run at a wait, and the key of the answer to its form. Each call makes a new key."""
    state: State[Any] = (Suspended if deployed else Paused)(pause_key=f"{position}-{uuid4().hex[:8]}")
    keys = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = {str(key): value for key, value in keys.items()}
    return state, str(keys["response"])


def park(job_id: str, state: State[Any], description: str) -> NoReturn:
    """Park the run, then save its form, and leave the flow. Prefect 3.9 would remove a form saved earlier.

    Raises:
        prefect.exceptions.Pause: always, on success; the flow must let it through.
    """
    with translated(), get_client(sync_client=True) as client:
        result = client.set_flow_run_state(UUID(job_id), state)
        if result.state is None or not result.state.is_paused():
            raise TerminalError(
                "park-refused", "the Prefect server did not park the run",
                hint="look at the run's state in the Prefect UI, then continue it",
            )  # fmt: skip
        form = WaitForm.with_initial_data(description=description)
        form.save(keyset_from_paused_state(state), flow_run_id=UUID(job_id))
    raise Pause(state=result.state)


def leave() -> NoReturn:
    """Leave the flow without changing the run, because another process runs it.

    Raises:
        prefect.exceptions.Pause: always; the flow must let it through.
    """
    raise Pause(state=Running())


@contextmanager
def drained() -> Iterator[None]:
    """After the block, send the events (task runs) and logs that Prefect still holds. Takes ten seconds at most."""
    try:
        yield
    finally:
        with patience("sending the last lines and events to Prefect"):
            EventsWorker.drain_all(timeout=5)
            APILogHandler().flush()
