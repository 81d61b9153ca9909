"""Cost of the measuring pass of the release report (document 5, section 3).

    python -m tests.bench release_report [--mb 100] [--files 8] [--zst] [--lines | --one-line]
    python -m tests.bench release_report --mb 2000       the campaign

``import/`` and what leaves are measured one after the other in a process of their own, original values looked up: CPU
seconds for 25 MB of each directory (limit 1.0), and how much memory it took more (limit 200 MB). Beside them the same
for ``msgspec`` reading the lines alone: how fast the machine is at the moment. ``--lines`` is one resource a line,
``--one-line`` one Bundle of many patients a file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tasks.release_report.measure.measure import measure
from tasks.release_report.measure.originals import Originals
from tasks.shared.stop import Stop
from tests.bench.data import bundles, compress
from tests.bench.memory import MIB, in_own_process
from tests.bench.memory import peak as peak_bytes
from tests.peers.lines import read_lines

LIMIT = 1.0
"""CPU seconds for 25 MB."""
MOST = 200
"""MB of memory more."""


class ReportFigures(NamedTuple):
    """CPU seconds of reading alone, of measuring ``import/``, and of measuring what leaves; MiB before and at most."""

    reading: float
    imported: float
    leaving: float
    before: float
    peak: float
    patients: int


def load(answer: Connection, directory: Path, spool: Path) -> None:
    """One measurement of both; sends its ``ReportFigures``."""
    files = sorted(directory.iterdir())
    decode = msgspec.json.Decoder().decode
    before = peak_bytes() / MIB
    common: dict[str, Any] = {"base": directory, "spool": spool, "stop": Stop(), "k": 5, "today": date(2026, 11, 23)}
    with Originals(spool, 5) as originals:
        started = time.process_time()
        measure(files, originals=originals, collect=True, **common)
        imported = time.process_time() - started
        started = time.process_time()
        found = measure(files, originals=originals, **common)
        leaving = time.process_time() - started
    most = peak_bytes() / MIB
    started = time.process_time()
    for file in files:
        for line in read_lines(file):
            decode(line)
    reading = time.process_time() - started
    answer.send(ReportFigures(reading, imported, leaving, before, most, found.patients))


def measured(*arguments: Any) -> ReportFigures:
    """``load`` in a process of its own."""
    figures: ReportFigures = in_own_process(load, *arguments)
    return figures


def make(directory: Path, megabytes: float, files: int) -> None:
    """So much data, each patient once."""
    directory.mkdir(parents=True)
    lines = bundles(megabytes)
    for number in range(files):
        with (directory / f"batch-{number:05}.ndjson").open("wb") as file:
            left = megabytes * 1e6 / files
            while left > 0 and (line := next(lines, None)) is not None:
                left -= file.write(line + b"\n")


def one_a_line(directory: Path) -> None:
    """Every Bundle taken apart, into a file for each type: what a bulk export looks like."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    sources = sorted(directory.iterdir())
    for source in sources:
        opened: dict[str, Any] = {}
        for line in read_lines(source):
            for entry in decode(line)["entry"]:
                kind = entry["resource"]["resourceType"]
                if kind not in opened:
                    opened[kind] = (directory / f"{kind}-{source.stem}.ndjson").open("wb")
                opened[kind].write(msgspec.json.encode(entry["resource"]) + b"\n")
        for file in opened.values():
            file.close()
        source.unlink()


def one_bundle(directory: Path) -> None:
    """The Bundles of each file put together to one, on one line."""
    for source in sorted(directory.iterdir()):
        entries = [line[line.index(b"[") + 1 : line.rindex(b"]")] for line in read_lines(source)]
        head = b'{"resourceType":"Bundle","id":"large","type":"transaction","entry":['
        source.write_bytes(b"%b%b]}\n" % (head, b",".join(entries)))


def report(place: Path, given: argparse.Namespace) -> Iterator[str]:
    """Make the data, and measure."""
    data = place / "data"
    make(data, given.mb, given.files)
    if given.lines:
        one_a_line(data)
    if given.one_line:
        one_bundle(data)
    if given.zst:
        compress(data)
    size = sum(len(line) for file in data.iterdir() for line in read_lines(file))
    figures = measured(data, place / "spool")
    share = 25e6 / size
    yield f"input                {size / 1e6:8.0f} MB, {figures.patients} patients"
    yield f"msgspec alone        {figures.reading * share:8.2f} CPU s for 25 MB"
    yield f"import/              {figures.imported * share:8.2f} CPU s for 25 MB (limit {LIMIT})"
    yield f"what leaves          {figures.leaving * share:8.2f} CPU s for 25 MB (limit {LIMIT})"
    more = (figures.peak - figures.before) * MIB / 1e6
    yield f"memory               {more:8.0f} MB more than {figures.before:.0f} MiB (limit {MOST})"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--mb", type=float, default=100, help="MB of data")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--zst", action="store_true", help="compressed files")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--lines", action="store_true", help="one resource a line")
    form.add_argument("--one-line", action="store_true", help="one Bundle a file")


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        for line in report(Path(name), given):
            print(line, flush=True)
