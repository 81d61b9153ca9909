"""A step's surroundings: a configuration, a job directory, input files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.shared.step import StepContext
from tests.peers.data import as_line, resource
from tests.peers.job import configuration, context


def job(directory: Path, services: dict[str, Any], *, name: str = "send", **top: Any) -> StepContext:
    """The context of a step that reads ``directory/import``; ``services`` and ``top`` as in the configuration."""
    source = directory / "import"
    return context(directory, name, configuration(services, **top), source=source if source.exists() else None)


def write(directory: Path, name: str, *lines: dict[str, Any] | bytes) -> Path:
    """Write a file of the step's input, one resource a line."""
    path = directory / "import" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(as_line(line) + b"\n" for line in lines))
    return path


def observation(identifier: str, subject: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a small valid Observation."""
    about = {"subject": {"reference": f"Patient/{subject}"}} if subject else {}
    return resource("Observation", identifier, **{"status": "final", "code": {"text": "made up"}} | about | more)


def patient(identifier: str, **more: Any) -> dict[str, Any]:
    """Return a small valid Patient."""
    return resource("Patient", identifier, **more)
