"""The table of Prefect's private parts: each row fits, takes effect, and is really called by Prefect."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest
from prefect import flow
from prefect._internal import observers
from prefect.cli._worker_utils import _load_worker_class
from prefect.client.base import PrefectHttpxSyncClient
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateDetails
from prefect.flow_engine import FlowRunEngine
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.results import ResultStore
from prefect.settings import PREFECT_WORKER_ENABLE_CANCELLATION, temporary_settings
from prefect.states import Running
from prefect.workers.base import BaseWorker
from prefect.workers.process import ProcessWorker

from flows.engine import patches, runs
from flows.engine.patches import ROWS, Row, UnfitPrefectError
from flows.engine.pool_worker import Worker
from tests.conftest import ROOT

EVERY: tuple[patches.Process, ...] = ("run", "worker", "server")
REPLACED = [row for row in ROWS if row.ours is not None]
OVERRIDDEN = [row for row in ROWS if "overrides it" in row.why]

Calls = list[str]
Proof = Callable[[Path, pytest.MonkeyPatch], None]


@pytest.fixture
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls that Prefect makes from now on at the row's place."""
    row: Row = request.getfixturevalue("row")
    patches.apply(row.process)
    found: Calls = []
    owner, name = patches._owner(row)
    if row in OVERRIDDEN:
        owner = runs.StepResults if "filesystems" in row.module else Worker
    there = getattr(owner, name)

    def called(*given: Any, **more: Any) -> Any:
        found.append(str(row))
        return there(*given, **more)

    async def begun(*_: Any, **__: Any) -> None:
        found.append(str(row))

    monkeypatch.setattr(owner, name, begun if asyncio.iscoroutinefunction(there) else called)
    return found


# --- how Prefect comes to each place ------------------------------------------------------------------------------


def a_client_sends(_: Path, __: pytest.MonkeyPatch) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    with PrefectHttpxSyncClient(transport=transport, base_url="http://127.0.0.1:9/api") as client:
        client.get("/x")


