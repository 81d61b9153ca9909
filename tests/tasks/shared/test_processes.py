"""Work that several processes share: ``tasks/shared/processes/`` (performance.md, "scales with processes")."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tasks.shared.answer import Answer, RefusedError, answer_of
from tasks.shared.errors import DataError, ServiceBusyError, SluiceError, Stopped, TransientError
from tasks.shared.parallel import SharedStop
from tasks.shared.processes import in_processes
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop
from tasks.shared.window import in_order
from tests.conftest import wait_until

ROOT = Path(__file__).parents[3]
CANARY = "CANARY-Mustermann"
SOON = 20.0

Question = tuple[str, int]
"""What to do, and a number."""
Reply = tuple[int, int, bytes]
"""Process, the number, and some bytes."""


@dataclass(frozen=True)
class Script:
    """Does what the items say; ``secret`` stands for credentials."""

    secret: str = "made-up"

    @contextmanager
    def opened(self, *, slots: int, stop: Stop, stats: RequestStats) -> Iterator[Callable[[Question], Reply]]:
        log = logging.getLogger("sluice.script")

        def work(item: Question) -> Reply:
            what, number = item
            stats.record(0.01 * number, retry=what == "repeat")
            if what == "refused":
                error = RefusedError("service-refused", "no", context="a.ndjson:7", hint="mend it", status=422)
                error.answer = Answer(422, httpx.Headers({"retry-after": "7"}), CANARY.encode())
                raise error
            if what == "busy":
                raise ServiceBusyError("service-busy", "later", operation="x", status=429, retry_after=1.5)
            if what == "defect":
                raise KeyError(CANARY)
            if what == "log":
                log.warning("%s: line %d", "script", number)
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "wait":
                stop.sleep(60)
            return os.getpid(), number, b"x" * (number if what == "large" else 1)

        yield work


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children() -> list[int]:
    """The processes that this one started and that run."""
    found = Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text()
    threads = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    for thread in threads:
        if thread != threading.main_thread().native_id:
            found += " " + Path(f"/proc/self/task/{thread}/children").read_text()
    return [int(pid) for pid in found.split() if alive(int(pid))]


@pytest.fixture(autouse=True)
def _no_process_and_no_thread_is_left_behind() -> Iterator[None]:
    processes, threads = children(), set(threading.enumerate())
    yield
    assert [pid for pid in children() if pid not in processes] == []
    assert [thread.name for thread in threading.enumerate() if thread not in threads] == []


class Pool:
    """Two processes with a stop and statistics of their own."""

    def __init__(self) -> None:
        self.run = Stop()
        self.stop = SharedStop(self.run)
        self.stats = RequestStats()

    @contextmanager
    def opened(self, processes: int = 2, slots: int = 4) -> Iterator[Callable[[list[Question]], list[Reply]]]:
        with in_processes(
            Script(), processes=processes, slots=slots, spare=1, stop=self.stop, stats=self.stats
        ) as calls:
            yield lambda items: list(in_order(items, calls, threads=calls.threads, stop=self.run, together=self.stop))


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_results_come_in_order_from_several_processes_and_every_request_is_counted(pool: Pool) -> None:
    with pool.opened() as work:
        replies = work([("large" if n % 7 else "repeat", n * 10_000) for n in range(60)])
    assert [(number, len(text)) for _, number, text in replies] == [
        (n * 10_000, n * 10_000 if n % 7 else 1) for n in range(60)
    ]
    processes = {process for process, _, _ in replies}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert pool.stats.requests == 60
    assert pool.stats.retries == 9
    assert pool.stats.percentile(1.0) == pytest.approx(5900, rel=0.05)


@pytest.mark.parametrize(("processes", "slots"), [(1, 4), (3, 1)])
def test_one_process_is_this_one_and_there_are_never_more_than_slots(pool: Pool, processes: int, slots: int) -> None:
    with pool.opened(processes, slots) as work:
        assert {process for process, _, _ in work([("", n) for n in range(20)])} == {os.getpid()}


def test_what_is_larger_than_any_buffer_goes_both_ways(pool: Pool) -> None:
    with in_processes(Script(), processes=2, slots=2, spare=0, stop=pool.stop, stats=pool.stats) as calls:
        assert len(calls(("large", 30_000_000))[2]) == 30_000_000


def test_an_error_comes_back_as_it_was_raised_after_the_results_before_it(pool: Pool) -> None:
    with pool.opened() as work, pytest.raises(RefusedError) as refused:
        work([("", 1), ("refused", 2), ("wait", 3), ("", 4)])
    error = refused.value
    assert (error.reference, error.message, error.context, error.hint, error.status) == (
        "service-refused", "no", "a.ndjson:7", "mend it", 422
    )  # fmt: skip
    answer = answer_of(error)
    assert answer is not None
    assert (answer.status, answer.headers["retry-after"], answer.body) == (422, "7", CANARY.encode())
    assert CANARY not in repr(error) + str(error)


def test_a_defect_comes_back_without_the_value_that_caused_it(pool: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    with pool.opened() as work, pytest.raises(SluiceError) as defect:
        work([("defect", 1)])
    assert defect.value.reference == "internal"
    assert "KeyError" in defect.value.message
    assert CANARY not in defect.value.render() + "".join(capfd.readouterr())


def test_every_error_survives_the_way_with_all_it_says() -> None:
    errors = [
        ServiceBusyError("service-busy", "later", operation="x", status=429, retry_after=1.5),
        DataError("not-json", "x: y", context="a:1"),
    ]
    for error in errors:
        error.details = {"n": 1}
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (again.args, vars(again)) == (error.args, vars(error))


def test_lines_of_the_log_come_back_with_their_arguments(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sluice"), pool.opened() as work:
        work([("log", n) for n in range(5)])
        wait_until(lambda: len(caplog.records) == 5, SOON)
    assert sorted(str(record.args) for record in caplog.records) == [f"('script', {n})" for n in range(5)]
    assert {record.name for record in caplog.records} == {"sluice.script"}


def test_a_stop_of_the_run_reaches_the_work_in_other_processes(pool: Pool) -> None:
    threading.Timer(0.3, lambda: pool.run.request("SIGTERM")).start()
    started = time.monotonic()
    with pool.opened() as work, pytest.raises(Stopped, match="SIGTERM"):
        work([("wait", n) for n in range(8)])
    assert time.monotonic() - started < SOON


def test_the_first_error_ends_what_the_other_processes_do(pool: Pool) -> None:
    started = time.monotonic()
    with pool.opened() as work, pytest.raises(ServiceBusyError) as busy:
        work([("busy", 0), *[("wait", n) for n in range(8)]])
    assert busy.value.retry_after == 1.5
    assert time.monotonic() - started < SOON


def test_a_process_that_dies_is_a_transient_error_and_nobody_waits_for_it(pool: Pool) -> None:
    with pool.opened() as work, pytest.raises(TransientError) as lost:
        work([("", 0), ("die", 1), *[("", n) for n in range(20)]])
    assert lost.value.reference == "process-lost"
    assert "SIGKILL" in lost.value.message


OWNER = """
import sys
from tasks.shared.processes import in_processes
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop
from tests.tasks.shared.test_processes import Script
with in_processes(Script(), processes=2, slots=2, spare=1, stop=Stop(), stats=RequestStats()) as calls:
    print(calls(("", 1))[0], calls(("", 1))[0], flush=True)
    calls(("wait", 1))
"""


def test_when_the_run_is_killed_its_processes_end_too_and_none_had_the_secret_on_its_command_line() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(set(pids)) == 2
    for pid in pids:
        assert alive(pid)
        assert b"made-up" not in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_until(lambda: not any(map(alive, pids)), SOON)
