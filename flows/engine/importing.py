"""Import Prefect with the garbage collector off: imported modules stay anyway, and scanning them takes 0.2 s."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off for the first import of Prefect, and exclude the imported modules from it."""
    if "prefect" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
