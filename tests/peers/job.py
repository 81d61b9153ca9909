"""A job directory with input, and the context of a step in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.shared.blanked import remember
from tasks.shared.service import Service
from tasks.shared.step import GivenInputs, Source, StepContext
from tests.peers.data import as_line

ROOT = Path(__file__).parents[2]


def configuration(services: dict[str, Any], *, attempts: int = 3, **top: Any) -> PipelineConfig:
    """Return a configuration with distinct waits between attempts: 0.1, 0.2 and 0.25 s."""
    retry = {"max_attempts": attempts, "initial_backoff_ms": 100, "max_backoff_ms": 250}
    return PipelineConfig.model_validate({"services": services, "retry": retry} | top)


def context(
    directory: Path, name: str, config: PipelineConfig | dict[str, Any] | None = None, **more: Any
) -> StepContext:
    """Return the context of step ``name`` in a job directory: the one place in the tests that makes one.

    ``config`` as it is loaded or as it is written; ``more`` as the fields are called, those of what was given and of
    the source too (which is called ``source`` by its path, with its ``lines``).
    """
    if not isinstance(config, PipelineConfig):
        config = PipelineConfig.model_validate(config or {})
    fields: dict[str, Any] = {"job_id": "j", "position": 1} | more
    fields["given"] = GivenInputs(
        **{name: fields.pop(name) for name in ("crtdl", "patients", "input") if name in fields}
    )
    source = {name: fields.pop(name) for name in ("lines", "recorded") if name in fields}
    fields["source"] = Source(fields["source"], **source) if fields.get("source") else None
    return StepContext(config=config, job_dir=directory, name=name, **fields)


def probed(service: Service, config: PipelineConfig, **options: Any) -> list[Any]:
    """Return the findings of a service's probe."""
    assert service.probe is not None
    return list(service.probe.find_problems(service, config, **options))


def keep_secret(config: PipelineConfig) -> None:
    """Blank the secrets of a configuration in what is kept and shown, as the step's task does before it runs a step."""
    remember(config)


class StepJob:
    """A job directory with input, for a step that is run in it once or several times."""

    step = ""
    position = 1

    def __init__(self, directory: Path, source: str = "import") -> None:
        self.directory = directory
        self.input = directory / source
        self.input.mkdir(parents=True, exist_ok=True)
        self.slept: list[float] = []
        self.context: Any = None
        """That of the last run."""

    def put(self, name: str, content: bytes) -> Path:
        """Write a file of the input."""
        path = self.input / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def write(self, name: str, *lines: bytes | dict[str, Any]) -> Path:
        """Write a file of the input, a line each."""
        return self.put(name, b"".join(as_line(line) + b"\n" for line in lines))

    def prepare(self, config: PipelineConfig, **more: Any) -> StepContext:
        given: StepContext = context(
            self.directory, self.step, config, **{"position": self.position, "source": self.input} | more
        )
        self.context = given
        return given

    def failed(self) -> list[Any]:
        """Return the answers that were kept because they made the step fail."""
        return sorted((self.directory / self.step / "failed").glob("*"))


def in_process(code: str, *arguments: object, cwd: Path = ROOT, **options: Any) -> subprocess.Popen[str]:
    """Python code in a process of its own, so that it can be killed or its memory measured."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True, **options)


def printed(code: str, *arguments: object) -> str:
    """Return the output of such a process, which must succeed."""
    process = in_process(code, *arguments)
    out, _ = process.communicate()
    assert process.returncode == 0
    return out
