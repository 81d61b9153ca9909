"""Every private part of Prefect that Sluice relies on, in one table, and the check that each still exists.

A row names an attribute of a module, its replacement (``ours``) and the reason. A part without a replacement is only
read, called or overridden. Each process checks its rows when it starts: the attribute exists and has the expected
parameters. If one does not, the process stops with an error that names the version of Prefect and every such row.
``tests/flows/engine/test_patches.py`` shows for each replacement that Prefect really calls it.

All rows are written for ``VERSIONS``. Importing this module does not import Prefect.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from tasks.shared.errors import TerminalError

VERSIONS: Final = ">=3.8.8,<3.9"
"""The versions of Prefect for which the rows were written and tested."""

Process = Literal["run"]
"""The processes that rely on a row: those that run a job."""


class UnfitPrefectError(TerminalError):
    """The installed version of Prefect lacks private parts that Sluice relies on."""


@dataclass(frozen=True)
class Row:
    """One private part. ``attribute`` is a dotted path inside ``module``, or a file of the package, with wildcards.

    ``takes`` are the names of its parameters, ``None`` if it is not called. ``ours`` is ``module:name``.
    """

    process: Process
    module: str
    attribute: str
    why: str
    takes: str | None = None
    ours: str | None = None

    def __str__(self) -> str:
        return f"{self.module}/{self.attribute}" if "/" in self.attribute else f"{self.module}.{self.attribute}"


ROWS: Final = (
    # --- a run --------------------------------------------------------------------------------------------------
    Row(
        "run", "prefect.client.base", "PrefectHttpxSyncClient._send_with_retry",
        "waits for an API that is away as long as the job's record does, instead of 62 s",
        "self request send send_args send_kwargs retry_codes retry_exceptions", "flows.engine.bridging:send",
    ),
    Row(
        "run", "prefect.flow_engine", "maintain_concurrency_lease",
        "renews the slot of a deployment's limit without ending the run when the API is away",
        "lease_id lease_duration raise_on_lease_renewal_failure suppress_warnings",
        "flows.engine.bridging:renewed_slot",
    ),
    Row(
        "run", "rich.console", "Console.on_broken_pipe", "lets a run live on when nobody reads its lines any more",
        "self", "flows.engine.run_log:unread",
    ),
    Row(
        "run", "prefect.flow_engine", "run_flow", "executes a run that was created before, and again",
        "flow flow_run parameters wait_for return_type error_logger context",
    ),
    Row("run", "prefect.context", "SyncClientContext.get_or_create", "one client for a whole command", ""),
    Row("run", "prefect.input.run_input", "keyset_from_paused_state", "finds the answers to a wait's form", "state"),
    Row("run", "prefect._internal.control_listener", "get_intent", "tells a cancel from a stop", ""),
    Row("run", "prefect.events.worker", "EventsWorker.drain_all", "sends the last events", "timeout at_exit"),
)  # fmt: skip

_of_prefect: dict[tuple[str, str], Any] = {}
"""The replaced originals."""


def require(*processes: Process) -> None:
    """Check the rows of these processes.

    Raises:
        UnfitPrefectError: some have changed in the installed version; all of them are named.
    """
    _refuse((row, why) for row in ROWS if row.process in processes and (why := _misfit(row)) is not None)


def apply(*processes: Process) -> None:
    """Check the rows of these processes and put the replacements in place; may be repeated. Raises as ``require``."""
    require(*processes)
    rows = [row for row in ROWS if row.process in processes and row.ours is not None]
    for row in rows:
        owner, name = _owner(row)
        ours = _ours(row)
        if getattr(owner, name) is not ours:
            _of_prefect.setdefault((row.module, row.attribute), getattr(owner, name))
            setattr(owner, name, ours)
    _refuse((row, "the replacement did not take effect") for row in rows if not is_applied(row))


def of_prefect(module: str, attribute: str) -> Any:
    """Return a replaced original."""
    return _of_prefect[module, attribute]


def is_applied(row: Row) -> bool:
    """Return whether a replacement is in place."""
    owner, name = _owner(row)
    return getattr(owner, name, None) is _ours(row)


def _refuse(misfits: Iterator[tuple[Row, str]]) -> None:
    found = [f"{row}: {why} ({row.why})" for row, why in misfits]
    if found:
        parts = "1 private part of it has" if len(found) == 1 else f"{len(found)} private parts of it have"
        raise UnfitPrefectError(
            "prefect-unfit", f"Sluice cannot run with Prefect {version('prefect')}: {parts} changed",
            context="\n  ".join(found),
            hint=f"install a tested version: pip install 'prefect{VERSIONS}', or use constraints.txt",
        )  # fmt: skip


def _misfit(row: Row) -> str | None:
    """Return the change of a row; ``None`` without one."""
    if "/" in row.attribute:
        package = find_spec(row.module)
        places = package.submodule_search_locations if package is not None else None
        return None if any(any(Path(place).glob(row.attribute)) for place in places or ()) else "no such file exists"
    try:
        owner, name = _owner(row)
    except (ImportError, AttributeError):
        return "its module or class no longer exists"
    found = _of_prefect.get((row.module, row.attribute), getattr(owner, name, None))
    if found is None and not _is_field(owner, name) and not hasattr(owner, name):
        return "it no longer exists"
    if row.takes is None:
        return None
    takes = " ".join(inspect.signature(found).parameters) if callable(found) else "nothing"
    return None if takes == row.takes else f"its parameters are ({takes}), expected ({row.takes})"


def _owner(row: Row) -> tuple[Any, str]:
    """Return the module or class that has the attribute, and the attribute's own name."""
    *path, name = row.attribute.split(".")
    owner: Any = importlib.import_module(row.module)
    for part in path:
        owner = getattr(owner, part)
    return owner, name


def _is_field(owner: Any, name: str) -> bool:
    """Return whether only instances have the attribute: a field of a model, or set by ``__init__``."""
    if name in getattr(owner, "model_fields", ()):
        return True
    code = getattr(getattr(owner, "__init__", None), "__code__", None)
    return code is not None and name in code.co_names


def _ours(row: Row) -> Any:
    assert row.ours is not None  # noqa: S101 - for the type checker
    module, name = row.ours.split(":")
    return getattr(importlib.import_module(module), name)
