"""Uploads to ``rclone serve s3``, an S3 server with a minimal set of functions."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.send.s3.upload import MIB
from tasks.shared.errors import TerminalError
from tests.conftest import free_ports
from tests.peers.s3 import KEY_ID, SECRET, SMALL, S3Job, configuration
from tests.real.conftest import Measure
from tests.real.programs import HOST, program, running, scratch

pytestmark = pytest.mark.real

HOW = "python tests/real/get.py rclone"
BUCKET = "sluice-real"


@dataclass(frozen=True)
class Rclone:
    """A running server over a directory: every object is a file of it."""

    url: str
    data: Path

    def objects(self) -> dict[str, str]:
        """SHA-256 of every object, by key."""
        bucket = self.data / BUCKET
        files = [path for path in bucket.rglob("*") if path.is_file()]
        return {path.relative_to(bucket).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def rclone() -> Iterator[Rclone]:
    command = program("rclone", "SLUICE_REAL_RCLONE", HOW)
    with scratch() as home:
        (home / "data" / BUCKET).mkdir(parents=True)
        port = free_ports()
        options = (f"--addr={HOST}:{port}", f"--auth-key={KEY_ID},{SECRET}", "--vfs-cache-mode=off")
        config = {"RCLONE_CONFIG": str(home / "none.conf"), "RCLONE_CACHE_DIR": str(home / "cache")}
        serve = (command, "serve", "s3", home / "data", *options)
        with running("rclone", serve, home / "log", environ=config, port=port):
            yield Rclone(f"http://{HOST}:{port}", home / "data")


def filled(directory: Path) -> tuple[S3Job, dict[str, str]]:
    """Return a job with files of several sizes, and the objects that they must become."""
    job = S3Job(directory)
    draw = random.Random(1)
    contents = {f"small-{number}.csv": draw.randbytes(number) for number in range(1, 20)}
    contents |= {"large.ndjson": draw.randbytes(11 * MIB), "sub/Größe µ+%20.csv": b"x"}
    for name, content in contents.items():
        job.write(name, content)
    return job, {f"job-1/{name}": hashlib.sha256(content).hexdigest() for name, content in contents.items()}


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "in parts"])
def test_every_object_equals_its_source_also_when_sent_twice(
    rclone: Rclone, tmp_path: Path, parts: bool, figure: Measure
) -> None:
    job, expected = filled(tmp_path)
    config = configuration(rclone.url, bucket=BUCKET)
    for time in ("first", "second"):
        what = f"files, {'the largest in parts' if parts else 'each whole'}, the {time} time"
        figure("rclone", what, lambda: job.send(config, sizes=SMALL if parts else None))
        assert rclone.objects() == expected


@pytest.mark.parametrize(
    "s3", [{"secret_access_key": "canary"}, {"access_key_id": "CANARY"}, {"bucket": "no-such-bucket"}]
)
def test_wrong_settings_are_terminal_errors(rclone: Rclone, tmp_path: Path, s3: dict[str, Any]) -> None:
    job, _ = filled(tmp_path)
    with pytest.raises(TerminalError) as caught:
        job.send(configuration(rclone.url, **({"bucket": BUCKET} | s3)))
    assert caught.value.reference in {"s3-signature", "s3-access-key", "s3-access-denied", "s3-bucket"}
    assert "canary" not in caught.value.render().lower()
    assert rclone.objects() == {}
