"""Continuing the unfinished work of an earlier version, with its state files letter by letter."""

from __future__ import annotations

from pathlib import Path

from tests.peers import fhir
from tests.peers.s3 import SMALL, S3Job, scripted
from tests.peers.server import Reply
from tests.peers.transfer import Endpoint, TransferJob

PATIENT = b'{"resourceType":"Patient","id":"p%d"}\n'
CONTENTS = "72e144f8e2dde8a4ff58c8f41fdc5c30af2f5b42733ce41688a5e4d193102411"
"""SHA-256 of the manifest of a transfer of one patient."""


def test_a_direct_load_sends_what_the_ledger_does_not_know_as_sent(tmp_path: Path) -> None:
    job = fhir.DirectLoadJob(tmp_path)
    job.put("a.ndjson", b"".join(PATIENT % number for number in range(5)))
    job.ledger.parent.mkdir()
    with fhir.serving() as server:
        sha256 = "36f9ff8d8faf4f9216416be814bf6ae97ecb88063cf5a25df3af5bc3cb0e2ab1"
        job.ledger.write_text(
            f'{{"file":"a.ndjson","identity":"sha256:{sha256} {server.url}/fhir"}}\n'
            '{"file":"a.ndjson","done":[[0,2]],"counts":{"sent":2}}\n'
            '{"file":"a.ndjson","done":[[3,4]],"counts":{"sent":1}}\n'
        )
        result = job.send(server.url)
        assert sorted(key for sent in server.sent for key in sent) == ["Patient/p2", "Patient/p4"]
    assert result.resources_out == 5


def test_a_transfer_puts_the_document_for_a_zip_that_is_on_the_server(tmp_path: Path) -> None:
    job = TransferJob(tmp_path)
    job.put("a.ndjson", PATIENT % 1)
    state = tmp_path / "send"
    state.mkdir()
    moments = []

    def script(moment: str, _: object, reply: Reply) -> Reply | None:
        moments.append(moment)
        return Reply(200, b"", {"Content-Type": "application/zip"}, length=321) if moment == "look" else None

    with Endpoint(script) as store:
        (state / "transfer.json").write_text(
            f'{{\n  "target": "{store.url}/fhir",\n  "contents": "{CONTENTS}",\n'
            '  "date": "2026-03-02T12:00:00+00:00",\n'
            f'  "archive": {{\n    "size": 321,\n    "sha256": "{"a" * 64}",\n    "sha1": "{"b" * 40}"\n  }},\n'
            '  "uploaded": true,\n  "leftovers": []\n}\n'
        )
        result = job.send(store.url)
    assert result.details["already_there"]
    assert result.details["zip_sha256"] == "a" * 64
    assert "upload" not in moments


def test_an_upload_in_parts_of_a_killed_run_is_removed_by_its_key(tmp_path: Path) -> None:
    job = S3Job(tmp_path)
    job.put("a.ndjson", PATIENT % 1)
    (tmp_path / "send").mkdir()
    (tmp_path / "send" / "in_parts.json").write_text('["job-1/large.ndjson"]\n')
    with scripted(whole_keys=True) as store:
        store.begun["u1"] = ("job-1/large.ndjson", {})
        job.send(store.url, sizes=SMALL)
        assert store.begun == {}
    assert not (tmp_path / "send" / "in_parts.json").exists()
