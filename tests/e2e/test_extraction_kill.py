"""``kill -9`` from the submission to the last download, against the sandbox extraction server (``4-product.md`` §4).

One extraction submission in all, no file fetched twice that was complete, and the files byte for byte as the server has
them. Moments are random; the seed is printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.e2e.extraction_kill import FILES, ExtractionTrial, check, trial, write_hospital

SEED = int(os.environ.get("KILL_SEED", "20250907"))


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_a_job_killed_at_submission_poll_or_download_ends_as_if_undisturbed(
    tmp_path: Path, migrated_database: Path, prefect_api: str
) -> None:
    draw = random.Random(SEED)
    moments = [draw.uniform(0.0, 0.8), draw.uniform(0.0, 0.9), draw.uniform(0.0, 1.0)]
    print(f"seed {SEED}, moments {moments}")
    hospital = write_hospital(tmp_path / "hospital", 12)
    with trial(tmp_path / "trial", hospital, migrated_database, api=prefect_api) as job:
        # Slow enough that the job is still at it when it is to be killed, however late this process has its turn.
        job.server.slow(submission=3.0, megabyte=2.0, cut=draw.randrange(8))
        child = job.launch()
        wait_until(lambda: bool(job.server.submissions()), 90)
        time.sleep(moments[0])
        assert job.kill(child)
        assert not job.complete_files()

        child = job.begin("1-extractor")
        time.sleep(moments[1])
        assert job.kill(child)

        child = job.launch()
        wait_until(lambda: bool(job.complete_files()), 90)
        time.sleep(moments[2])
        assert job.kill(child)
        assert job.complete_files()

        job.server.slow(submission=0.0, megabyte=0.6)
        check(job, job.refuses_a_second_process("1-extractor"), hospital, None)


@pytest.mark.campaign
@pytest.mark.timeout(7200)
def test_kill_9_at_thirty_random_moments_of_an_extraction(tmp_path: Path, migrated_database: Path) -> None:
    """Thirty kills between the beginning of the step and its expected end; a third of the jobs is killed again."""
    wanted = int(os.environ.get("KILL_TRIALS", "30"))
    draw = random.Random(SEED)
    hospital = write_hospital(tmp_path / "hospital", 100)
    with trial(tmp_path / "undisturbed", hospital, migrated_database) as job:
        job.server.slow(submission=1.0, megabyte=0.15)
        began, status = _to_its_end(job)
        span = time.monotonic() - began
        check(job, status, hospital, None)
        kept = job.state_files()
    print(
        f"seed {SEED}; undisturbed: {span:.1f} s from the beginning of the step, {status['steps'][0]['bytes_in']} bytes"
    )
    kills = number = 0
    while kills < wanted:
        number += 1
        assert number <= 2 * wanted, "the moments do not hit the job"
        directory = tmp_path / f"trial-{number}"
        with trial(directory, hospital, migrated_database) as job:
            job.server.slow(submission=1.0, megabyte=0.15, cut=draw.randrange(20))
            child, again = job.begin("1-extractor"), True
            while again and kills < wanted:
                moment, began = draw.uniform(0.0, span), time.monotonic()
                if not _killed(job, child, moment):
                    span = time.monotonic() - began  # a busy machine changes it
                    break
                kills += 1
                print(f"{kills:2}. job {number:2} + {moment:4.1f} s: {job.where()}", flush=True)
                again = draw.random() < 1 / 3
                child = job.begin("1-extractor") if again else child
            check(job, _rest(job, child, watched=number % 5 == 1), hospital, kept)
        shutil.rmtree(directory)
    print(f"{kills} kills of {number} jobs")


def _to_its_end(job: ExtractionTrial) -> tuple[float, dict[str, Any]]:
    """Return the start time of the step and the job's status at the end."""
    child = job.begin("1-extractor")
    began = time.monotonic()
    return began, job.finish(child)


def _killed(job: ExtractionTrial, child: subprocess.Popen[bytes], moment: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(moment)
    return job.kill(child)


def _rest(job: ExtractionTrial, child: subprocess.Popen[bytes], *, watched: bool) -> dict[str, Any]:
    """Return the status at the end; ``watched`` tries a second process on the way there, if there is a way left."""
    if child.returncode != -signal.SIGKILL:
        return job.finish(child)
    if watched and len(job.complete_files()) < FILES:
        return job.refuses_a_second_process("1-extractor")
    return job.finish(job.launch())
