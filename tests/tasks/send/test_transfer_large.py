"""Memory and speed of a large transfer (issue 6, performance.md: at most 300 MB whatever the size of the data)."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from pathlib import Path

import pytest
import zstandard

from tests.peers.job import printed
from tests.peers.transfer import SYSTEM, TransferJob, TransferStore, serving

MB = 1_000_000
LIMIT = 300

CLIENT = """
import sys
from pathlib import Path
from tests.peers.transfer import TransferJob
result = TransferJob(Path(sys.argv[1])).send(sys.argv[2])
peak = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line[:5] == "VmHWM")
print(result.bytes_in, result.bytes_out, peak * 1024)
"""


def fill(job: TransferJob, *, random_mb: int, lines_mb: int, files: int) -> None:
    """Bytes that cannot be deflated, and lines that can, in ``files`` compressed files."""
    with (job.input / "random.csv").open("wb") as file:
        for _ in range(random_mb):
            file.write(os.urandom(MB))
    line = b'{"resourceType":"Observation","id":"o%09d","valueQuantity":{"value":%d.50}}\n'
    block = [b"".join(line % (n, n % 977) for n in range(start, start + 1000)) for start in range(0, 20_000, 1000)]
    for number in range(files):
        path = job.input / f"batch-{number:04}.ndjson.zst"
        with path.open("wb") as file, zstandard.ZstdCompressor(1).stream_writer(file, closefd=False) as lines:
            for index in range(lines_mb * MB // files // len(block[0]) + 1):
                lines.write(block[index % len(block)])


def equals(store: TransferStore) -> int:
    """The size of what the receiving process gets, compared by hash and length without holding it."""
    params = {"identifier": f"{SYSTEM}|Test_PROJECT-1"}
    found = store.http.get("/fhir/DocumentReference", params=params).json()["entry"][0]["resource"]
    attachment = found["content"][0]["attachment"]
    digest, size = hashlib.sha1(), 0
    with store.http.stream("GET", f"/fhir/{attachment['url']}", headers={"Accept": "application/zip"}) as answer:
        for piece in answer.iter_raw():
            digest.update(piece)
            size += len(piece)
    assert size == attachment["size"]
    assert base64.b64decode(attachment["hash"]) == digest.digest()
    return size


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("random_mb", "lines_mb", "files"), [(1000, 500, 5), (55, 50, 5), (10, 100, 5000)], ids=["1-gb-raw", "json", "5000"]
)
def test_memory_does_not_grow_with_the_zip(tmp_path: Path, random_mb: int, lines_mb: int, files: int) -> None:
    job = TransferJob(tmp_path / "job")
    fill(job, random_mb=random_mb, lines_mb=lines_mb, files=files)
    with serving(state=tmp_path / "state") as store:
        began = time.monotonic()
        size_in, size_out, peak = map(int, printed(CLIENT, job.directory, store.url).split())
        seconds = time.monotonic() - began
        assert equals(store) == size_out
    for path in (*job.input.iterdir(), *(tmp_path / "state").rglob("*")):
        if path.is_file():
            path.unlink()  # pytest keeps the directories of its last runs: these would be gigabytes
    print(f"{size_in / MB:.0f} MB in, zip of {size_out / MB:.0f} MB, {seconds:.1f} s, peak {peak / MB:.0f} MB")
    assert size_out >= random_mb * MB
    assert peak <= LIMIT * MB
