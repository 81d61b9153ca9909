"""A step's surroundings: a configuration, a job directory, input files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.shared.step import StepContext


def job(directory: Path, services: dict[str, Any], *, name: str = "send", **top: Any) -> StepContext:
    """The context of a step that reads ``directory/import``; ``services`` and ``top`` as in the configuration."""
    config = PipelineConfig.model_validate(
        {
            "services": services,
            "retry": {"max_attempts": 3, "initial_backoff_ms": 50, "max_backoff_ms": 100},
            **top,
        }
    )
    source = directory / "import"
    return StepContext(
        config=config,
        job_id="job",
        job_dir=directory,
        position=1,
        name=name,
        source=source if source.exists() else None,
    )


def write(directory: Path, name: str, *lines: dict[str, Any] | bytes) -> Path:
    """A file of the step's input, one resource a line."""
    path = directory / "import" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for line in lines:
            file.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
    return path


def observation(identifier: str, subject: str | None = None, **more: Any) -> dict[str, Any]:
    """A small valid Observation."""
    about = {"subject": {"reference": f"Patient/{subject}"}} if subject else {}
    return {
        "resourceType": "Observation",
        "id": identifier,
        "status": "final",
        "code": {"text": "made up"},
        **about,
        **more,
    }


def patient(identifier: str, **more: Any) -> dict[str, Any]:
    """A small valid Patient."""
    return {"resourceType": "Patient", "id": identifier, **more}
