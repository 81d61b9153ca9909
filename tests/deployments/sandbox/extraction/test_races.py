"""Everything at once: whatever clients do at the same moment, jobs keep to the table of moves and leave nothing behind.

Single races stand beside their rule: two PUTs with one version (test_task), pause and delete while a batch runs
(test_engine), ``kill -9`` (test_restart).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.deployments.sandbox.extraction.conftest import FINAL, ExtractionServerClient, Start, crtdl
from tests.deployments.sandbox.extraction.test_engine import EVERYBODY, RUNNING, complete
from tests.deployments.sandbox.extraction.test_task import put, version

MOVES = {
    "PENDING": {"RUNNING_GET_COHORT", "CANCELLED"},
    "RUNNING_GET_COHORT": {"RUNNING_PROCESS_BATCH", "PAUSED", "CANCELLED"},
    "RUNNING_PROCESS_BATCH": {"RUNNING_PROCESS_CORE", "PAUSED", "CANCELLED"},
    "RUNNING_PROCESS_CORE": {"COMPLETED", "PAUSED", "CANCELLED"},
    "PAUSED": {*RUNNING, "CANCELLED"},
    "COMPLETED": set[str](),
    "CANCELLED": set[str](),
}
"""Allowed moves of a job (document 2, "States and transitions"; document 3 §2, "moves")."""


def reachable(state: str) -> set[str]:
    """Return the states that can be observed after this one, including itself."""
    found, waiting = {state}, [state]
    while waiting:
        new = MOVES[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def disturb(client: ExtractionServerClient, jobs: Sequence[str], choose: random.Random) -> list[str]:
    """Run forty random operations; return the answers that do not fit the operation."""
    wrong: list[str] = []
    for _ in range(40):
        job = choose.choice(jobs)
        operation = choose.choices(["pause", "resume", "put", "cancel"], [10, 20, 10, 1])[0]
        if operation == "put":
            answer = put(client, job, choose.choice(["asap", "routine"]), version(client.task(job)))
        else:
            answer = client.operate(job, operation)
        document = answer.json()
        if answer.status_code == 409 and document["issue"][0]["code"] == "conflict":
            continue
        state = document["businessStatus"]["coding"][0]["code"] if answer.status_code == 200 else answer.status_code
        if state not in {"pause": ("PAUSED",), "cancel": ("CANCELLED",), "resume": RUNNING}.get(operation, MOVES):
            wrong.append(f"{operation}: {state}")
    return wrong


def watch(client: ExtractionServerClient, jobs: Sequence[str], goes_on: Callable[[], bool]) -> list[str]:
    """Return the violations by jobs: a forbidden move, a decreasing version, a change without a new version."""
    wrong: list[str] = []
    last = dict.fromkeys(jobs, ("PENDING", 0))
    while goes_on():
        for job in jobs:
            task = client.task(job)
            now = task["businessStatus"]["coding"][0]["code"], version(task)
            before = last[job]
            if now[0] not in reachable(before[0]) or now[1] < before[1] or (now[1] == before[1] and now != before):
                wrong.append(f"{before} -> {now}")
            last[job] = now
    return wrong


@pytest.mark.slow
def test_in_a_storm_of_operations_every_answer_fits_and_every_move_is_in_the_table(
    start: Start, hospital: Path
) -> None:
    client = start(hospital, batchsize=1, maxconcurrency=2, batch_delay=0.02)
    jobs = [client.submit(crtdl()) for _ in range(3)]
    wrong: list[str] = []

    def storm(number: int) -> None:
        with ExtractionServerClient(str(client.base_url)) as own:
            wrong.extend(disturb(own, jobs, random.Random(number)))

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wrong += watch(client, jobs, lambda: any(thread.is_alive() for thread in threads))
    for thread in threads:
        thread.join()
    assert wrong == []
    for job in jobs:
        if client.state(job) == "PAUSED":
            assert client.operate(job, "resume").status_code == 200
        if client.reach(job, *FINAL)["status"] == "completed":
            assert complete(client, job) == EVERYBODY
