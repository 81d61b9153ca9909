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
from functools import cache
from types import ModuleType
from typing import Any

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


@cache
def settings_in_one_pass() -> None:
    """Let Prefect write its settings as variables in 2 ms instead of 50; a server does so three times as it starts.

    It writes each part of them, and with each part again all that is in it, to throw that away.
    """
    from prefect.settings.base import PrefectBaseSettings

    of_prefect, dump = PrefectBaseSettings.to_environment_variables, PrefectBaseSettings.model_dump
    writing = ContextVar("writing", default=False)

    def to_environment_variables(self: PrefectBaseSettings, *args: bool, **how: bool) -> dict[str, str]:
        before = writing.set(True)
        try:
            return of_prefect(self, *args, **how)
        finally:
            writing.reset(before)

    def model_dump(self: PrefectBaseSettings, **how: Any) -> dict[str, Any]:
        if writing.get():
            parts = (name for name in type(self).model_fields if isinstance(getattr(self, name), PrefectBaseSettings))
            how["exclude"] = set(parts)
        return dump(self, **how)

    PrefectBaseSettings.to_environment_variables = to_environment_variables  # type: ignore[method-assign]
    PrefectBaseSettings.model_dump = model_dump  # type: ignore[method-assign, assignment]
