"""A transfer that was killed ends where an undisturbed one does (issue 6 "Show", 4-product.md §4 "Continue")."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tasks.send.transfer.store import TransferBounds
from tasks.shared.errors import SluiceError
from tests.conftest import wait_until
from tests.peers.job import in_process
from tests.peers.transfer import NOON, TransferJob, TransferStore, serving

SEED = int(os.environ.get("KILL_SEED", "20260302"))

# A process of its own, so that it can be killed: directory, URL, bytes above which the zip goes raw.
CLIENT = """
import sys
from pathlib import Path
from tasks.send.transfer.store import TransferBounds
from tests.peers.transfer import TransferJob
bounds = TransferBounds(raw_above=int(sys.argv[3]))
print(TransferJob(Path(sys.argv[1])).send(sys.argv[2], bounds=bounds).details["binary"])
"""

# What the server does when the kill comes (with ``applied``, it has done its work), and whether an upload is needed
# afterwards.
MOMENTS: dict[str, tuple[dict[str, Any], bool]] = {
    "upload-not-applied": ({"method": "PUT", "path": "*/Binary/*"}, True),
    "upload-applied": ({"method": "PUT", "path": "*/Binary/*", "at": "applied"}, False),
    "commit-applied": ({"method": "PUT", "path": "*/DocumentReference/*", "at": "applied"}, False),
}
MORE_MOMENTS: dict[str, tuple[dict[str, Any], bool]] = {
    "first-search": ({"method": "GET", "path": "*/DocumentReference"}, True),
    "look-for-the-binary": ({"method": "HEAD", "path": "*/Binary/*"}, True),
    "second-search": ({"method": "GET", "path": "*/DocumentReference", "skip": 1}, False),
    "commit-not-applied": ({"method": "PUT", "path": "*/DocumentReference/*"}, False),
    "old-binary-removed": ({"method": "DELETE", "at": "applied"}, False),
}


def start(job: TransferJob, url: str, raw_above: int = 0) -> subprocess.Popen[str]:
    return in_process(CLIENT, job.directory, url, raw_above, stderr=subprocess.DEVNULL)


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def undisturbed(directory: Path, **fill: Any) -> list[bytes]:
    """Return the target's content after an undisturbed run replaced an earlier state of the project."""
    with serving() as store:
        earlier(directory / "undisturbed-earlier", store)
        job = TransferJob(directory / "undisturbed")
        job.fill(**fill)
        job.send(store.url, bounds=TransferBounds(raw_above=0))
        return [*store.state(), store.receive().archive]


def earlier(directory: Path, store: TransferStore) -> None:
    job = TransferJob(directory)
    job.fill(patients=1)
    job.send(store.url, bounds=TransferBounds(raw_above=0))


def documents(store: TransferStore) -> list[bytes]:
    return [line for line in store.state() if b'"resourceType":"DocumentReference"' in line]


def was_applied(store: TransferStore, rule: dict[str, Any], before: list[bytes]) -> bool:
    """Return whether the request that is held back was applied; ``before`` are the documents without it."""
    if rule["method"] == "DELETE":
        return store.counts()["Binary"] == 1
    return store.counts()["Binary"] == 2 if "Binary" in rule["path"] else documents(store) != before


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment", [*MOMENTS, *(pytest.param(name, marks=pytest.mark.campaign) for name in MORE_MOMENTS)]
)
def test_kill_9_at_a_request_and_the_same_target_afterwards(tmp_path: Path, moment: str) -> None:
    rule, uploaded_again = (MOMENTS | MORE_MOMENTS)[moment]
    expected = undisturbed(tmp_path)
    job = TransferJob(tmp_path / "job")
    job.fill()
    with serving() as store:
        earlier(tmp_path / "earlier", store)
        before = documents(store)
        store.forget_requests()
        store.faults({"action": "delay", "seconds": 3, **rule})
        process = start(job, store.url)
        wait_until(lambda: any(one["struck"] for one in store.http.get("/_sandbox/faults").json()))
        if "at" in rule:
            wait_until(lambda: was_applied(store, rule, before))
        kill(process)
        store.faults()
        wait_until(lambda: not store.http.get("/_sandbox/requests").json()["in_flight"])
        # A request that was only delayed is applied after all, whoever sent it is gone or not.
        store.forget_requests()
        result = job.send(store.url, bounds=TransferBounds(raw_above=0))
        assert [*store.state(), store.receive().archive] == expected
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}
        assert (("PUT", "Binary") in store.writes()) == uploaded_again
    assert result.details["already_there"] != uploaded_again
    assert job.state_files == {"transfer.json"}


