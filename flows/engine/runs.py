"""Use Prefect's engine: create a run, run it (again), park it, resume it.

Facts measured on 3.8.8: ``run_flow(flow, flow_run=…)`` executes a run that was created before,
and again after Crashed, Failed or ``kill -9``. A custom wait sets Paused (no deployment) or Suspended, then saves its
form, then raises ``Pause`` in the flow body. Pause keys are reset when a failed run is retried, so ours are new
each time and the decision is kept in a label.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID, uuid4

import httpx
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, SyncClientContext
from prefect.exceptions import Abort, Pause, PrefectHTTPStatusError, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.input import RunInput
from prefect.input.run_input import keyset_from_paused_state
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    temporary_settings,
)
from prefect.states import Paused, Pending, Suspended

from flows.engine.flow_runs import FormAnswer
from flows.prefect.api import TAG
from tasks.shared.errors import NetworkError, TerminalError


class WaitForm(RunInput, FormAnswer):
    """The resume form of a ``wait``.

    The Prefect server checks an answer against the schema of this form, and keeps the run parked if it does not match.
    """


def create_run(
    flow: Flow[..., Any], *, name: Callable[[str], str], parameters: dict[str, Any], labels: dict[str, Any]
) -> str:
    """Create a run in state Pending and return its id: the job id. Nothing runs yet. ``name`` returns the name for an
    id.

    Raises:
        NetworkError: the Prefect API does not answer, or fails.
    """
    with translated(), get_client(sync_client=True) as client:
        run = client.create_flow_run(flow, parameters=parameters, state=Pending(), tags=[TAG])
        client.set_flow_run_name(run.id, name(str(run.id)))
        client.update_flow_run_labels(run.id, labels)
    return str(run.id)


@contextmanager
def translated() -> Iterator[None]:
    """Raise our errors for failures of the API that Prefect's client reports."""
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
    """Run the flow run ``job_id`` now, in this thread. Its end is in the record.

    Raises:
        NetworkError: the Prefect API went away.
    """
    with (
        # A sync flow would join a heartbeat thread for more than a second at its end.
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        translated(),
        get_client(sync_client=True) as client,
    ):
        run = client.read_flow_run(UUID(job_id))
        try:
            run_flow(flow, flow_run=run, return_type="state")
        except Pause:
            return
        except Abort as refusal:
            raise TerminalError(
                "prefect-abort", f"Prefect does not let this run continue: {refusal}",
                hint="look at the run in the Prefect UI",
            ) from None  # fmt: skip


@contextmanager
def one_client() -> Iterator[None]:
    """Share one Prefect client in this thread: each new one reads all certificates.

    Raises:
        NetworkError: the Prefect API does not answer, or fails.
    """
    with ExitStack() as stack:
        with translated():
            stack.enter_context(SyncClientContext.get_or_create())
        yield


def drain() -> None:
    """Send the events (task runs) and logs that Prefect's background threads still hold."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogHandler

    try:
        EventsWorker.drain_all(timeout=5)
    finally:
        APILogHandler().flush()


def current_run() -> tuple[str, bool]:
    """Return the id of the flow run this code runs in, and whether it belongs to a deployment."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise TerminalError("no-flow-run", "the pipeline runs only as a Prefect flow run")
    return str(context.flow_run.id), context.flow_run.deployment_id is not None


def leave_alone() -> None:
    """Leave the flow without touching the run's state: another process has it.

    Raises:
        prefect.exceptions.Abort: always.
    """
    raise Abort("another process runs this job")


def pause(position: int, *, deployed: bool) -> tuple[State[Any], str]:
    """Return the state that parks a run at a wait, and the key of the answers to its form. Each has a new key."""
    pause_key = f"{position}-{uuid4().hex[:8]}"
    state: State[Any] = Suspended(pause_key=pause_key) if deployed else Paused(pause_key=pause_key)
    keys = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = {str(key): value for key, value in keys.items()}
    return state, str(keys["response"])


def park(job_id: str, state: State[Any], description: str) -> NoReturn:
    """Park the run, then save its form, and leave the flow. Prefect 3.9 removes a form that was saved before.

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


def stay_suspended(job_id: str, *, deployed: bool) -> NoReturn:
    """Leave the flow of a run suspended in the UI, and keep *Resume* available without a time limit.

    The UI sets a limit, by default five minutes, after which Prefect would set the run to Failed.

    Raises:
        prefect.exceptions.Pause: always, unless the run was resumed meanwhile: ``Abort``.
    """
    message = "stopped by Suspend: Resume continues it" if deployed else "stopped: use pipeline continue"
    state: State[Any] = (Suspended if deployed else Paused)(message=message)
    with translated(), get_client(sync_client=True) as client:
        now = client.read_flow_run(UUID(job_id)).state
        if now is None or not now.is_paused():
            raise Abort("the run was resumed before it had stopped")
        result = client.set_flow_run_state(UUID(job_id), state, force=True)
    raise Pause(state=result.state or state)


def raise_termination_if_asked() -> None:
    """Pass a SIGTERM that a Prefect runner sent on purpose (a cancel) back to Prefect.

    Raises:
        prefect.exceptions.TerminationSignal: a runner asked; the flow must let it through.
    """
    from prefect._internal.control_listener import get_intent

    if get_intent() is not None:
        raise TerminationSignal(signal.SIGTERM)


def in_scratch_directory() -> bool:
    """Return whether this process works in a directory that a process worker made for one run and will remove."""
    here = Path.cwd()
    return here.parent == Path(tempfile.gettempdir()).resolve() and here.name.endswith("prefect")
