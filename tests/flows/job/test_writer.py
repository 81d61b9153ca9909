"""The extraction handle is written into the job record, and read back (4-product.md §4)."""

import pytest
from flows.job.writer import RecordedHandle, RecordWriter

from tasks.shared.errors import TerminalError
from tasks.shared.step import Handle
from tests.peers.prefect import prefect_in_memory


def test_a_handle_is_read_from_the_record():
    with prefect_in_memory() as known:
        store = RecordedHandle(RecordWriter(known.api, "j"))
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


def test_a_handle_lost_with_its_removed_run_is_an_error_that_names_the_extraction():
    with prefect_in_memory() as known:
        store = RecordedHandle(RecordWriter(known.api, "j"))
        known.run = None
        with pytest.raises(TerminalError) as caught:
            store.save(Handle("https://h.example/fhir/__status/x", "x"))
        assert caught.value.reference == "job-unknown"
        assert "extraction cancel CONFIG x" in str(caught.value.hint)
        store.save(None)  # nothing is lost by that
