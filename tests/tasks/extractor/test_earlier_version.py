"""Continuing an extraction that an earlier version left unfinished: its notes, records and files, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.shared.step import Handle
from tests.peers.extraction import (
    BASE,
    BUNDLE,
    JOB,
    ExtractorJob,
    MockExtraction,
    RecordingStore,
    configuration,
    crtdl,
    job_extensions,
    manifest,
    task,
)

OUT = f"{BASE}/out/{JOB}"
CORE, BATCH = f"{OUT}/core.ndjson", f"{OUT}/b1.ndjson"
HANDLE = Handle(f"{BASE}/fhir/__status/{JOB}", JOB)
SUBMITTED = {
    "extraction/asked.json": b'{"crtdl":"b1efca92ccc4586740787943dea769a3aa82df360877b23b402e22c176ab5bcb",'
    b'"patients":"4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"}',
    "extraction/submission.json": b'{"known":[],"at":null,"trial":null,"settled":true}',
}
DOWNLOADED = SUBMITTED | {
    "extraction/source.json": b'{"status_url":"https://torch.example/fhir/__status/' + JOB.encode() + b'"}',
    ".results/1-files.ndjson": b'{"name":"core.ndjson","lines":1,"content_bytes":108,"stored_bytes":108,"sha256":'
    b'"2fe9b695759c2ccdfb0b5b4d02958a4ca17c244680f20e6d45dd9012196580fb","bytes_in":108,"resources":1,'
    b'"source":"https://torch.example/out/11111111-1111-4111-8111-111111111111/core.ndjson"}\n',
    "import/core.ndjson": BUNDLE,
    "import/b1.ndjson.part": BUNDLE[:30],
}
CUT_OFF = SUBMITTED | {"extraction/submission.json": b'{"known":[],"at":null,"trial":null,"settled":false}'}
ON_TRIAL = SUBMITTED | {
    "extraction/submission.json": b'{"known":[],"at":null,"trial":"' + JOB.encode() + b'","settled":false}'
}


@pytest.mark.parametrize(
    ("state", "handle", "fetched"),
    [
        (SUBMITTED, HANDLE, [CORE, BATCH]),
        (DOWNLOADED, HANDLE, [BATCH]),
        (CUT_OFF, None, [CORE, BATCH]),
        (ON_TRIAL, HANDLE, [CORE, BATCH]),
    ],
    ids=["submitted", "downloaded in part", "cut off while it submitted", "on trial"],
)
def test_it_goes_on_and_submits_nothing_anew(
    tmp_path: Path, state: dict[str, bytes], handle: Handle | None, fetched: list[str]
) -> None:
    server = MockExtraction(
        files={CORE: BUNDLE, BATCH: BUNDLE * 2}, polls=[manifest(CORE, BATCH, extension=job_extensions(crtdl()))]
    )
    server.tasks[JOB] = task()
    job = ExtractorJob(tmp_path / "job", server, configuration(compression=False), RecordingStore(handle))
    for name, content in state.items():
        path = job.path / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o600)
    result = job.run()
    assert server.submissions == []
    assert sorted(server.downloads(".ndjson")) == sorted(fetched)
    assert (result.files, result.lines_out) == (2, 3)
    assert job.imported() == {"core.ndjson": BUNDLE, "b1.ndjson": BUNDLE * 2}
