"""Work that several processes share: ``tasks/shared/processes/`` (performance.md, "scales with processes")."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tasks.shared.errors import DataError, InternalError, ServiceBusyError, SluiceError, Stopped, TransientError
from tasks.shared.http.answer import RefusedError, answer_of
from tasks.shared.parallel import SharedStop
from tasks.shared.processes import in_processes
from tasks.shared.processes.work import Begin, Done, Logged
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop
from tasks.shared.window import in_order
from tests.conftest import wait_until
from tests.tasks.shared.scripted import CANARY, Locked, Question, Reply, Script, Unopened

ROOT = Path(__file__).parents[3]
SOON = 60.0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children() -> list[int]:
    """The processes that this one started and that run."""
    found: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            found += (thread / "children").read_text().split()
    return [int(pid) for pid in found if alive(int(pid))]


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
    def opened(
        self, processes: int = 2, slots: int = 4, work: Script | None = None
    ) -> Iterator[Callable[[list[Question]], list[Reply]]]:
        with in_processes(
            work or Script(), processes=processes, slots=slots, spare=1, stop=self.stop, stats=self.stats
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


@pytest.mark.parametrize("what", ["result-lock", "error-lock"])
def test_what_cannot_be_sent_back_is_a_defect_and_nobody_waits_for_it(pool: Pool, what: str) -> None:
    with in_processes(Script(), processes=2, slots=2, spare=0, stop=pool.stop, stats=pool.stats) as calls:
        for _ in range(2):
            with pytest.raises(InternalError, match="TypeError"):
                calls((what, 1))
        assert calls(("", 2))[1] == 2
    assert pool.stats.requests == 3


def test_work_that_cannot_be_taken_up_elsewhere_leaves_no_process_behind(pool: Pool) -> None:
    with pytest.raises(TypeError, match="locked"), pool.opened(work=Locked()):
        pass


def test_lines_of_the_log_come_back_with_their_arguments(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sluice"), pool.opened() as work:
        work([("log", n) for n in range(5)])
    assert sorted(str(record.args) for record in caplog.records) == [f"('script', {n})" for n in range(5)]
    assert {record.name for record in caplog.records} == {"sluice.script"}


def test_lines_of_the_log_bring_no_traceback_and_may_say_what_cannot_be_sent(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sluice"), pool.opened() as work:
        work([("log-lock", 1), ("log-error", 2)])
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines[0] == "it failed"
    assert lines[1].startswith("script: <unlocked _thread.lock object")
    assert CANARY not in caplog.text


def test_a_stop_of_the_run_reaches_the_work_in_other_processes(pool: Pool) -> None:
    timer = threading.Timer(0.3, lambda: pool.run.request("SIGTERM"))
    timer.start()
    started = time.monotonic()
    with pool.opened() as work, pytest.raises(Stopped, match="SIGTERM"):
        work([("wait", n) for n in range(8)])
    timer.join()
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


def test_a_process_that_cannot_begin_says_so_in_the_log_and_nobody_waits_for_it(
    pool: Pool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pool.opened(work=Unopened()) as work:
        with pytest.raises(TransientError) as lost:
            work([("", 1)])
        wait_until(lambda: len(caplog.messages) == 2, SOON)
    assert lost.value.reference == "process-lost"
    assert "unexpected ValueError" in caplog.messages[0]
    assert CANARY not in caplog.text + "".join(capfd.readouterr())


def test_a_process_that_leaves_in_the_middle_is_lost_although_its_other_threads_wait(
    pool: Pool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pool.opened() as work, pytest.raises(TransientError) as lost:
        work([("leave", 1), *[("wait", n) for n in range(5)]])
    assert lost.value.reference == "process-lost"
    assert "unexpected SystemExit" in caplog.text
    assert CANARY not in caplog.text + "".join(capfd.readouterr())


def test_a_signal_for_all_processes_of_a_service_is_left_to_the_run(pool: Pool) -> None:
    with pool.opened() as work:
        members = {process for process, _, _ in work([("", n) for n in range(20)])}
        for number in (signal.SIGINT, signal.SIGTERM):
            for member in members:
                os.kill(member, number)
            assert {process for process, _, _ in work([("", n) for n in range(20)])} == members


def test_when_no_process_can_be_started_those_begun_end_and_nothing_stays_open(pool: Pool) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = sorted(int(path.name) for path in Path("/proc/self/fd").iterdir())
    twenty_more = next(number for number in itertools.count() if number - sum(fd < number for fd in before) == 20)
    resource.setrlimit(resource.RLIMIT_NOFILE, (twenty_more, limits[1]))
    try:
        with (
            pytest.raises(TransientError, match="Too many open files") as refused,
            in_processes(Script(), processes=8, slots=8, spare=1, stop=pool.stop, stats=pool.stats),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert refused.value.reference == "process-not-started"
    assert {int(path.name) for path in Path("/proc/self/fd").iterdir()} <= set(before)


def test_no_message_shows_what_it_carries() -> None:
    messages = [
        Begin(Script(CANARY), 1, 1, 10), Done(CANARY, DataError("not-json", CANARY), ()),
        Logged("sluice", 10, CANARY, (CANARY,)),
    ]  # fmt: skip
    assert CANARY not in repr(messages)


OWNER = """
import sys
from tasks.shared.processes import in_processes
from tasks.shared.progress import RequestStats
from tasks.shared.stop import Stop
from tests.tasks.shared.scripted import Script
with in_processes(Script(), processes=2, slots=2, spare=1, stop=Stop(), stats=RequestStats()) as calls:
    print(calls(("", 1))[0], calls(("", 1))[0], flush=True)
    calls(("wait", 1))
"""


@contextmanager
def owner(cwd: Path = ROOT, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A run of its own, which shows the ids of its two processes as soon as they work."""
    run = subprocess.Popen(
        [sys.executable, "-P", "-c", before + OWNER], cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def processes_of(run: subprocess.Popen[str]) -> list[int]:
    assert run.stdout is not None
    return [int(pid) for pid in run.stdout.readline().split()]


def test_when_the_run_is_killed_its_processes_end_too_and_none_had_the_secret_on_its_command_line() -> None:
    with owner() as run:
        pids = processes_of(run)
        assert len(set(pids)) == 2
        for pid in pids:
            assert alive(pid)
            assert b"made-up" not in b"".join(
                Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")
            )
    wait_until(lambda: not any(map(alive, pids)), SOON)


def test_when_the_run_is_killed_while_its_processes_start_they_end_without_a_word() -> None:
    with owner() as run:
        begun = Path(f"/proc/{run.pid}/task/{run.pid}/children")
        wait_until(begun.read_text, SOON)  # type: ignore[arg-type]
        pids = [int(pid) for pid in begun.read_text().split()]
        run.kill()
        _, complaints = run.communicate()  # they have the same stderr, so this waits for them as well
    assert complaints == ""
    wait_until(lambda: not any(map(alive, pids)), SOON)


def test_modules_that_lie_where_the_run_was_started_are_not_taken_for_ours(tmp_path: Path) -> None:
    for name in ("tasks", "config", "pickle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit(7)\n")
    with owner(tmp_path) as run:
        assert len(processes_of(run)) == 2


def test_a_directory_that_is_gone_where_the_run_was_started_does_no_harm(tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    with owner(gone, before=f"import os; os.rmdir({str(gone)!r})") as run:
        assert len(processes_of(run)) == 2
