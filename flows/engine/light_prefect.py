"""What Prefect does while it is imported, and nobody has a use for: a fifth of a second of each start.

``blocks_later`` comes before ``import prefect``; ``settings_in_one_pass`` between that and what is in it.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flows.engine import patches

if TYPE_CHECKING:
    from prefect.settings.base import PrefectBaseSettings

BLOCKS = ("prefect.blocks.notifications", "prefect.blocks.webhook")
"""Kinds of blocks, fourteen schemas and two lists of certificates. Only a server tells somebody something with them."""


@contextmanager
def uncollected() -> Iterator[None]:
    """What is imported stays: to look for garbage in it again and again is a seventh of the start."""
    if "prefect" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Later(ModuleType):
    """Stands for a module until somebody wants something of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def blocks_later() -> None:
    """In a process that runs a job: import ``BLOCKS`` when something of them is wanted, which is never."""
    for name in BLOCKS:
        sys.modules.setdefault(name, _Later(name))


_BASE = "prefect.settings.base"
_writing = ContextVar("writing", default=False)


def settings_in_one_pass() -> None:
    """Let Prefect write its settings as variables in 2 ms instead of 50; a server does so three times as it starts.

    It writes each part of them, and with each part again all that is in it, to throw that away.
    """
    patches.apply("settings")


def to_environment_variables(self: PrefectBaseSettings, *args: bool, **how: bool) -> dict[str, str]:
    """As Prefect's, with ``model_dump`` told that the parts are written one by one."""
    before = _writing.set(True)
    try:
        written: dict[str, str] = patches.of_prefect(_BASE, "PrefectBaseSettings.to_environment_variables")(
            self, *args, **how
        )
        return written
    finally:
        _writing.reset(before)


def model_dump(self: PrefectBaseSettings, **how: Any) -> dict[str, Any]:
    """As Prefect's; without the parts while they are written one by one."""
    if _writing.get():
        base = importlib.import_module(_BASE).PrefectBaseSettings
        how["exclude"] = {name for name in type(self).model_fields if isinstance(getattr(self, name), base)}
    dumped: dict[str, Any] = patches.of_prefect(_BASE, "PrefectBaseSettings.model_dump")(self, **how)
    return dumped