@pytest.mark.parametrize("at", ["survey", "pack", "journal"])
def test_kill_9_while_the_zip_is_made_leaves_nothing_that_counts(tmp_path: Path, at: str) -> None:
    """The states that a kill can leave on disk, before anything was sent."""
    job = TransferJob(tmp_path)
    files = job.fill()
    (tmp_path / "send").mkdir()
    if at != "survey":
        (tmp_path / "send" / ("transfer.zip.part" if at == "pack" else "transfer.zip")).write_bytes(b"PK half")
    with serving() as store:
        job.send(store.url)
        assert store.receive().files == files
    assert job.state_files == {"transfer.json"}


def test_the_zip_is_not_made_again_when_only_the_upload_failed(tmp_path: Path) -> None:
    job = TransferJob(tmp_path)
    job.fill()
    with serving() as store:
        store.faults({"action": "status", "status": 403, "method": "PUT"})
        with suppress(SluiceError):
            job.send(store.url)
        made = (tmp_path / "send" / "transfer.zip").stat()
        store.faults({"action": "status", "status": 403, "method": "PUT"})
        with suppress(SluiceError):
            job.send(store.url)
        again = (tmp_path / "send" / "transfer.zip").stat()
    assert (made.st_ino, made.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)


def test_the_date_of_the_document_is_that_of_the_first_run(tmp_path: Path) -> None:
    from datetime import timedelta

    job = TransferJob(tmp_path)
    job.fill()
    with serving() as store:
        store.faults({"action": "status", "status": 403, "method": "PUT", "path": "*/DocumentReference/*"})
        with suppress(SluiceError):
            job.send(store.url)
        job.send(store.url, now=NOON + timedelta(hours=5))
        assert store.receive().document["date"] == NOON.isoformat()


def test_changed_input_is_another_zip_and_the_binary_of_the_failed_run_goes(tmp_path: Path) -> None:
    job = TransferJob(tmp_path)
    job.fill()
    with serving() as store:
        store.faults({"action": "status", "status": 403, "method": "PUT", "path": "*/DocumentReference/*"})
        with suppress(SluiceError):
            job.send(store.url)
        assert store.counts() == {"Binary": 1}
        files = job.fill(patients=3)
        job.send(store.url)
        assert store.receive().files == files
        assert store.counts() == {"Binary": 1, "DocumentReference": 1}


def test_another_server_gets_everything(tmp_path: Path) -> None:
    job = TransferJob(tmp_path)
    files = job.fill()
    with serving() as one, serving() as two:
        job.send(one.url)
        job.send(two.url)
        assert two.receive().files == one.receive().files == files
        assert not any(method == "DELETE" for method, _, _ in two.requests())


@pytest.mark.parametrize("content", [b"", b"{", b'{"target":1}', b"\xff"])
def test_an_unreadable_journal_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    job = TransferJob(tmp_path)
    files = job.fill()
    (tmp_path / "send").mkdir()
    (tmp_path / "send" / "transfer.json").write_bytes(content)
    with serving() as store:
        job.send(store.url)
        assert store.receive().files == files
    assert json.loads((tmp_path / "send" / "transfer.json").read_bytes())["uploaded"]


@pytest.mark.campaign
def test_kill_9_at_30_random_moments_and_the_same_target_afterwards(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"KILL_SEED={SEED}")
    expected = undisturbed(tmp_path, patients=150_000)
    job = TransferJob(tmp_path / "measured")
    job.fill(patients=150_000)
    with serving() as store:
        earlier(tmp_path / "earlier-measured", store)
        began = time.monotonic()
        start(job, store.url).communicate(timeout=120)
        whole = time.monotonic() - began
    kills = 0
    for round_number in range(30):
        place = tmp_path / f"round-{round_number}"
        job = TransferJob(place / "job")
        job.fill(patients=150_000)
        with serving() as store:
            earlier(place / "earlier", store)
            for _ in range(chance.randrange(1, 4)):
                process = start(job, store.url)
                with suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=chance.uniform(0.2, whole * 1.1))
                kills += process.poll() is None
                kill(process)
            wait_until(lambda store=store: store.http.get("/_sandbox/requests").json()["in_flight"] == 0)
            job.send(store.url, bounds=TransferBounds(raw_above=0))
            assert [*store.state(), store.receive().archive] == expected, f"round {round_number}"
        assert job.state_files == {"transfer.json"}
    print(f"{kills} kills in 30 rounds, undisturbed {whole:.1f} s")
    assert kills >= 30
