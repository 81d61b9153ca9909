"""Much data through ``s3_upload``: the memory stays where it is (performance.md, 300 MB). Campaign only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arguments", "megabytes"),
    [
        (["--mb", "100", "--files", "10"], 100),
        (["--mb", "2000", "--files", "40"], 2000),
        (["--mb", "100", "--files", "5000"], 100),
        (["--mb", "0", "--files", "1", "--sparse-mb", "6000"], 10),
    ],
    ids=["100 MB in 10 files", "2 GB in 40 files", "5,000 small files", "one sparse file of 6 GB"],
)
def test_memory_stays_below_300_mb(arguments: list[str], megabytes: int, tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 2 * megabytes * 1_000_000:
        pytest.skip("not enough space on the disk")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.bench", "s3", "--no-curl", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    peak = re.search(r"peak memory (\d+) MB", ran.stdout)
    assert peak is not None
    assert int(peak[1]) <= 300, ran.stdout
