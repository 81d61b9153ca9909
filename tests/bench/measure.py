"""Runs of a step in a process of its own, and several measures in turn."""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

MB = 1_000_000


class Run(NamedTuple):
    """One run of a step: seconds by the clock and of CPU, bytes of content read, requests, peak memory in bytes."""

    seconds: float
    cpu: float
    read: int
    requests: int
    peak: int


def run_step(name: str, job: Path, source: Path | None, settings: dict[str, Any], **more: Any) -> Run:
    """Run a step with these settings of its service in a process of its own. ``more`` goes to the context."""
    run: Run = in_own_process(_run_step, name, job, source, settings, more)
    return run


def _run_step(pipe: Any, name: str, job: Path, source: Path | None, settings: dict[str, Any], more: Any) -> None:
    from tests.peers.job import context

    import_module("httpcore")  # a run has loaded it before its first step: Prefect's client needs it
    step = import_module(f"tasks.{name}.step").STEP
    given = context(job, name, {"services": {name: settings}}, source=source, **more)
    began, cpu = time.perf_counter(), time.process_time()
    report = step.run(given)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    pipe.send(Run(seconds, cpu, report.bytes_in or 0, given.meter.requests, peak()))


def peak() -> int:
    """Return the ``VmHWM`` of this process in bytes. ``ru_maxrss`` would begin with that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def in_own_process(load: Callable[..., None], *arguments: Any) -> Any:
    """Return what ``load`` in a new process sends through the pipe, its first argument. ``EOFError`` if it fails."""
    with _started(load, *arguments) as pipe:
        return pipe.recv()


@contextmanager
def serving(load: Callable[..., None], *arguments: Any) -> Iterator[int]:
    """Yield the port that a service in a process of its own sends through the pipe; it ends with the block."""
    with _started(load, *arguments, ends=False) as pipe:
        yield pipe.recv()


@contextmanager
def _started(load: Callable[..., None], *arguments: Any, ends: bool = True) -> Iterator[Any]:
    """Yield the pipe of a fresh interpreter: a fork would share the figures of memory."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=load, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield mine
    finally:
        if not ends:
            process.terminate()
        process.join()
        mine.close()


def in_turn(rounds: int, *measures: Callable[[int], float]) -> list[list[float]]:
    """Take each measure once in every round, so that what else the machine does meets all alike."""
    found: list[list[float]] = [[] for _ in measures]
    for number in range(rounds):
        for values, measure in zip(found, measures, strict=True):
            values.append(measure(number))
    return found


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Return ours to theirs: best to best, and the median of the rounds' own ratios."""
    pairs = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return f"{max(ours) / max(theirs):.2f} best to best, {statistics.median(pairs):.2f} median of the rounds"


class Spent(NamedTuple):
    """Seconds by the clock, and of CPU."""

    wall: float
    cpu: float


def cpu_spent() -> float:
    """CPU seconds of all descendants of this process, those that ended and those that live."""
    with _nothing_left():
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + sum(_living(os.getpid()))


@contextmanager
def _nothing_left() -> Iterator[None]:
    try:
        yield
    except ChildProcessError:
        return


def _living(parent: int) -> Iterator[float]:
    """CPU seconds of the living descendants, with those that they have waited for."""
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and int(fields[1]) == parent:
            yield sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            yield from _living(int(entry.name))
