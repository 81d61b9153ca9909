"""The pass of the release report over what leaves, beside its target, at one size and at ten times that size.

python -m tests.bench report [--mb 200]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.data import bundles, write_files
from tests.bench.measure import MB, in_own_process, peak


def _scan(pipe: Any, directory: Path) -> None:
    from tasks.release_report.scan import ScanSettings, scan
    from tasks.shared.stop import Stop

    began, cpu = time.perf_counter(), time.process_time()
    found = scan(sorted(directory.iterdir()), directory, ScanSettings(), stop=Stop(), read=lambda _: None)
    pipe.send((time.perf_counter() - began, time.process_time() - cpu, peak(), found.patients))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=int, default=200, help="size of the data, uncompressed")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    lines = list(bundles(min(given.mb, 64.0)))
    for megabytes, files in ((given.mb, 8), (given.mb, 800), (given.mb * 10, 80)):
        with tempfile.TemporaryDirectory() as name:
            size = write_files(Path(name), megabytes, files, lines)
            wall, cpu, memory, patients = in_own_process(_scan, Path(name))
            print(
                f"{size / MB:6.0f} MB in {files:3} files, {patients:,} patients: {wall:.1f} s, "
                f"{size / cpu / MB:.0f} MB a CPU second (target ≥ 60), peak memory {memory / MB:.0f} MB"
            )
