"""Prefect's server as an application of ours: it has one UI, and asks nobody on the internet.

Of the two servers that use it one is a jobs directory's own (``server_child.py``), one stands for itself
(``deployments/server.py``). Importing this imports Prefect.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import prefect
from prefect.server.api import collections
from prefect.server.api.server import create_app


def application(place: Path) -> Any:
    """Prefect's server; ``place`` is a directory of its own, in which nothing is called ``no-ui-v2``."""
    # Prefect copies its UI before it serves it: beside the original, unless nothing may be written there.
    if not os.access(prefect.__ui_static_subpath__.parent, os.W_OK):
        prefect.__ui_static_subpath__ = place / "ui"
    # Without its files Prefect serves no second UI and offers none: its pages call an analytics host.
    prefect.__ui_v2_static_path__ = place / "no-ui-v2"
    # Lists of kinds of workers and blocks: from the package, not from Prefect's repository on the internet.
    collections.KNOWN_VIEWS.update(dict.fromkeys(collections.KNOWN_VIEWS, "none:"))
    return create_app()


async def offer_blocks() -> None:
    """Put Prefect's kinds of blocks into the database, for the UI's page of them; those that are there are renewed."""
    from prefect.server.database import provide_database_interface
    from prefect.server.models.block_registration import run_block_auto_registration

    async with await provide_database_interface().session() as session:
        await run_block_auto_registration(session=session)
