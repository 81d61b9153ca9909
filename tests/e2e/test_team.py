"""A team's site over everything that happens to it in months (docs/deployment.md, "Several machines").

    python -m pytest -m campaign -n 0 -s tests/e2e/test_team.py          # all of it: two hours
    python -m pytest -m campaign -n 0 -s tests/e2e/test_team.py -k "36 and server"

PostgreSQL, a server, two workers on machines with homes and host names of their own, the sandbox services, twenty
jobs; then something goes away, is killed, stopped, replaced or set back. All jobs complete, the services were asked
for nothing twice, and what was said meanwhile is printed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.engine.api import PrefectApi
from tests.conftest import wait_until
from tests.e2e.team import BATCH, TeamSite, site

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(3600)]

JOBS = 20
AT_ONCE = 4
"""Two on each machine, with the shipped settings."""

KILLED = {
    "worker killed": AT_ONCE // 2,
    "all of a machine killed": AT_ONCE // 2,
    "SIGTERM for both workers": AT_ONCE,  # on a machine that is so slow that 15 s are over
    "both workers upgraded, one after the other": AT_ONCE,
}
"""Jobs that are killed at most, by what happens."""


@pytest.fixture
def team(tmp_path: Path) -> Iterator[TeamSite]:
    with site(tmp_path) as made:
        yield made


class StateWatch:
    """Log of Prefect's states while something happens, with the second at which each was first seen."""

    def __init__(self, team: TeamSite, jobs: list[str]) -> None:
        self.said: list[str] = []
        self._over = threading.Event()
        self._begun = time.monotonic()
        self._thread = threading.Thread(target=self._watch_states, args=(team, jobs), daemon=True)
        self._thread.start()

    def _watch_states(self, team: TeamSite, jobs: list[str]) -> None:
        last = ""
        while not self._over.wait(3):
            try:
                now = ", ".join(f"{count} {name}" for name, count in sorted(team.states(jobs).items()))
            except Exception as error:  # the server is away, which is what is looked at
                now = f"no answer ({type(error).__name__})"
            if now != last:
                self.said.append(f"    {time.monotonic() - self._begun:5.0f} s  {now}")
                last = now

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)


def undisturbed(team: TeamSite) -> Counter[str]:
    """Count the requests of one undisturbed job to the services."""
    team.configure(0.0)
    forget(team)
    team.completed(team.start(1), within=180)
    return counted_requests(team)


def counted_requests(team: TeamSite) -> Counter[str]:
    return team.service("fhir").counted() + team.service("pseudonymizer").counted()


def forget(team: TeamSite) -> None:
    for name in ("fhir", "pseudonymizer"):
        team.service(name).forget()


def lived_through(team: TeamSite, name: str, happens: Callable[[TeamSite], None], *, killed: int = 0) -> None:
    """Run twenty jobs, four of them during the failure; assert that all complete and no request is repeated.

    Of each job that is ``killed`` one transaction may be asked twice, the one that was under way: the receiver has it,
    and nobody is left who saw its answer.
    """
    one = undisturbed(team)
    team.configure(2.0)
    forget(team)
    jobs = team.start(JOBS)
    wait_until(lambda: team.states(jobs)["Running"] == AT_ONCE, 180)
    wait_until(lambda: team.service("fhir").counted().total() > AT_ONCE * 10, 180)
    watch = StateWatch(team, jobs)
    happens(team)
    over, begun = time.monotonic(), began(team, jobs)
    next_job = None
    while team.states(jobs) != {"Completed": JOBS} and time.monotonic() - over < 1800:
        if next_job is None and began(team, jobs) > begun:
            next_job = time.monotonic() - over
            team.slow(0.0)
        time.sleep(2)
    seconds = time.monotonic() - over
    watch.end()
    states = team.states(jobs)
    expected = Counter({what: count * JOBS for what, count in one.items()})
    doubled = counted_requests(team) - expected
    print(
        f"\n{name}: {states['Completed']} of {JOBS} complete {seconds:.0f} s after, next job began "
        f"{'before' if next_job is None else f'{next_job:.0f} s after'}, doubled requests {doubled.total()}"
    )
    print(*watch.said, sep="\n", flush=True)
    assert states == {"Completed": JOBS}
    assert set(doubled) <= {"POST /fhir"}
    assert doubled.total() <= killed * BATCH


def began(team: TeamSite, jobs: list[str]) -> int:
    """Count the jobs that have begun."""
    with PrefectApi(team.address) as api:
        return sum(bool((api.read_run(job) or {}).get("start_time")) for job in jobs)


def server_away(seconds: float) -> Callable[[TeamSite], None]:
    def happens(team: TeamSite) -> None:
        team.server.stop()
        time.sleep(seconds)
        team.server.start()

    return happens


def database_away(seconds: float) -> Callable[[TeamSite], None]:
    def happens(team: TeamSite) -> None:
        team.database.stop()
        time.sleep(seconds)
        team.database.start()
        wait_until(team.server.answers, 120)

    return happens


def server_restarted_twice(team: TeamSite) -> None:
    """Away, back for a moment, away again."""
    for seconds in (20, 20):
        server_away(seconds)(team)
        time.sleep(5)


def server_killed(team: TeamSite) -> None:
    team.server.stop(signal.SIGKILL)
    team.server.start()


