"""A job whose pseudonymizer step is divided, and a service that counts what reaches it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import Commands, Ran
from tests.e2e.machines import descendants
from tests.peers.pseudonymization import FakePseudonymizer, patient, patient_bundle, pseudonyms

FILES = 8
LINES = 12


@dataclass
class CountingService:
    """Counts of the pseudonymization service: its requests, and the most at once. ``delay`` is in seconds.

    ``refused`` is a piece of text: a request that holds it is refused; where one holds ``mixed_up``, its reference to a
    practitioner becomes one to another.
    """

    url: str = ""
    delay: float = 0.01
    refused: bytes | None = None
    mixed_up: bytes | None = None
    peak: int = 0
    probes: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def transform(self, resource: bytes) -> bytes:
        if b"sluice-probe" in resource:
            self.probes += 1
            return pseudonyms(resource)
        with self._lock:
            self.seen[hashlib.sha256(resource).hexdigest()] += 1
            self._now += 1
            self.peak = max(self.peak, self._now)
            self.times.append(time.monotonic())
        time.sleep(self.delay)
        with self._lock:
            self._now -= 1
        if self.refused is not None and self.refused in resource:
            return b'{"resourceType":"OperationOutcome","issue":[]}'
        if self.mixed_up is not None and self.mixed_up in resource:
            resource = resource.replace(b"Practitioner/d1", b"Practitioner/d2")
        return pseudonyms(resource)

    def rate(self) -> float:
        """Return the requests per second since the last call, without the first and the last fifth of them: children
        begin and end one after the other.
        """
        times, self.times = sorted(self.times), []
        middle = times[len(times) // 5 : -len(times) // 5]
        return (len(middle) - 1) / (middle[-1] - middle[0])

    @property
    def requests(self) -> int:
        return sum(self.seen.values())


@contextmanager
def counting(delay: float = 0.01) -> Iterator[CountingService]:
    """Serve the pseudonyms of resources, and count the requests."""
    counted = CountingService(delay=delay)
    with FakePseudonymizer(counted.transform) as service:
        counted.url = service.url
        yield counted


def write_input(directory: Path, files: int = FILES, lines: int = LINES) -> None:
    """Write Bundles of one patient each, and a core file."""
    directory.mkdir()
    write = {"core.ndjson": [patient(f"core{n}") for n in range(5)]}
    for file in range(files):
        people = [patient_bundle(100 * (file + 1) + n, 2 + n % 3, 40 * file) for n in range(lines)]
        write[f"b{file}.ndjson"] = people
    for name, rows in write.items():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def configure(sluice: Commands, service: CountingService, requests: int = 4, **pipeline: Any) -> None:
    """Write the configuration of a job that imports and pseudonymizes."""
    config = {
        "pipeline": {"enabled_steps": ["local_import", "pseudonymizer"], **pipeline},
        "services": {
            "local_import": {"dir": str(sluice.cwd / "in")},
            "pseudonymizer": {"url": service.url, "max_concurrent_requests": requests},
        },
        "retry": {"initial_backoff_ms": 10},
        "report": {"enabled": False},
    }
    (sluice.cwd / "config.yaml").write_text(yaml.safe_dump(config))


def outputs(job: Path) -> dict[str, str]:
    """Return the SHA-256 of each output file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (job / "pseudonymized").iterdir()}


_UNDIVIDED: dict[tuple[int, int], tuple[dict[str, str], int]] = {}


def undivided(sluice: Commands, files: int = FILES, lines: int = LINES) -> tuple[dict[str, str], int]:
    """Return the outputs of a run over such an input that is not divided, and its requests: one run for all tests."""
    if (files, lines) not in _UNDIVIDED:
        alone = Commands(sluice.cwd / "undivided", sluice.environment["PREFECT_API_URL"], in_process=True)
        alone.cwd.mkdir()
        write_input(alone.cwd / "in", files, lines)
        with counting() as service:
            configure(alone, service)
            ran = alone("pipeline", "start", "config.yaml")
            assert ran.code == 0, ran.err
            _UNDIVIDED[files, lines] = outputs(directory_of(alone, ran)), service.requests
    return _UNDIVIDED[files, lines]


def reported(job: Path) -> dict[str, Any]:
    """Return the report of the step, without times and shards."""
    (path,) = (job / ".results").glob("2-*.json")
    kept = json.loads(path.read_text())["result"]
    report: dict[str, Any] = json.loads(kept) if isinstance(kept, str) else kept
    return {key: value for key, value in report.items() if key not in {"seconds", "p50", "p95", "started", "shards"}}


def children(parent: int) -> list[int]:
    """Return the processes of shards that a process has started."""
    return [pid for pid in descendants(parent) if b"flows.shards.child" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def directory_of(sluice: Commands, ran: Ran) -> Path:
    """Return the directory of the job that a command started."""
    return sluice.cwd / "jobs" / ran.job


def the_job(sluice: Commands) -> Path:
    """Return the directory of the only job."""
    (found,) = (path for path in (sluice.cwd / "jobs").iterdir() if not path.name.startswith("."))
    return found
