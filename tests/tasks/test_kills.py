"""A killed step continues where it stopped, with the output of an undisturbed run (4-product.md §4)."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasks.flattening.flattening import FlatteningBounds
from tasks.pseudonymizer.pseudonymization import PseudonymizerBounds
from tasks.shared.report import StepReport
from tests.peers import flattening, pseudonymization, validation
from tests.peers.flattening import of_patient, provenance, resource
from tests.peers.job import in_process
from tests.peers.pseudonymization import RULES, patient, patient_bundle
from tests.peers.server import ScriptedService

# A process of its own, so that it can be killed: name of the step, directory, URL, requests at once.
CLIENT = """
import sys
from pathlib import Path
from tests.tasks.test_kills import STEPS

step = STEPS[sys.argv[1]]
print(step.reported(step.run(step.job(Path(sys.argv[2])), sys.argv[3], max_concurrent_requests=int(sys.argv[4]))))
"""
SMALL: dict[str, Any] = {"bounds": FlatteningBounds(mebibyte=2000, line=20_000), "batch_size_mb": 3, "real_sleep": True}
CHUNK = 900


@dataclass(frozen=True)
class Killable:
    """A step that is killed, and what must be the same in the end."""

    job: Callable[[Path], Any]
    serving: Callable[[], ScriptedService[Any]]
    run: Callable[..., StepReport]
    fill: Callable[[Any, int], None]
    """Input of all kinds, of about so many lines."""
    made: Callable[[Any], dict[str, bytes]]
    ledger: str
    moments: tuple[int, ...]
    """The requests at which it is killed, run by run."""
    spared: int
    """Requests that the last run need not make, of those of an undisturbed one."""
    reported: Callable[[StepReport], Any]


def fill_pseudonymizer(job: pseudonymization.PseudonymizerJob, lines: int) -> None:
    """A core file, patients, a Bundle that is split, plain lines, an empty file."""
    draw, size = random.Random(3), 1500 if lines < 100 else 4000
    job.write("core.ndjson", *[patient(f"core{n}", text="c" * draw.randrange(size)) for n in range(lines // 4)])
    job.write("a.ndjson", *[patient_bundle(n, 2 + n % 5, draw.randrange(size)) for n in range(lines)])
    job.write("b.ndjson", *[patient(f"b{n}") for n in range(5)], patient_bundle(900, 15, 90_000))
    job.write("c.ndjson")


def fill_validation(job: validation.ValidationJob, lines: int) -> None:
    """Plain lines, Bundles, one line above the size of a chunk, what cannot be sent."""
    line = validation.patient_line
    job.write("core.ndjson", *[resource("Organization", f"org{n}", bad=n % 2) for n in range(5)])
    job.write("a.ndjson", *[line(n, 4, bad=1) for n in range(lines // 5)], line(999, 40, bad=1))
    people = [validation.patient(f"p{n}", bad=n % 3, x="y" * 200) for n in range(lines)]
    job.write("b.ndjson", *people, b'{"id":"x"}')
    job.write("c.ndjson")


def fill_flattening(job: flattening.FlatteningJob, lines: int) -> None:
    """Core, patients, a line that is too long to hold, plain resources, an empty file."""
    draw, line = random.Random(5), flattening.patient_line
    cores = [of_patient("Observation", f"core{n}", "p") for n in range(lines // 5)]
    job.write("core.ndjson", flattening.bundle("core", *cores, provenance("g-obs", *cores)))
    job.write("a.ndjson", *[line(n, 2 + n % 5, draw.randrange(400), n % 3) for n in range(lines)])
    job.write("b.ndjson", line(1000, 150, 100), *[line(1001 + n) for n in range(5)], line(0))
    job.write("c.ndjson", resource("Patient", "p1"), resource("Encounter", "e"))
    job.write("d.ndjson")


def output(job: pseudonymization.PseudonymizerJob) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(job.output.iterdir())}


def figures(result: StepReport) -> Any:
    return result.resources_in, result.resources_out, result.lines_in, result.bytes_in, result.bytes_out


def without_requests(result: StepReport) -> dict[str, Any]:
    return result.result() | {"content": None, "details": {**result.details, "requests": 0}}


def flattened(job: flattening.FlatteningJob, url: str, *, max_concurrent_requests: int) -> StepReport:
    del max_concurrent_requests  # it is always that of two groups
    return job.run(url, **SMALL)


def _pseudonymizer(compression: bool, **more: Any) -> Killable:
    bounds = PseudonymizerBounds(cut_every=5_000)
    run = partial(
        pseudonymization.PseudonymizerJob.run,
        rules=RULES,
        bundle_split_threshold_mb=1,
        compression=compression,
        bounds=bounds,
        **more,
    )
    # In the first file, in the large one, and late; the core file at least was done, and stayed done.
    return Killable(
        pseudonymization.PseudonymizerJob, lambda: pseudonymization.serving(pseudonymization.pseudonyms), run,
        fill_pseudonymizer, output, "pseudonymizer/ledger.ndjson", (30, 25, 20), 20, figures,
    )  # fmt: skip


STEPS = {
    "pseudonymizer": _pseudonymizer(False),
    "pseudonymizer, zst": _pseudonymizer(True),
    # Answers that came in the last quarter of a second are lost with the process.
    "validation": Killable(
        validation.ValidationJob, validation.serving, partial(validation.ValidationJob.validate, chunk_bytes=CHUNK),
        fill_validation, validation.ValidationJob.files,
        "validation/.state/ledger.ndjson", (0, 9, 20), -2, without_requests,
    ),
    # Of what was answered, at most the batches under way at each kill are asked for again.
    "flattening": Killable(
        flattening.FlatteningJob, flattening.serving, flattened, fill_flattening, flattening.FlatteningJob.tables,
        "flattening/ledger.ndjson", (2, 5, 6), 2 + 5 + 6 - 3 * 2, without_requests,
    ),
}  # fmt: skip


def start(name: str, job: Any, url: str, requests: int = 4) -> subprocess.Popen[str]:
    return in_process(CLIENT, name, job.directory, url, requests, stderr=subprocess.PIPE)


def finish(name: str, job: Any, url: str) -> str:
    out, err = start(name, job, url).communicate(timeout=120)
    assert "Traceback" not in err
    return out


def filled(step: Killable, directory: Path, lines: int) -> Any:
    job = step.job(directory)
    step.fill(job, lines)
    return job


def undisturbed(step: Killable, directory: Path, lines: int) -> tuple[dict[str, bytes], str, int]:
    """Return the output and the report of an undisturbed run, and its number of requests."""
    job = filled(step, directory, lines)
    with step.serving() as service:
        result = step.run(job, service.url, max_concurrent_requests=4)
        return step.made(job), f"{step.reported(result)}\n", len(service.requests)


def continues_after_kills(
    directory: Path, name: str, start_killed: Callable[[str, Any, str], subprocess.Popen[str]]
) -> None:
    """Assert that a step killed at its moments ends as an undisturbed one. ``start_killed`` starts what is killed."""
    step, lines = STEPS[name], 80 if name.startswith("pseudonymizer") else 40
    expected, reported, total = undisturbed(step, directory / "undisturbed", lines)
    job = filled(step, directory / "job", lines)
    with step.serving() as service:
        for moment in step.moments:
            service.requests.clear()
            service.kill_at(moment, lambda: start_killed(name, job, service.url))
        service.requests.clear()
        assert finish(name, job, service.url) == reported
        assert len(service.requests) <= total - step.spared
    assert step.made(job) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_after_three_kills_all_is_byte_for_byte_that_of_an_undisturbed_run(tmp_path: Path, name: str) -> None:
    continues_after_kills(tmp_path, name, start)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STEPS)
def test_after_a_kill_at_30_random_moments_all_is_that_of_an_undisturbed_run(tmp_path: Path, name: str) -> None:
    step, draw = STEPS[name], random.Random(30)
    expected, reported, _ = undisturbed(step, tmp_path / "undisturbed", 600)
    job = filled(step, tmp_path / "job", 600)
    kills = ends = 0
    with step.serving() as service:
        service.seconds = 0.002
        while kills < 30:
            service.requests.clear()
            child = start(name, job, service.url, draw.choice([1, 4, 7]))
            while not service.requests and child.poll() is None:
                time.sleep(0.005)
            time.sleep(draw.uniform(0, 0.25))
            child.kill()
            child.communicate(timeout=60)
            if child.returncode == 0:
                assert step.made(job) == expected  # faster than the kill: begin again
                ends += 1
                (job.directory / step.ledger).unlink()
                continue
            kills += 1
        assert finish(name, job, service.url) == reported
    print(f"{name}: {kills} kills, {ends} ends before")
    assert step.made(job) == expected