def a_run_with_a_slot_begins(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.engine.bridging.renew", lambda *_: None)
    monkeypatch.setattr("flows.engine.bridging.current_api", lambda: None)

    @flow
    def empty() -> None:
        """Do nothing."""

    details = StateDetails(deployment_concurrency_lease_id=uuid4())
    run = FlowRun(flow_id=uuid4(), state=Running(state_details=details))
    engine: Any = FlowRunEngine(flow=empty, flow_run=run, parameters={})
    monkeypatch.setattr(SyncPrefectClient, "read_flow_run", lambda *_: run)
    with SyncPrefectClient("http://127.0.0.1:9/api") as client, engine.setup_run_context(client=client):
        pass


def a_line_is_not_read(_: Path, __: pytest.MonkeyPatch) -> None:
    class BrokenStream(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    handler = PrefectConsoleHandler(stream=BrokenStream())
    handler.emit(logging.makeLogRecord({"msg": "a line", "levelno": logging.INFO, "levelname": "INFO"}))


def a_result_is_kept_and_read(place: Path, _: pytest.MonkeyPatch) -> None:
    store: Any = ResultStore(result_storage=runs.StepResults(basepath=str(place)), persist_result=True)
    record = store.create_result_record({"a": 1}, key="job/.results/1-send.json")
    store.persist_result_record(record)
    another: Any = ResultStore(result_storage=runs.StepResults(basepath=str(place)), persist_result=True)
    with pytest.raises(ValueError, match="not the JSON of a step"):
        another.read("job/.results/1-send.json")


def the_websocket_of_cancels_fails(_: Path, __: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        async def websocket() -> None:
            raise ConnectionError

        observer = observers.FlowRunCancellingObserver(on_cancelling=lambda _: None)
        consumer = asyncio.create_task(websocket())
        await asyncio.wait([consumer])
        observer._start_polling_task(consumer)
        assert observer._polling_task is not None
        await observer._polling_task

    asyncio.run(fails())


def worker() -> Worker:
    """Return a worker of Prefect's command line."""
    found = _load_worker_class("process")
    assert found is Worker
    made = Worker.__new__(Worker)
    made._limiter = None
    made._submitting_flow_run_ids = set()
    made._cancelling_observer = None
    made._logger = logging.getLogger("test")  # type: ignore[assignment]
    made.name = "w"
    made.backend_id, made.heartbeat_interval_seconds = None, 1
    return made


def a_worker_starts(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def entered(self: Worker) -> Worker:
        return self

    async def nothing(self: Worker, *_: Any) -> None:
        """Do nothing."""

    monkeypatch.setattr(ProcessWorker, "__aenter__", entered)
    monkeypatch.setattr(ProcessWorker, "__aexit__", nothing)
    monkeypatch.setattr(BaseWorker, "_emit_worker_started_event", nothing)
    for name in ("get_and_submit_flow_runs", "_sync_and_initialize"):
        if getattr(Worker, name).__name__ == "retried_once":  # the other one of the two
            monkeypatch.setattr(Worker, name, nothing)
    asyncio.run(BaseWorker.start(worker(), run_once=True))


def a_worker_finds_runs(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(self: Worker) -> list[Any]:
        return []

    found = worker()
    found._has_successfully_synced = True
    monkeypatch.setattr(BaseWorker, "_get_scheduled_flow_runs", none)
    asyncio.run(found.get_and_submit_flow_runs())


def a_worker_takes_up_a_run(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = worker()
    monkeypatch.setattr(BaseWorker, "get_flow_run_logger", lambda *_: logging.getLogger("test"))

    async def submit_run() -> None:
        async with anyio.create_task_group() as found._runs_task_group:
            run: Any = SimpleNamespace(flow_run=SimpleNamespace(id=uuid4()))
            await ProcessWorker._submit_scheduled_flow_runs(found, [run])

    asyncio.run(submit_run())


def a_worker_is_told_of_a_cancel(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = worker()
    found._work_pool = SimpleNamespace(id=uuid4())  # type: ignore[assignment]

    class Observer:
        def __init__(self, on_cancelling: Callable[[Any], None], **_: Any) -> None:
            self.cancel = on_cancelling

        async def __aenter__(self) -> Observer:
            return self

        async def __aexit__(self, *_: object) -> None:
            """Do nothing."""

    monkeypatch.setattr("prefect.workers.base.FlowRunCancellingObserver", Observer)

    async def cancel_run() -> None:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as found._exit_stack, anyio.create_task_group() as found._runs_task_group:
            await found._setup_cancellation_observer()
            observer: Any = found._cancelling_observer
            observer.cancel(uuid4())

    with temporary_settings({PREFECT_WORKER_ENABLE_CANCELLATION: True}):
        asyncio.run(cancel_run())


PROOFS: dict[str, Proof | str] = {
    "prefect.client.base.PrefectHttpxSyncClient._send_with_retry": a_client_sends,
    "prefect.flow_engine.maintain_concurrency_lease": a_run_with_a_slot_begins,
    "rich.console.Console.on_broken_pipe": a_line_is_not_read,
    "prefect.filesystems.LocalFileSystem._resolve_path": a_result_is_kept_and_read,
    "prefect.filesystems.LocalFileSystem.read_path": a_result_is_kept_and_read,
    "prefect.filesystems.LocalFileSystem.write_path": a_result_is_kept_and_read,
    "prefect._internal.observers.critical_service_loop": the_websocket_of_cancels_fails,
    "prefect.workers.base.BaseWorker.get_and_submit_flow_runs": a_worker_starts,
    "prefect.workers.base.BaseWorker._sync_and_initialize": a_worker_starts,
    "prefect.workers.process.ProcessWorker._submit_scheduled_flow_runs": a_worker_finds_runs,
    "prefect.workers.process.ProcessWorker._submit_run": a_worker_takes_up_a_run,
    "prefect.workers.process.ProcessWorker._cancel_run": a_worker_is_told_of_a_cancel,
    # What is no function, or needs a server: the test that shows it.
    "prefect.__ui_v2_static_path__": "deployments/test_server.py::test_an_own_server_has_one_ui_slots_in_files_and_"
    "passes_server_status",
    "prefect.server.api.collections.KNOWN_VIEWS": "flows/engine/test_patches.py::test_no_list_is_asked_for_outside",
    "prefect.server.events.ordering.memory.CausalOrdering.wait_for_leader": "flows/engine/server/test_event_order.py::"
    "test_a_server_of_ours_acts_at_once_on_an_event_that_follows_an_unknown_one",
    "prefect.server.database.configurations.AioSqliteConfiguration.begin_transaction": "flows/engine/server/test_app.py"
    "::test_requests_that_write_at_once_wait_for_each_other",
    "prefect.server.events.services.event_persister.write_events": "flows/engine/server/test_app.py::test_a_task_run_"
    "is_made_of_its_events_and_they_are_not_kept_beside_it",
}


def test_every_place_that_holds_ours_has_a_proof() -> None:
    assert {str(row) for row in (*REPLACED, *OVERRIDDEN)} == PROOFS.keys()
    for shown in (one for one in PROOFS.values() if isinstance(one, str)):
        file, _, name = shown.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()


@pytest.mark.parametrize("row", [row for row in (*REPLACED, *OVERRIDDEN) if callable(PROOFS[str(row)])], ids=str)
def test_prefect_calls_what_is_in_its_place(
    row: Row, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = PROOFS[str(row)]
    assert callable(proof)
    proof(tmp_path, monkeypatch)
    assert calls


@pytest.mark.slow
def test_no_list_is_asked_for_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.server.api import collections  # takes three seconds

    patches.apply("server")
    asked: list[str] = []

    async def get(_: httpx.AsyncClient, url: str) -> httpx.Response:
        asked.append(url)
        raise httpx.UnsupportedProtocol(url)

    monkeypatch.setattr(httpx.AsyncClient, "get", get)
    monkeypatch.setattr(collections, "GLOBAL_COLLECTIONS_VIEW_CACHE", {})
    assert "process" in asyncio.run(collections.get_collection_view("aggregate-worker-metadata"))["prefect"]
    assert asked == ["none:"]
    assert collections.KNOWN_VIEWS.keys() == patches.of_prefect("prefect.server.api.collections", "KNOWN_VIEWS").keys()


# --- the check ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_row_fits_the_installed_prefect_and_takes_its_place() -> None:
    patches.apply(*EVERY)
    patches.apply(*EVERY)  # also where ours is there already
    assert [str(row) for row in REPLACED if not patches.is_applied(row)] == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"module": "prefect._internal.nowhere"}, "its module or class no longer exists"),
        ({"attribute": "FlowRunCancellingObserver.nothing.deeper"}, "its module or class no longer exists"),
        ({"attribute": "another_loop"}, "it no longer exists"),
        ({"takes": "workload"}, f"its parameters are ({patches._LOOP}), expected (workload)"),
        ({"module": "prefect", "attribute": "nowhere/*.py"}, "no such file exists"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_named_with_the_version(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], why: str
) -> None:
    (fits,) = [row for row in ROWS if str(row) == "prefect._internal.observers.critical_service_loop"]
    row = replace(fits, **changed)  # type: ignore[arg-type]
    monkeypatch.setattr(patches, "ROWS", (row, fits, row))
    with pytest.raises(UnfitPrefectError) as refused:
        patches.apply("worker")
    assert refused.value.reference == "prefect-unfit"
    assert f"Prefect {version('prefect')}: 2 private parts of it have changed" in refused.value.message
    assert (refused.value.context or "").count(f"{row}: {why}") == 2
    assert refused.value.hint


def test_what_does_not_stay_in_its_place_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(type):
        def __setattr__(cls, name: str, value: object) -> None:
            """Keep what is there."""

    class StubbornClient(metaclass=Stubborn):
        def _send_with_retry(self, request, send, send_args, send_kwargs, retry_codes, retry_exceptions) -> None:  # type: ignore[no-untyped-def]
            """As Prefect's."""

    patches.apply("run")
    monkeypatch.setattr("prefect.client.base.PrefectHttpxSyncClient", StubbornClient)
    with pytest.raises(UnfitPrefectError, match="1 private part of it has changed") as refused:
        patches.apply("run")
    assert "_send_with_retry: the replacement did not take effect" in (refused.value.context or "")


def test_the_versions_are_those_of_the_pin() -> None:
    pinned = re.search(r'"prefect([^;"]+);', (ROOT / "pyproject.toml").read_text())
    assert pinned is not None
    assert pinned[1] == patches.VERSIONS


NEWER = """
import sys
from prefect._internal import observers
del observers.critical_service_loop
from prefect.workers.base import BaseWorker
del BaseWorker._cancel_run
from prefect.server.api import collections
from prefect import flow_engine
flow_engine.maintain_concurrency_lease = lambda lease, seconds: None
"""
"""What makes the installed Prefect another one inside."""


LOOP = "observers.critical_service_loop: it no longer exists"
SLOT = "maintain_concurrency_lease: its parameters are (lease seconds), expected ("

WORKER = "from flows.engine.pool_worker import main; main()"

RUN = """
import flows.run
try:
    from flows import pipeline
except Exception as error:
    sys.exit(flows.run.print_error(error))
"""


@pytest.fixture
def newer(tmp_path: Path) -> Callable[[str], tuple[int, str]]:
    """Run a program under a Prefect with changed internals; return its exit code and output."""

    def ran(code: str) -> tuple[int, str]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "PREFECT_HOME": str(tmp_path),
            "PREFECT_API_URL": "http://127.0.0.1:9/api",
        }
        process = subprocess.run(
            [sys.executable, "-c", f"{NEWER}\n{code}"], cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        return process.returncode, process.stderr

    return ran


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("code", "named"),
    [
        (WORKER, [LOOP, "ProcessWorker._cancel_run: it no longer exists", SLOT]),
        (RUN, [SLOT]),
        ("del collections.KNOWN_VIEWS\nfrom deployments.server import main; sys.exit(main([]))",
         ["prefect.server.api.collections.KNOWN_VIEWS: it no longer exists"]),
        ("import flows.run; sys.exit(flows.run.run(['--version']))", []),
    ],
    ids=["worker", "run", "server", "version"],
)  # fmt: skip
def test_nothing_that_leans_on_prefect_starts_on_one_that_is_another_inside(
    newer: Callable[[str], tuple[int, str]], code: str, named: list[str]
) -> None:
    status, said = newer(code)
    assert status == (1 if named else 0), said
    assert ("error[prefect-unfit]" in said) == bool(named)
    assert [one for one in named if one not in said] == []
    assert "Traceback" not in said


def test_the_page_of_development_names_the_table() -> None:
    assert "flows/engine/patches.py" in (ROOT / "docs" / "development.md").read_text()
