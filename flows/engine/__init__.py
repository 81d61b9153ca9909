"""Everything that depends on Prefect's internals: its import, its API, runs and servers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off for the first import of Prefect, and exclude the imported modules from it.

    They stay anyway, and scanning them takes 0.2 s.
    """
    if "prefect" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
