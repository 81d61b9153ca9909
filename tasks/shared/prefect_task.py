"""Run a step as a Prefect task.

Prefect stores no result of a task: a step is complete when the record has its report. The body of a task never raises,
because Prefect would log the traceback. It returns a Prefect state; the caller gets the result or exception directly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from prefect import task
from prefect.client.schemas.objects import State
from prefect.states import Completed, Crashed, Failed

from tasks.shared.blanked import remember
from tasks.shared.errors import InternalError, SluiceError, Stopped, internal_error
from tasks.shared.file_work import read_records, records_of
from tasks.shared.files.inventory import kept_at, take_inventory
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.service import Service
from tasks.shared.step import Step, StepContext, reconcile

log = logging.getLogger("sluice.step")

T = TypeVar("T")

_WORTH_A_WORD = 256_000_000
"""Bytes of output above which the status line shows the hashing: it may take longer than a second."""


def run_step(step: Step, context: StepContext) -> StepReport | Exception:
    """Run a step as a Prefect task of its name; return its report, or the exception that ended it."""

    def work() -> StepReport:
        started = time.monotonic()
        remember(context.config)  # of all services: a gateway may quote those of another one
        doubts = tuple(proved(step.services(context.config), context))
        done = step.run(context)
        reconcile(context, done)
        inventory = leave_inventory(context, done)
        statistics = context.meter.statistics() | {"seconds": round(time.monotonic() - started, 3)}
        statistics["content"] = done.content if done.content is not None else context.meter.snapshot().bytes
        also = {"inventory": inventory, "warnings": doubts + done.warnings}
        return done.model_copy(update=statistics | also)

    return as_task(step.name, work)


def as_task(name: str, work: Callable[[], T]) -> T | Exception:
    """Do ``work`` as a Prefect task named ``name``; return its result, or the exception that ended it."""
    outcome: list[T | Exception] = []

    def body() -> State[Any]:
        try:
            outcome.append(work())
        except Stopped as stopped:
            outcome.append(stopped)
            return Crashed(name="Stopped", message=f"stopped by {stopped}")
        except Exception as error:  # noqa: BLE001 - the seam where defects become reports
            problem = error if isinstance(error, SluiceError) else internal_error(error)
            outcome.append(problem)
            return Failed(message=problem.render())
        return Completed()

    body.__name__ = name.replace(" ", "_")
    task(name=name, persist_result=False, task_run_name=name)(body)(return_state=True)
    return outcome[0] if outcome else InternalError("no-result", f"{name} was not begun")


def proved(services: Iterable[Service], context: StepContext) -> Iterator[str]:
    """Test with synthetic data each service whose probe ``proves``, before it gets real data; yield the warnings.

    Raises the first error that a probe finds.
    """
    for service in services:
        if service.probe is None or not service.probe.proves:
            continue
        context.meter.set_status(f"testing {service.key} with a synthetic resource")
        told = Meter(shown_by=context.meter)  # these requests do not count as the step's
        for found in service.probe.find_problems(service, context.config, stop=context.stop, meter=told):
            if isinstance(found, SluiceError):
                FailedAnswers(context.state(service.key)).begin().save_answer_of(found)
                raise found
            context.meter.warn(found.text)
            yield found.text
        context.meter.set_status("")


def leave_inventory(context: StepContext, done: StepReport) -> str | None:
    """Write the inventory of the step's output; return its digest, ``None`` for a step without output.

    A file whose hash is in a done record is not read again.
    """
    if done.output is None:
        return None
    records = read_records(records_of(context.job_dir, context.position))
    known = {f"{done.output}/{one.output}": one.sha256 for one in records}
    if (done.bytes_out or 0) > _WORTH_A_WORD:
        context.meter.set_status("hashing the output")
    inventory = take_inventory(context.job_dir, [context.job_dir / done.output], stop=context.stop, known=known)
    inventory.save(kept_at(context.job_dir, context.position))
    return inventory.digest
