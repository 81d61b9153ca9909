"""The extraction handle is written into the job record, and read back (4-product.md §4)."""

import pytest

from flows.job.writer import RecordedHandle, RecordWriter
from flows.reports.events import KickOff
from tasks.shared.errors import TerminalError
from tasks.shared.events import Status
from tasks.shared.step import Handle
from tests.peers.prefect import prefect_in_memory


def test_a_handle_is_read_from_the_record_and_announced_when_it_is_kept_or_gone():
    told = []
    with prefect_in_memory() as known:
        store = RecordedHandle(RecordWriter(known.api, "j"), told.append)
        store.save(Handle("https://h.example/fhir/__status/x", "x"))
        store.save(None)
        known.run = {
            "id": "j",
            "state_type": "RUNNING",
            "labels": {"job.extraction.status_url": "https://h.example/x", "job.extraction.job_id": "x"},
        }
        assert store.load() == Handle("https://h.example/x", "x")
        known.run = {"id": "j", "state_type": "RUNNING", "labels": {}}
        assert store.load() is None
    assert told == [KickOff(extraction="x"), Status(message="the extraction job is gone")]


def test_a_handle_lost_with_its_removed_run_is_an_error_that_names_the_extraction():
    with prefect_in_memory() as known:
        store = RecordedHandle(RecordWriter(known.api, "j"), lambda _: None)
        known.run = None
        with pytest.raises(TerminalError) as caught:
            store.save(Handle("https://h.example/fhir/__status/x", "x"))
        assert caught.value.reference == "job-unknown"
        assert "extraction cancel CONFIG x" in str(caught.value.hint)
        store.save(None)  # nothing is lost by that
