"""The child as a run of a deployment: the flow ``pipeline`` with the parameter ``shard``, and nothing else."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Final

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.engine import runs
from flows.engine.api import PrefectApi
from flows.engine.api_address import current_api
from flows.engine.outage import BRIDGE
from flows.engine.run_log import nothing_after, shown_in_ui
from flows.job.directory import JobDirectory
from flows.job.running.lock import JobBusyError
from flows.job.watch import CANCEL, LOOK_EVERY, stop_asked
from flows.job.writer import RecordWriter
from flows.shards.child import run_shard
from flows.shards.children import FAILED_NAME, LOST_NAME
from flows.signals import exit_code_of, signals
from tasks.shared.errors import InputError, SluiceError, Stopped
from tasks.shared.log import logger
from tasks.shared.prefect_task import SAID_BY_THE_LOG
from tasks.shared.step import shard_directory
from tasks.shared.stop import Stop

_SHARD: Final = re.compile(r"([0-9a-f-]{36})/([0-9]{1,4})/([0-9]{1,4})")


def run_in_pool(run_id: str, shard: str) -> State[None]:
    """Run a shard (``job id/position/number``) in the flow run ``run_id``; return the state that the run ends in.

    Raises:
        prefect.exceptions.TerminationSignal: a runner asked this process to end.
    """
    stop, over = Stop(), threading.Event()
    with shown_in_ui(run_id), PrefectApi(current_api(), patience=BRIDGE) as api:
        watcher = threading.Thread(target=_watch, args=(api, run_id, stop, over), daemon=True)
        watcher.start()
        try:
            with signals.stopping(stop, lambda name: os._exit(exit_code_of(name))):
                receipt = run_shard(_directory(api, shard), stop)
        except JobBusyError as busy:
            logger.warning("%s", busy.message)
            return Crashed(name=LOST_NAME, message="another process has the shard")
        except Stopped as reason:
            runs.raise_termination_if_asked()
            if str(reason) == CANCEL:
                return Cancelled(message="cancelled; the job decides whether the shard is submitted again")
            return Crashed(name=LOST_NAME, message=f"stopped by {reason}")
        except SluiceError as error:
            logger.error("%s", error.render())
            return Failed(name=FAILED_NAME, message=f"error[{error.reference}]: {SAID_BY_THE_LOG}")
        finally:
            over.set()
            nothing_after(run_id)
    if receipt.error is not None:
        return Failed(name=FAILED_NAME, message=f"error[{receipt.error.reference}]: {SAID_BY_THE_LOG}")
    return Completed(message="the shard is done")


def _directory(api: PrefectApi, shard: str) -> Path:
    """Return the directory of a shard, of a job in the record. Raises ``InputError``."""
    match = _SHARD.fullmatch(shard)
    record = RecordWriter(api, match[1]).read() if match is not None else None
    if match is None or record is None or record.directory is None:
        raise InputError("shard-unknown", "there is no such shard", hint="runs with this parameter are made by a job")
    job = JobDirectory.of(Path(record.directory).parent, match[1])
    return shard_directory(job.path, int(match[2]), int(match[3]))


def _watch(api: PrefectApi, run_id: str, stop: Stop, over: threading.Event) -> None:
    """Stop the shard when its run is cancelled."""
    while not over.wait(LOOK_EVERY):
        try:
            with api.hurried(LOOK_EVERY):
                asked = stop_asked(api, run_id)
        except SluiceError:
            continue  # the server may come back; the lease decides whether the shard is still ours
        if asked is not None:
            stop.request(CANCEL)
            return
