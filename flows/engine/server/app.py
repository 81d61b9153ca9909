"""Prefect's server as our application: one UI, no requests to the internet, fewer stored events, fewer 503 answers.

Two servers use it: a jobs directory's own (``child.py``) and a separate one (``deployments/server.py``). Importing this
imports Prefect.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import prefect
from prefect.server.api import collections
from prefect.server.api.server import create_app
from prefect.server.events.schemas.events import ReceivedEvent
from prefect.server.events.storage.database import write_events
from prefect.settings import PREFECT_UI_STATIC_DIRECTORY, temporary_settings
from sqlalchemy.ext.asyncio import AsyncSession

from flows.engine import patches

NO_UI = Path(os.devnull) / "ui"
"""A directory that cannot be made."""

NO_ADDRESSES = dict.fromkeys(collections.KNOWN_VIEWS, "none:")
"""Instead of addresses in Prefect's repository: the lists of kinds of workers and blocks are those of the package."""


def application(place: Path) -> Any:
    """Return Prefect's server; ``place`` is a directory only for it.

    Raises:
        UnfitPrefectError: private parts of Prefect have changed in the installed version.
    """
    patches.apply("server")
    # Prefect copies its UI before it serves it: next to the original, unless that is not writable.
    beside = os.access(prefect.__ui_static_subpath__.parent, os.W_OK)
    with nullcontext() if beside else temporary_settings({PREFECT_UI_STATIC_DIRECTORY: str(place / "ui")}):
        return create_app()


async def keep_events(session: AsyncSession, events: Sequence[ReceivedEvent]) -> None:
    """Store events except for the states of task runs.

    Prefect derives the task runs and their states from those events, and automations see them as they arrive. Stored as
    events too, they would be most of a job's data in the database, and only the feed of the UI reads them.
    """
    await write_events(session=session, events=[event for event in events if not makes_a_task_run(event)])


def begin_writing(configuration: Any, session: AsyncSession, with_for_update: bool = False) -> Any:
    """Return a transaction in SQLite that waits for other writers when it begins.

    Prefect begins most of them as readers. If another one has written before their first write, SQLite refuses that
    write at once, and the server answers 503. Prefect's clients wait 2, 4, 8, … seconds until they try again.
    """
    begin = patches.of_prefect("prefect.server.database.configurations", "AioSqliteConfiguration.begin_transaction")
    return begin(configuration, session, with_for_update=True)


def makes_a_task_run(event: ReceivedEvent) -> bool:
    """Return whether Prefect's recorder of task runs uses the event, by the same rule (``task_run_recorder``)."""
    return event.event.startswith("prefect.task-run") and event.resource.get("prefect.orchestration") == "client"
