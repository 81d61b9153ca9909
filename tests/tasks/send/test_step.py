"""The choice of the mode, and the comparison of the input with the record before the first request (docs/steps.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.send.step import STEP
from tasks.shared.errors import DataError, SluiceError, Stopped
from tasks.shared.files.inventory import Recorded, kept_at, take_inventory
from tasks.shared.report import StepReport
from tasks.shared.stop import Stop
from tests.peers.server import Loopback, Reply, loopback
from tests.tasks.send.place import SendJob

LINE = b'{"resourceType":"Patient","id":"Canaryperson"}\n'
TRANSFER = {"transfer": {"project_identifier": "p", "organization_identifier": "o"}}
KEYS = {"bucket": "bucket", "region": "r", "access_key_id": "k", "secret_access_key": "s", "use_path_style": True}
MODES: dict[str, Callable[[str], dict[str, Any]]] = {
    "direct_resource_load": lambda _: {"batch_size": 1, "max_concurrent_requests": 1},
    "transfer_load": lambda _: TRANSFER,
    "s3_upload": lambda url: {"s3": KEYS | {"endpoint": url}},
}


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[Loopback]:
    with loopback([Reply(500)]) as running:
        yield running


class ImportedJob(SendJob):
    """A job whose import is complete."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.put("a.ndjson", LINE)
        self.put("b.ndjson", LINE * 2)
        self.recorded = self.record("local_import")

    def record(self, step: str) -> Recorded:
        inventory = take_inventory(self.directory, [self.input], stop=Stop())
        inventory.save(kept_at(self.directory, 1))
        return Recorded(step, 1, kept_at(self.directory, 1), inventory.digest)

    def send(self, mode: str, url: str, stop: Stop | None = None) -> StepReport:
        config = self.configuration(mode, url, 1, **MODES[mode](url))
        return STEP.run(self.prepare(config, recorded=self.recorded, stop=stop or Stop()))


@pytest.fixture
def job(tmp_path: Path) -> ImportedJob:
    return ImportedJob(tmp_path / "job")


def keeping_its_times(path: Path, content: bytes) -> None:
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


MEDDLING: dict[str, Callable[[Path], object]] = {
    "removed: import/b.ndjson": lambda place: (place / "b.ndjson").unlink(),
    "added: import/c.ndjson": lambda place: (place / "c.ndjson").write_bytes(LINE.replace(b"person", b"persoN")),
    "added: import/c.csv": lambda place: (place / "c.csv").write_bytes(b"id\n1\n"),
    "changed: import/a.ndjson": lambda place: keeping_its_times(place / "a.ndjson", LINE.replace(b"C", b"K")),
    "added: import/z.ndjson\n  removed: import/b.ndjson": lambda place: (place / "b.ndjson").rename(place / "z.ndjson"),
}


@pytest.mark.parametrize("what", list(MEDDLING))
def test_a_file_that_is_not_as_its_step_left_it_is_found_before_any_request(
    job: ImportedJob, server: Loopback, mode: str, what: str
) -> None:
    MEDDLING[what](job.input)
    with pytest.raises(DataError) as caught:
        job.send(mode, server.url)
    error = caught.value
    assert (error.reference, error.context) == ("send-input-differs", what)
    assert "import/ differs from what step 1, local_import, recorded" in error.message
    assert "--from 1" in (error.hint or "")
    assert "Canaryperson" not in error.render()
    assert server.seen == []


def test_what_is_as_it_was_left_goes_out(job: ImportedJob, server: Loopback, mode: str) -> None:
    with pytest.raises(SluiceError) as caught:
        job.send(mode, server.url)
    assert caught.value.transient
    assert server.seen


def test_a_list_of_files_that_was_changed_too_hides_nothing(job: ImportedJob, server: Loopback, mode: str) -> None:
    (job.input / "a.ndjson").write_bytes(LINE * 3)
    job.record("local_import")  # the file beside the data, but not the digest in the record
    with pytest.raises(DataError) as caught:
        job.send(mode, server.url)
    assert caught.value.reference == "send-input-differs"
    assert caught.value.context == "the list of its files is gone or was changed"
    assert server.seen == []


def test_a_send_that_goes_on_compares_before_its_first_request_again(job: ImportedJob, server: Loopback) -> None:
    with pytest.raises(SluiceError):
        job.send("direct_resource_load", server.url)
    begun = len(server.seen)
    (job.input / "b.ndjson").write_bytes(LINE * 5)
    with pytest.raises(DataError) as caught:
        job.send("direct_resource_load", server.url)
    assert (caught.value.reference, len(server.seen)) == ("send-input-differs", begun)


def test_corrected_files_changed_after_their_check_are_found(job: ImportedJob, server: Loopback, mode: str) -> None:
    job.recorded = job.record("wait")
    (job.input / "a.ndjson").write_bytes(LINE * 3)
    with pytest.raises(DataError) as caught:
        job.send(mode, server.url)
    assert caught.value.context == "changed: import/a.ndjson"
    assert server.seen == []


def test_a_stop_ends_the_comparison(job: ImportedJob, server: Loopback, mode: str) -> None:
    stop = Stop()
    stop.request("SIGTERM")
    with pytest.raises(Stopped):
        job.send(mode, server.url, stop)
    assert server.seen == []


def test_nothing_to_send_is_an_error_before_any_request(tmp_path: Path, server: Loopback, mode: str) -> None:
    job = SendJob(tmp_path)
    job.put(".hidden", b"x")
    job.put("a.ndjson.part", b"{}")
    with pytest.raises(DataError) as caught:
        STEP.run(job.prepare(job.configuration(mode, server.url, **MODES[mode](server.url))))
    assert caught.value.reference == "send-no-input"
    assert server.seen == []
