"""Run a divided step in this process: what the parent does, and its child runs one after the other."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tasks.shared.report import StepReport
from tasks.shared.shards import (
    Division,
    begin_divided,
    finish_divided,
    load_division,
    plan_division,
    save_division,
    shard_context,
)
from tasks.shared.step import Splits, Step, StepContext


class KilledError(BaseException):
    """In place of a signal."""


def divided(step: Step, context: StepContext, count: int) -> tuple[Splits, Division]:
    """Return how the step is divided: as its job already was, or now among at most ``count`` shards."""
    splits = step.splits
    assert splits is not None, f"{step.name} cannot be divided"
    division = load_division(context.job_dir, context.position) or plan_division(splits, context, count)
    assert division is not None, "fewer than two files to divide"
    save_division(division, context.job_dir, context.position)
    return splits, division


def run_divided(
    step: Step,
    context: StepContext,
    count: int,
    *,
    order: Iterable[int] | None = None,
    requests: int = 1,
    between: Callable[[int], None] = lambda _: None,
) -> StepReport:
    """Return the report of a step that is divided among ``count`` shards, which run in ``order``.

    A shard whose number is in ``order`` twice runs twice. ``between`` is called after each run, with its shard.
    """
    splits, division = divided(step, context, count)
    begin_divided(step, splits, context, division)
    for index in order if order is not None else range(len(division.shards)):
        step.run(shard_context(context, division.shards[index], requests))
        between(index)
    return finish_divided(step, splits, context, division)


def digests(*directories: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below the directories, by its path in them."""
    return {
        f"{directory.name}/{path.relative_to(directory)}": hashlib.sha256(path.read_bytes()).hexdigest()
        for directory in directories
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def kill_at_call(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, call: int) -> None:
    """Let one call of a function (counted from 0) raise ``KilledError``."""
    real, seen = getattr(where, name), itertools.count()

    def killed(*arguments: Any, **named: Any) -> Any:
        if next(seen) == call:
            raise KilledError
        return real(*arguments, **named)

    monkeypatch.setattr(where, name, killed)
