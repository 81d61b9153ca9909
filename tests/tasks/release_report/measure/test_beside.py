"""The process that measures during the steps, and its stored results (document 5, section 3, *Cost*)."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from tasks.release_report.measure.beside import BesideProcess, _Progress
from tasks.release_report.measure.delivery import (
    MEASURED,
    Delivery,
    Measures,
    decode,
    digest_of,
    encode,
    measure_delivery,
    read_kept,
    store_measures,
)
from tasks.shared.errors import Stopped
from tasks.shared.files.out_file import write_file
from tasks.shared.stop import Stop
from tests.conftest import ROOT, wait_until

FILES = 4


def line(number: int, name: str, prefix: str = "") -> bytes:
    person = {
        "resourceType": "Patient",
        "id": f"{prefix}{number}",
        "birthDate": "1970-05-06",
        "name": [{"family": name}],
    }
    seen = {
        "resourceType": "Observation", "id": f"{prefix}o{number}", "status": "final",
        "subject": {"reference": f"Patient/{prefix}{number}"}, "effectiveDateTime": f"2020-01-{number % 28 + 1:02}",
        "valueQuantity": {"value": 1.50, "unit": "g", "system": "http://unitsofmeasure.org", "code": "g"},
    }  # fmt: skip
    return json.dumps(
        {"resourceType": "Bundle", "type": "collection", "entry": [{"resource": person}, {"resource": seen}]}
    ).encode()


def text(file: int, prefix: str = "") -> bytes:
    """Ten patients; the first of each file keeps her name."""
    lines = (
        line(10 * file + n, f"Kanarienvogel{10 * file + n}" if not prefix or not n else "", prefix) for n in range(10)
    )
    return b"".join(one + b"\n" for one in lines)


@pytest.fixture
def job(tmp_path: Path) -> Delivery:
    for file in range(FILES):
        write_file(tmp_path / f"import/{file}.ndjson", text(file))
    (tmp_path / "out").mkdir()
    imported = tuple(sorted((tmp_path / "import").iterdir()))
    return Delivery(base=tmp_path, leaving=(), imported=imported, today=date(2026, 1, 1), stop=Stop())


def finish(job: Delivery, *files: int, folder: str = "out") -> list[Path]:
    return [write_file(job.base / folder / f"{file}.ndjson", text(file, "x")) for file in files]


def here(job: Delivery, leaving: list[Path]) -> Measures:
    return measure_delivery(replace(job, leaving=leaving))


def timeless(measured: Measures | None) -> Measures:
    assert measured is not None
    imported, leaving = measured
    assert imported is not None
    return replace(imported, seconds=0.0), replace(leaving, seconds=0.0)


def test_files_are_measured_in_the_process_as_they_are_finished_and_as_here(job: Delivery) -> None:
    beside = BesideProcess(job, job.base / "out")
    read: list[int] = []
    for file in (2, 0, 1, 3):  # as a step finishes them
        time.sleep(0.1)
        finish(job, file)
    leaving = sorted((job.base / "out").iterdir())
    found = beside.result(replace(job, leaving=leaving, read=read.append))
    assert timeless(found) == timeless(here(job, leaving))
    assert found is not None
    assert found[1].paths["Patient.name.family"].original == FILES
    assert sum(read) <= sum(path.stat().st_size for path in (*job.imported, *leaving))  # none was read twice


def test_the_progress_counts_what_is_read_while_the_report_waits(capfd: pytest.CaptureFixture[str]) -> None:
    """Its rate is about that time: not a gigabyte a second, because files were read before."""
    orders: Any = SimpleNamespace(leaving=None)
    progress = _Progress(orders)
    progress.add(10**9)
    orders.leaving = True
    progress.add(7)
    assert capfd.readouterr().out == "7\n"


@pytest.mark.parametrize("what", ["corrected", "fewer", "compressed", "not expected"])
def test_other_files_than_those_that_were_expected_are_measured(job: Delivery, what: str) -> None:
    beside = BesideProcess(job, None if what == "not expected" else job.base / "out")
    leaving = finish(job, *range(FILES if what != "fewer" else FILES - 1))
    if what == "corrected":
        leaving = finish(job, 0, 1, folder="out_wait")
    if what == "compressed":
        packed = [path.rename(f"{path}.zst") for path in leaving]
        for path in packed:
            path.write_bytes(zstandard.compress(path.read_bytes()))
        leaving = packed
    found = beside.result(replace(job, leaving=leaving))
    assert timeless(found) == timeless(here(job, leaving))


def test_a_process_that_was_killed_is_no_failure_of_the_job(job: Delivery) -> None:
    beside = BesideProcess(job, job.base / "out")
    assert beside._process is not None
    os.kill(beside._process.pid, signal.SIGKILL)
    assert beside.result(replace(job, leaving=finish(job, *range(FILES)))) is None


def test_a_stop_ends_it_at_once(job: Delivery) -> None:
    beside, stop = BesideProcess(job, job.base / "out"), Stop()
    pid = beside._process.pid if beside._process is not None else 0
    missing = [job.base / "out" / "9.ndjson"]
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.3, stop.request, ["SIGINT"]).start()
    with pytest.raises(Stopped):
        beside.result(replace(job, leaving=missing, stop=stop))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_dies_with_the_process_that_started_it(job: Delivery) -> None:
    script = (
        "import sys, time\nfrom datetime import date\nfrom pathlib import Path\n"
        "from tasks.release_report.measure.beside import BesideProcess\n"
        "from tasks.release_report.measure.delivery import Delivery\nfrom tasks.shared.stop import Stop\n"
        "base = Path(sys.argv[1])\n"
        "files = tuple(sorted((base / 'import').iterdir()))\n"
        "job = Delivery(base=base, leaving=(), imported=files, today=date(2026, 1, 1), stop=Stop())\n"
        "print(BesideProcess(job, base / 'out')._process.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(job.base)], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until((job.base / ".report").exists, 30)  # it measures
        parent.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), 10)


def test_what_was_measured_is_kept_under_the_hashes_of_the_files(job: Delivery) -> None:
    leaving = finish(job, *range(FILES))
    both = here(job, leaving)
    store_measures(job, both)
    (kept,) = (job.base / MEASURED).iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert both[0] is not None
    digests = digest_of(both[0].files), digest_of(both[1].files)
    assert read_kept(job, *digests) == both
    assert read_kept(replace(job, k=11), *digests) is None
    assert read_kept(job, digests[0], "another") is None
    kept.write_bytes(kept.read_bytes()[:-9])
    assert read_kept(job, *digests) is None


def test_nothing_is_lost_on_the_way_through_json(job: Delivery) -> None:
    both = here(job, finish(job, *range(FILES)))
    assert both[1].classes
    assert decode(encode(both)) == both
    alone = (None, both[1])
    assert decode(encode(alone)) == alone
    assert decode(b"{}") is None