OUTAGES = {
    "server away for 36 s": server_away(36),
    "server away for 71 s": server_away(71),
    "server away for 10 min": server_away(600),
    "server away twice for 20 s": server_restarted_twice,
    "server killed": server_killed,
    "database away for 41 s": database_away(41),
    "database away for 10 min": database_away(600),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_what_stands_around_the_work_goes_away(team: TeamSite, outage: str) -> None:
    lived_through(team, outage, OUTAGES[outage])


def continued(team: TeamSite, jobs: list[str], *, on: int = 1) -> None:
    """``pipeline continue`` for what does not go on by itself, at a machine that lives."""
    for job in jobs:
        shown = team.machines[on].sluice("pipeline", "status", "config.yaml", job, "--json")
        if '"state": "interrupted"' in shown.out or '"state": "stopped"' in shown.out:
            ran = team.machines[on].sluice("pipeline", "continue", "config.yaml", job)
            assert ran.code == 0, ran.err


def current(team: TeamSite) -> list[str]:
    """Return all jobs of the site that are not over."""
    with PrefectApi(team.address) as api:
        return [run["id"] for run in api.runs() if run["state_type"] != "COMPLETED"]


def worker_killed(team: TeamSite) -> None:
    team.machines[0].kill_worker()
    time.sleep(5)
    team.machines[0].start()


def machine_dead(team: TeamSite) -> None:
    """The other machine continues the jobs; this one does not come back."""
    dead = set(running(team))
    team.machines[0].kill()
    begun = time.monotonic()
    interrupted: set[str] = set()
    while not interrupted and time.monotonic() - begun < 180:
        interrupted = {job for job in dead if shown(team, job) == "interrupted"}
        time.sleep(3)
    print(f"\n  shown as interrupted {time.monotonic() - begun:.0f} s after")
    continued(team, sorted(dead))
    print(f"  continued {time.monotonic() - begun:.0f} s after")


def running(team: TeamSite) -> list[str]:
    with PrefectApi(team.address) as api:
        return [run["id"] for run in api.runs() if run["state_type"] == "RUNNING"]


def shown(team: TeamSite, job: str) -> str:
    import json

    said = team.machines[1].sluice("pipeline", "status", "config.yaml", job, "--json")
    return str(json.loads(said.out)["state"]) if said.code == 0 else said.err


def workers_stopped(team: TeamSite) -> None:
    """SIGTERM for both; each ends within the time of its unit, and its jobs are stopped."""
    for machine in team.machines:
        begun = time.monotonic()
        machine.stop()
        print(f"\n  {machine.name} ended {time.monotonic() - begun:.0f} s after SIGTERM")
    states = {job: shown(team, job) for job in current(team)}
    ended = [job for job, state in states.items() if state in ("stopped", "interrupted")]
    print(f"  {Counter(states[job] for job in ended)}")
    for machine in team.machines:
        machine.start()
    continued(team, ended)


def upgraded(team: TeamSite) -> None:
    """One worker after the other is replaced, while the other one works."""
    for machine in team.machines:
        machine.stop()
        machine.start()
        continued(team, current(team))
        time.sleep(20)


INCIDENTS = {
    "worker killed": worker_killed,
    "all of a machine killed": machine_dead,
    "SIGTERM for both workers": workers_stopped,
    "both workers upgraded, one after the other": upgraded,
}


@pytest.mark.parametrize("incident", INCIDENTS)
def test_something_is_killed_or_stopped(team: TeamSite, incident: str) -> None:
    lived_through(team, incident, INCIDENTS[incident], killed=KILLED.get(incident, 0))


def test_the_database_is_restored_from_a_dump(team: TeamSite) -> None:
    """Running jobs write again the records that were made after the dump and lost with the restore."""

    def happens(team: TeamSite) -> None:
        team.database.dump()
        time.sleep(10)
        team.server.stop()
        team.database.restore()
        team.server.start()

    lived_through(team, "database restored from a dump of 10 s ago", happens)


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>
static int ahead = 300;
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, at);
    if (id == CLOCK_REALTIME) at->tv_sec += ahead;
    return result;
}
"""
"""The clock of a machine that goes five minutes ahead, for what is started with it in LD_PRELOAD."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="the wrong clock is compiled")
def test_the_clock_of_one_machine_is_five_minutes_off(tmp_path: Path) -> None:
    (tmp_path / "clock.c").write_text(CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "clock.c", "-ldl"], check=True, timeout=60)
    with site(tmp_path, second={"LD_PRELOAD": str(library)}) as team:
        lived_through(team, "clock five minutes off, and a machine dies", machine_dead, killed=AT_ONCE // 2)


def test_two_prunes_at_once(team: TeamSite) -> None:
    team.configure(0.0)
    jobs = team.start(JOBS)
    team.completed(jobs, within=600)
    ended: list[int] = []
    words = ("job", "prune", "config.yaml", "--older-than", "1s")
    both = [
        threading.Thread(target=lambda machine=machine: ended.append(machine.sluice(*words).code))
        for machine in team.machines
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    with PrefectApi(team.address) as api:
        left = len(api.runs())
    directories = [path for path in (team.place / "jobs").iterdir() if not path.name.startswith(".")]
    print(f"\ntwo prunes: exit codes {ended}, {left} records and {len(directories)} directories left")
    assert ended == [0, 0]
    assert (left, directories) == (0, [])
