"""The service of a module: started for it, or its tests are skipped because it is not there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real.services import PROGRAMS, STARTS

Start = Callable[[str], str]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Yield what starts a service by its name and returns its URL; it ends with the module."""
    with ExitStack() as stack:

        def started(name: str) -> str:
            home = PROGRAMS[name].place
            if not home.is_dir():
                pytest.skip(f"{name} is not there: python -m tests.real.services {name}")
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-real-", ignore_cleanup_errors=True))
            return str(stack.enter_context(STARTS[name](home, Path(place))))  # type: ignore[arg-type]

        yield started
