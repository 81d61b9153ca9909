"""Pathling behind the operation ``$run``, started once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.programs import HOST, directory, running, scratch


@contextmanager
def pathling_running() -> Iterator[str]:
    """The flattening service and its URL; it needs a quarter of a minute to start, and as long for its first rows."""
    home = directory("SLUICE_REAL_PATHLING", "library-runtime.jar", "python tests/real/get.py pathling")
    source = Path(__file__).with_name("pathling") / "service.py"
    with scratch() as place:
        # Spark leaves files where it runs.
        command = ("env", "-C", place, home / "bin" / "python", source)
        with running("Pathling", command, place / "log", ends_with_input=True) as server:
            server.wait(lambda: server.line("listening ") is not None, 280)
            yield f"http://{HOST}:{server.line('listening ')}"
