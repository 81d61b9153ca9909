"""A step in shards of one machine (6-scale-out.md, *What must hold*)."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from flows.job.running.lock import LOCK
from tasks.shared.files.private_file import open_private
from tests.conftest import ROOT, Commands, wait_until
from tests.flows.commands.test_bad_input import on_small_disk
from tests.flows.shards.site import (
    LINES,
    children,
    configure,
    counting,
    directory_of,
    outputs,
    reported,
    the_job,
    undivided,
    write_input,
)
from tests.peers.pseudonymization import observation

pytestmark = pytest.mark.e2e

SEED = int(os.environ.get("KILL_SEED", "20251125"))
TRIALS = int(os.environ.get("KILL_TRIALS", "25"))


def killed_with(sluice: Commands, file: str) -> Path:
    """Start a job, and kill it as soon as there is such a file below the jobs directory; return its directory."""
    started = sluice.start("pipeline", "start", "config.yaml")
    wait_until(lambda: any((sluice.cwd / "jobs").glob(file)))
    started.kill()
    started.communicate(timeout=30)
    return the_job(sluice)


def test_outputs_report_and_requests_are_those_of_an_undivided_run(sluice: Commands) -> None:
    write_input(sluice.cwd / "in")
    found = []
    for shards in (1, 4):
        with counting() as service:
            configure(sluice, service)
            url = service.url
            ran = sluice("pipeline", "start", "config.yaml", "--shards", str(shards))
            assert ran.code == 0, ran.err
            assert set(service.seen.values()) == {1}
            assert service.peak <= 4
            job = directory_of(sluice, ran)
            report = json.dumps(reported(job)).replace(url, "URL")
            found.append((outputs(job), report, service.requests, service.probes))
            status = sluice.status(ran.job)
            assert [step["shards"] for step in status["steps"]] == [
                None, None if shards == 1 else {"total": shards, "done": shards, "running": 0, "failed": 0},
            ]  # fmt: skip
            kept = job / ".results" / "2" / "shards.json"
            assert kept.exists() == (shards > 1)
            if shards > 1:
                names = [file["name"] for shard in json.loads(kept.read_text())["shards"] for file in shard["files"]]
                assert sorted(names) == [f"b{n}.ndjson.zst" for n in range(8)]
    assert found[0] == found[1]


def test_a_killed_child_is_started_again_and_nothing_is_done_twice(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.1) as service:
        configure(sluice, service, shards=2)
        started = sluice.start("pipeline", "start", "config.yaml")
        wait_until(lambda: service.requests > 20)
        os.kill(children(started.pid)[0], signal.SIGKILL)
        _, err = started.communicate(timeout=120)
        assert started.returncode == 0, err
        job = the_job(sluice)
        expected, least = undivided(sluice)
        assert outputs(job) == expected
        assert service.requests <= least + LINES + 4  # an unfinished file, and what was under way
    assert "ended without a receipt" in (job / "job.log").read_text()


@pytest.mark.parametrize(("shards", "then"), [(4, 2), (1, 4)])
def test_a_killed_job_keeps_its_division_and_goes_on(sluice_process: Commands, shards: int, then: int) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.1) as service:
        configure(sluice, service, shards=shards)
        started = sluice.start("pipeline", "start", "config.yaml")
        wait_until(lambda: service.requests > 30)
        mine = children(started.pid)
        assert bool(mine) == (shards > 1)
        started.kill()
        started.communicate(timeout=30)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in mine), 10)
        job = the_job(sluice)
        division = [path.read_bytes() for path in job.glob(".results/2/shards.json")]
        service.delay = 0.0
        ran = sluice.here("pipeline", "continue", "config.yaml", job.name, "--set", f"pipeline.shards={then}")
        assert ran.code == 0, ran.err
        assert [path.read_bytes() for path in job.glob(".results/2/shards.json")] == division
        shown = sluice.status(job.name)["steps"][1]["shards"]
        assert shown is None if shards == 1 else shown["total"] == shards
        assert outputs(job) == undivided(sluice)[0]


def test_a_shard_that_fails_ends_the_step_and_continue_goes_on(sluice: Commands) -> None:
    write_input(sluice.cwd / "in")
    with counting(delay=0.03) as service:
        configure(sluice, service, shards=4)
        service.refused = b'"id": "p803"'
        ran = sluice("pipeline", "start", "config.yaml")
        assert ran.code == 1
        assert ran.err.count("error[") == 1, ran.err
        job = directory_of(sluice, ran)
        assert "b7.ndjson" in ran.err
        status = sluice.status(job.name)
        assert status["steps"][1]["shards"]["failed"] == 1
        assert status["error"]["reference"] == ran.err.partition("error[")[2].partition("]")[0]
        service.refused = None
        before = service.requests
        again = sluice.here("pipeline", "continue", "config.yaml", job.name)
        assert again.code == 0, again.err
        assert service.requests - before < before
        assert outputs(job) == undivided(sluice)[0]


def test_a_child_of_an_earlier_run_counts_as_one_of_those_at_once(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.05) as service:
        configure(sluice, service, requests=2, shards=4)
        service.refused = b'"id": "p101"'
        assert sluice("pipeline", "start", "config.yaml").code == 1
        job = the_job(sluice)
        service.refused, service.peak = None, 0
        shard = job / ".results" / "2" / "3"
        shard.mkdir(mode=0o700, exist_ok=True)
        with open_private(shard / LOCK, "ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            started = sluice.start("pipeline", "continue", "config.yaml", job.name)
            wait_until(lambda: (sluice.status(job.name)["steps"][1]["shards"] or {}).get("done") == 3, 60)
            assert service.peak == 1
        _, err = started.communicate(timeout=120)
        assert started.returncode == 0, err
        assert outputs(job) == undivided(sluice)[0]


def test_shards_whose_answers_contradict_each_other_are_all_done_again(sluice: Commands) -> None:
    write_input(sluice.cwd / "in", files=4, lines=3)
    for name in ("x", "y"):
        one = observation(name, "p100", performer=[{"reference": "Practitioner/d1"}])
        (sluice.cwd / "in" / f"{name}.ndjson").write_text(json.dumps(one) + "\n")
    with counting() as service:
        configure(sluice, service, shards=6)
        service.mixed_up = b'"id": "x"'
        ran = sluice("pipeline", "start", "config.yaml")
        assert (ran.code, "error[references-differ]" in ran.err) == (1, True), ran.err
        assert set(service.seen.values()) == {1}
        service.mixed_up = None
        again = sluice.here("pipeline", "continue", "config.yaml", ran.job)
        assert again.code == 0, again.err
        assert set(service.seen.values()) == {2}
        whole = sluice("pipeline", "start", "config.yaml", "--shards", "1")
        assert outputs(directory_of(sluice, ran)) == outputs(directory_of(sluice, whole))


def test_other_files_than_were_divided_are_one_clear_error(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.1) as service:
        configure(sluice, service, shards=2)
        started = sluice.start("pipeline", "start", "config.yaml")
        wait_until(lambda: service.requests > 20)
        job = the_job(sluice)
        (job / "import/b9.ndjson").write_bytes(b'{"resourceType":"Patient","id":"p"}\n')
        (job / "import/b1.ndjson.zst").rename(job / "b1")
        _, err = started.communicate(timeout=120)
        assert started.returncode == 1
        assert "error[shards-input-changed]" in err
        assert "added: b9.ndjson" in err
        assert "removed: b1.ndjson.zst" in err
        (job / "import/b9.ndjson").unlink()
        (job / "b1").rename(job / "import/b1.ndjson.zst")
        again = sluice.here("pipeline", "continue", "config.yaml", job.name)
        assert again.code == 0, again.err
        assert len(outputs(job)) == 9


def test_a_stop_reaches_the_children(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.2) as service:
        configure(sluice, service, shards=2)
        started = sluice.start("pipeline", "start", "config.yaml")
        wait_until(lambda: service.requests > 10)
        mine = children(started.pid)
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=15)
        assert started.returncode == 130
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in mine), 5)
        assert sluice.status(the_job(sluice).name)["state"] == "stopped"


def test_a_child_that_always_ends_early_is_one_clear_error(sluice: Commands) -> None:
    write_input(sluice.cwd / "in", files=2, lines=1)
    place = sluice.cwd / "early"
    place.mkdir()
    (place / "sitecustomize.py").write_text("import os\nif 'SLUICE_SUPERVISOR' in os.environ:\n    os._exit(9)\n")
    sluice.environment["PYTHONPATH"] = f"{place}:{sluice.environment['PYTHONPATH']}"
    with counting() as service:
        configure(sluice, service, shards=2)
        ran = sluice("pipeline", "start", "config.yaml", "--set", "retry.max_attempts=2")
        assert ran.code == 3
        assert "error[shard-crashed]" in ran.err
        assert "ended 2 times" in ran.err
        sluice.environment["PYTHONPATH"] = str(ROOT)
        again = sluice.here("pipeline", "continue", "config.yaml", ran.job)
        assert again.code == 0, again.err


def test_a_configuration_that_changed_while_the_job_runs_is_refused_by_a_child(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.2) as service:
        configure(sluice, service, shards=2)
        started = sluice.start("pipeline", "start", "config.yaml")
        wait_until(lambda: service.requests > 10)
        configure(sluice, service, shards=2, requests=3)
        os.kill(children(started.pid)[0], signal.SIGKILL)
        _, err = started.communicate(timeout=120)
        assert started.returncode == 2
        assert "error[shard-config-changed]" in err
        again = sluice.here("pipeline", "continue", "config.yaml", the_job(sluice).name)
        assert again.code == 0, again.err


def test_a_receipt_that_was_changed_is_refused_and_its_shard_is_checked_again(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.05) as service:
        configure(sluice, service, shards=4)
        job = killed_with(sluice, "*/.results/2/*/receipt.json")
        receipt = next(job.glob(".results/2/*/receipt.json"))
        kept = json.loads(receipt.read_text())
        receipt.write_text(json.dumps(kept | {"sha256": "0" * 64}))
        ran = sluice.here("pipeline", "continue", "config.yaml", job.name)
        assert ran.code == 1
        assert "error[shard-file-damaged]" in ran.err
        receipt.unlink()
        again = sluice.here("pipeline", "continue", "config.yaml", job.name)
        assert again.code == 0, again.err
        assert outputs(job) == undivided(sluice)[0]
        for path in (job / ".results/2").rglob("*"):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.timeout(300)
def test_a_state_file_that_is_something_else_is_one_clear_error(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.05) as service:
        configure(sluice, service, shards=2)
        job = killed_with(sluice, "*/.results/2/0/progress.json")
        kept = job / ".results/2"
        shard = kept / "0"
        elsewhere = kept / "elsewhere"
        elsewhere.touch(0o600)
        made = service.requests
        for path, make in (
            (kept / "shards.json", os.mkfifo),
            (shard / "order.json", lambda path: path.symlink_to(elsewhere)),
            (shard / "progress.json", os.mkfifo),
            (shard / "receipt.json", os.mkdir),
        ):
            before = path.read_bytes() if path.exists() else None
            path.unlink(missing_ok=True)
            make(path)
            ran = sluice.here("pipeline", "continue", "config.yaml", job.name)
            assert ran.code == 1, (path.name, ran)
            assert ran.err.count("error[") == 1, ran.err
            assert str(path) in ran.err
            path.rmdir() if path.is_dir() else path.unlink()
            if before is not None:
                path.write_bytes(before)
                path.chmod(0o600)
        assert service.requests <= made + 4
        again = sluice.here("pipeline", "continue", "config.yaml", job.name)
        assert again.code == 0, again.err


FULL = """
"$@" pipeline start config.yaml --no-progress &
until ls jobs/*/.results/2/0/progress.json >/dev/null 2>&1; do sleep 0.1; done
cat /dev/zero > jobs/filling 2>/dev/null
wait $!
code=$?
rm jobs/filling
"$@" pipeline continue config.yaml latest || exit 98
find jobs -path '*/pseudonymized/*' -exec sha256sum {} +
exit $code
"""


def test_a_disk_that_fills_up_under_the_children_is_one_clear_error(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in", files=4, lines=40)
    with counting(delay=0.05) as service:
        configure(sluice, service, shards=2)
        ran, _ = on_small_disk(sluice, sluice.cwd, "140m", script=FULL)
        assert ran.code == 1, ran.err
        assert ran.err.count("error[") == 1, ran.err
        assert "error[disk-full]" in ran.err
        expected, _ = undivided(sluice, files=4, lines=40)
        found = {Path(name).name: digest for digest, name in (line.split() for line in ran.out.splitlines()[-5:])}
        assert found == expected


def test_a_receipt_that_cannot_be_written_is_one_clear_error(sluice_process: Commands) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in")
    with counting(delay=0.05) as service:
        configure(sluice, service, shards=2)
        started = sluice.start("pipeline", "start", "config.yaml")
        wait_until(lambda: service.requests > 5)
        for directory in the_job(sluice).glob(".results/2/[01]"):
            (directory / "receipt.json.part").mkdir(mode=0o700)
        _, err = started.communicate(timeout=120)
        assert started.returncode == 1, err
        assert err.count("error[") == 1
        assert "error[storage-failed]" in err
        for part in the_job(sluice).rglob("receipt.json.part"):
            part.rmdir()
        again = sluice.here("pipeline", "continue", "config.yaml", the_job(sluice).name)
        assert again.code == 0, again.err


KILL_AT = """
import os, signal
from flows.signals import SUPERVISOR
name, call, moment = os.environ.get("KILL_AT", "::").split(":")
if name and SUPERVISOR not in os.environ:
    import tasks.shared.shards as shards
    whole, calls = getattr(shards, name), []
    def killed(*args, **named):
        calls.append(args)
        if moment == "before" and len(calls) == int(call):
            os.kill(os.getpid(), signal.SIGKILL)
        found = whole(*args, **named)
        if len(calls) == int(call):
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    setattr(shards, name, killed)
"""
"""Kills the job, not its children, before or after a call of a function."""


def _rarely(moment: str) -> object:
    return pytest.param(moment, marks=pytest.mark.campaign)


@pytest.mark.parametrize(
    "moment",
    [
        "save_division:1:before",
        _rarely("save_division:1:after"),
        _rarely("begin_divided:1:after"),
        _rarely("finish_divided:1:before"),
        "shard_context:2:before",  # the ledger of one shard is taken over
        _rarely("shard_context:4:after"),
        _rarely("finish_divided:1:after"),
    ],
)
def test_a_job_killed_while_it_divides_or_puts_together_goes_on(
    sluice_process: Commands, tmp_path: Path, moment: str
) -> None:
    sluice = sluice_process
    write_input(sluice.cwd / "in", files=4, lines=4)
    place = tmp_path / "killing"
    place.mkdir()
    (place / "sitecustomize.py").write_text(KILL_AT)
    python_path = f"{place}:{sluice.environment['PYTHONPATH']}"
    with counting() as service:
        configure(sluice, service, shards=4)
        ran = sluice("pipeline", "start", "config.yaml", env={"PYTHONPATH": python_path, "KILL_AT": moment})
        assert ran.code == -signal.SIGKILL, ran.err
        job = the_job(sluice)
        again = sluice.here("pipeline", "continue", "config.yaml", job.name)
        assert again.code == 0, again.err
        assert set(service.seen.values()) == {1}  # nothing was sent twice
        assert sluice.status(job.name)["steps"][1]["shards"] == {"total": 4, "done": 4, "running": 0, "failed": 0}
        assert outputs(job) == undivided(sluice, files=4, lines=4)[0]


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_outputs_are_the_same_after_a_kill_at_any_moment(sluice_process: Commands) -> None:
    """``kill -9`` of a child or of the job at random moments: only lines of files under way are sent again."""
    sluice, draw = sluice_process, random.Random(SEED)
    write_input(sluice.cwd / "in")
    with counting(delay=0.05) as service:
        configure(sluice, service, shards=4)
        expected, least = undivided(sluice)
        for trial in range(TRIALS):
            service.seen.clear()
            kills, seen = 0, {path.name for path in (sluice.cwd / "jobs").iterdir()}
            words = ["pipeline", "start", "config.yaml"]
            while True:
                running = sluice.start(*words, "--no-progress")
                at = draw.uniform(1.0, 7.0)
                kind = draw.choice(["child", "job"]) if kills < 3 else "nothing"
                with suppress(subprocess.TimeoutExpired):
                    running.communicate(timeout=at if kind != "nothing" else 120)
                new = {path.name for path in (sluice.cwd / "jobs").iterdir()} - seen
                if running.poll() is None:
                    mine = children(running.pid) if kind == "child" else [running.pid]
                    for pid in mine[:1]:
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
                    with suppress(subprocess.TimeoutExpired):
                        running.communicate(timeout=120 if kind == "child" else 10)
                if running.returncode == 0:
                    break
                if new:
                    words = ["pipeline", "continue", "config.yaml", new.pop()]
            (job,) = {path.name for path in (sluice.cwd / "jobs").iterdir()} - seen
            assert outputs(sluice.cwd / "jobs" / job) == expected, trial
            assert service.requests <= least + 2 * LINES * kills, (trial, kills)
            print(f"trial {trial}: {kills} kills, {service.requests - least} requests repeated")
