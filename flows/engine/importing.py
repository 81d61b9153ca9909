"""Import Prefect without collecting garbage meanwhile: what is imported stays, and looking through it costs 0.2 s."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off for the first import of Prefect, and leave what was imported out of it."""
    if "prefect" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
