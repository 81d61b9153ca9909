"""``events.ndjson``: append-only, whole after kill -9, mended after a torn line, and no run fails of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flows.reports.events import EventEntry, EventHead, JobEvent, StepEvent
from flows.reports.journal import NAME, EventLog
from tasks.shared.errors import StorageError
from tasks.shared.events import Status
from tests.conftest import ROOT, wait_until
from tests.peers.events import read_events


def entry(run: int = 1, text: str = "x") -> EventEntry:
    return EventEntry(
        EventHead(time="2026-03-02T09:15:19.102Z", job="j", run=run, step="send", position=2), Status(message=text)
    )


def test_events_are_appended_in_order_and_private(tmp_path: Path) -> None:
    for run in (1, 2):
        with EventLog(tmp_path) as log:
            for number in range(3):
                log.append(entry(run, str(number)))
    assert [(one.head.run, one.event.message) for one in read_events(tmp_path)] == [  # type: ignore[attr-defined]
        (run, str(number)) for run in (1, 2) for number in range(3)
    ]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b"{", b'{"time":"2026-03', b"\x00" * 5000, b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", entry(1).line()], ids=["nothing", "a line"])
def test_a_torn_last_line_is_passed_over_by_readers_and_removed_by_the_next_run(
    tmp_path: Path, whole: bytes, torn: bytes
) -> None:
    (tmp_path / NAME).write_bytes(whole + torn)
    assert list(read_events(tmp_path)) == [entry(1)] * bool(whole)
    with EventLog(tmp_path) as log:
        log.append(entry(2))
    assert (tmp_path / NAME).read_bytes() == whole + entry(2).line()


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    with EventLog(tmp_path) as log:
        threads = [threading.Thread(target=lambda: [log.append(entry()) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    assert lines == [entry().line()] * 800


WRITER = """
import sys
from pathlib import Path
from flows.reports.journal import EventLog
from flows.reports.events import EventEntry, EventHead
from tasks.shared.events import Status
with EventLog(Path(sys.argv[1])) as log:
    number = 0
    while True:
        number += 1
        log.append(EventEntry(EventHead(time="t", job="j", run=1), Status(message=f"{number} {'x' * (number % 5000)}")))
"""


@pytest.mark.e2e
def test_after_kill_9_the_log_is_readable_without_a_gap_and_goes_on(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        wait_until(lambda: (tmp_path / NAME).exists() and (tmp_path / NAME).stat().st_size > 500_000)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    kept = [int(one.event.message.split()[0]) for one in read_events(tmp_path)]  # type: ignore[attr-defined]
    assert kept == list(range(1, len(kept) + 1))
    with EventLog(tmp_path) as log:
        log.append(entry(2))
    after = list(read_events(tmp_path))
    assert len(after) == len(kept) + 1
    assert after[-1] == entry(2)


def test_a_full_disk_fails_no_run_leaves_no_half_line_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    full = False

    def small_disk(handle: int, data: bytes) -> int:
        nonlocal full
        if full:
            raise OSError(28, "No space left on device")
        full = len(data) > 500
        return write(handle, data[:500])

    with EventLog(tmp_path) as log:
        log.append(entry(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", small_disk)
            log.append(entry(1, "y" * 5000))
            log.append(entry(1))
        log.append(entry(2))
    assert (tmp_path / NAME).read_bytes() == entry(1).line() + entry(2).line()
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "events.ndjson cannot be written: no space is left on the device",
        "2 events are missing in events.ndjson",
    ]


def test_a_thread_that_outlives_the_run_writes_nothing(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.close()
    log.append(entry())
    log.close()
    assert list(read_events(tmp_path)) == []


def test_a_log_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        EventLog(tmp_path / "gone")


def test_other_kinds_are_read_as_what_they_are(tmp_path: Path) -> None:
    head = EventHead(time="t", job="j", run=1)
    events = [JobEvent(state="started"), StepEvent(state="running"), StepEvent(state="completed", files=1)]
    with EventLog(tmp_path) as log:
        for event in events:
            log.append(EventEntry(head, event))
    assert [one.event for one in read_events(tmp_path)] == events
