"""Comparison of the files to be sent with the record, before the first request of any mode (document 3 §7)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.send.step import run
from tasks.shared.errors import DataError, SluiceError, Stopped
from tasks.shared.files.inventory import Recorded, kept_at, take_inventory
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tests.peers.fhir import FhirReply, serving
from tests.peers.job import context
from tests.peers.server import Loopback, loopback
from tests.peers.server import Reply as Answer

LINE = b'{"resourceType":"Patient","id":"Canaryperson"}\n'
MODES: dict[str, dict[str, Any]] = {
    "direct_resource_load": {"batch_size": 1, "max_concurrent_requests": 1},
    "transfer_load": {"transfer": {"project_identifier": "p", "organization_identifier": "o"}},
    "s3_upload": {"s3": {"bucket": "b", "region": "r", "access_key_id": "k", "secret_access_key": "s"}},
}  # fmt: skip


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[Loopback]:
    with loopback([Answer(500)]) as running:
        yield running


class ImportedJob:
    """A job whose import is complete."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.input = directory / "import"
        self.input.mkdir(parents=True)
        (self.input / "a.ndjson").write_bytes(LINE)
        (self.input / "b.ndjson").write_bytes(LINE * 2)
        self.recorded = self.record("local_import")

    def record(self, step: str) -> Recorded:
        inventory = take_inventory(self.directory, [self.input], stop=Stop())
        inventory.save(kept_at(self.directory, 1))
        return Recorded(step, 1, kept_at(self.directory, 1), inventory.digest)

    def context(self, mode: str, url: str, stop: Stop | None = None) -> StepContext:
        send: dict[str, Any] = {"send_as": mode, "url": url, **MODES[mode]}
        if mode == "s3_upload":
            send["s3"] = {**send["s3"], "endpoint": url, "use_path_style": True}
        retry = {"max_attempts": 1, "initial_backoff_ms": 1, "max_backoff_ms": 1}
        more = {"source": self.input, "recorded": self.recorded, "stop": stop or Stop()}
        return context(self.directory, "send", {"services": {"send": send}, "retry": retry}, position=2, **more)


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
    "renamed: import/b.ndjson to import/z.ndjson": lambda place: (place / "b.ndjson").rename(place / "z.ndjson"),
}


@pytest.mark.parametrize("what", list(MEDDLING))
def test_a_file_that_is_not_as_its_step_left_it_is_found_before_any_request(
    job: ImportedJob, server: Loopback, mode: str, what: str
) -> None:
    MEDDLING[what](job.input)
    with pytest.raises(DataError) as caught:
        run(job.context(mode, server.url))
    error = caught.value
    assert (error.reference, error.context) == ("send-input-differs", what)
    assert "import/ is not as step 1, local_import, left it" in error.message
    assert "--from 1" in (error.hint or "")
    assert "Canaryperson" not in error.render()
    assert server.seen == []


def test_what_is_as_it_was_left_goes_out(job: ImportedJob, server: Loopback, mode: str) -> None:
    with pytest.raises(SluiceError) as caught:
        run(job.context(mode, server.url))
    assert caught.value.transient
    assert server.seen


def test_a_list_of_files_that_was_changed_too_hides_nothing(job: ImportedJob, server: Loopback, mode: str) -> None:
    (job.input / "a.ndjson").write_bytes(LINE * 3)
    job.record("local_import")  # the file beside the data, but not the digest in the record
    with pytest.raises(DataError) as caught:
        run(job.context(mode, server.url))
    assert caught.value.reference == "send-input-differs"
    assert caught.value.context == "the list of its files is gone or was changed"
    assert server.seen == []


def test_a_send_that_goes_on_compares_before_its_first_request_again(job: ImportedJob) -> None:
    with serving(lambda number, _: FhirReply(403, apply=False) if number else None) as server:
        with pytest.raises(SluiceError):
            run(job.context("direct_resource_load", server.url))
        begun = len(server.bundles)
        assert begun
        (job.input / "b.ndjson").write_bytes(LINE * 5)
        with pytest.raises(DataError) as caught:
            run(job.context("direct_resource_load", server.url))
        assert len(server.bundles) == begun
    assert caught.value.reference == "send-input-differs"


def test_what_a_wait_has_named_is_not_named_again(job: ImportedJob) -> None:
    (job.input / "NOTES.txt").write_text("x")
    with serving() as server:
        assert run(job.context("direct_resource_load", server.url)).warnings == (
            "left alone in import/, because it is not data: NOTES.txt",
        )
        job.recorded = job.record("wait")
        assert run(job.context("direct_resource_load", server.url)).warnings == ()


def test_a_stop_ends_the_comparison(job: ImportedJob, server: Loopback, mode: str) -> None:
    stop = Stop()
    stop.request("SIGTERM")
    with pytest.raises(Stopped):
        run(job.context(mode, server.url, stop))
    assert server.seen == []


def test_corrected_files_changed_after_their_check_are_found_with_a_reset_hint(
    job: ImportedJob, server: Loopback, mode: str
) -> None:
    job.recorded = job.record("wait")
    (job.input / "a.ndjson").write_bytes(LINE * 3)
    with pytest.raises(DataError) as caught:
        run(job.context(mode, server.url))
    assert caught.value.context == "changed: import/a.ndjson"
    assert "which moves the corrected files aside" in (caught.value.hint or "")
    assert server.seen == []
