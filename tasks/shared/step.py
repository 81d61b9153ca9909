"""The interface of a step: its declaration (``Step``, in ``tasks/<step>/step.py``) and its input (``StepContext``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from config import PipelineConfig
from tasks.shared.errors import GateError, InputError, ReconciliationError, SluiceError, storage_errors
from tasks.shared.file_work import FileWork, records_of
from tasks.shared.files.inventory import Recorded
from tasks.shared.http.client import ServiceClient
from tasks.shared.meter import Meter
from tasks.shared.report import StepReport
from tasks.shared.service import Service
from tasks.shared.stop import Stop


@dataclass(frozen=True)
class Handle:
    """The handle of an extraction job: where to ask for its state, and its id."""

    status_url: str
    job_id: str


class HandleStore:
    """Storage of the extraction handle. This one is in memory; a job's is in its record."""

    def __init__(self, handle: Handle | None = None) -> None:
        self._handle = handle

    def load(self) -> Handle | None:
        """Return the stored handle."""
        return self._handle

    def save(self, handle: Handle | None) -> None:
        """Store a handle, or clear it with ``None``. It is durable when this returns; polling begins only then."""
        self._handle = handle


@dataclass(frozen=True)
class GivenInputs:
    """Inputs of a job besides its configuration: files, and the directory or URL to import."""

    crtdl: Path | None = None
    patients: Path | None = None
    input: str | None = None
    anonymization_config: Path | None = None


@dataclass(frozen=True)
class Source:
    """Data a step reads. ``lines`` and ``recorded`` (the inventory) come from the step that wrote the data;
    ``approved`` is the inventory that a person approved. ``tables`` says that the data are no NDJSON.
    """

    path: Path
    lines: int | None = None
    tables: bool = False
    recorded: Recorded | None = None
    approved: Recorded | None = None


@dataclass(frozen=True)
class Part:
    """The files that one process works on: all of them, or ``files`` (base names) as part ``number`` (from 1).

    ``at_once`` is the number of parts that run at the same time.
    """

    files: tuple[str, ...] | None = None
    proof: str = ""
    """The digest of the synthetic answer that the job's own process got: one of the terms of each part."""
    number: int = 0
    at_once: int = 1


@dataclass(frozen=True)
class StepContext:
    """Everything one step instance may use.

    ``given`` has the effective CRTDL. Import steps have no ``source``.
    ``command(verb, *rest)`` returns the command line ``sluice VERB CONFIG REST``, and ``again(position)`` the one that
    runs a step once more.
    """

    config: PipelineConfig
    job_id: str
    job_dir: Path
    position: int
    name: str
    given: GivenInputs = GivenInputs()
    source: Source | None = None
    handle: HandleStore = field(default_factory=HandleStore)
    meter: Meter = field(default_factory=Meter)
    stop: Stop = field(default_factory=Stop)
    command: Callable[..., str] = lambda verb, *rest: " ".join(["sluice", verb, "CONFIG", *rest])
    again: Callable[[int], str] = "sluice pipeline continue CONFIG JOB --from {}".format
    part: Part = Part()
    divide: Divide | None = None

    @property
    def input(self) -> Source:
        """Return the input of this step; only steps after an import have one."""
        if self.source is None:
            raise ValueError(f"step {self.name} has no input")
        return self.source

    @property
    def input_dir(self) -> Path:
        """Return the directory this step reads."""
        return self.input.path

    def state(self, name: str) -> Path:
        """Return a directory of this step below the job's (see ``folder``), created (0700) if missing."""
        directory = self.job_dir / folder(name, self.name, self.config.pipeline.enabled_steps, self.position)
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory

    @property
    def records(self) -> Path | None:
        """Return the directory with the records of the step that wrote the input (``file_work.py``), if there are
        any."""
        written = self.input.recorded
        return records_of(self.job_dir, written.position) if written is not None else None

    def left_over(self, work: FileWork, files: Mapping[str, Path], proof: str = "") -> list[str]:
        """Let other processes work on unfinished ``files`` (base name → path), if the job has parts; return the base
        names that are left to this process. ``proof`` is that of a ``Part``."""
        if self.divide is None or not files:
            return [*files]
        self.divide(self, work, files, proof)
        return []

    def client(self, service: Service, **more: Any) -> ServiceClient:
        """Return a client of a service, with the stop and the meter of this run; ``more`` goes to ``ServiceClient``."""
        given: dict[str, Any] = {"stop": self.stop, "meter": self.meter}
        return service.client(self.config, **(given | more))


Divide = Callable[[StepContext, FileWork, Mapping[str, Path], str], None]
"""Lets other processes work on files in parts, and waits for them. Raises the error of a part."""


class Reads(StrEnum):
    """Input of a step."""

    NOTHING = "nothing"
    """An import brings data in."""

    LATEST = "latest"
    """The data that an earlier step wrote last."""

    RESOURCES = "resources"
    """The newest data that are no tables: after ``flattening``, the NDJSON that it read."""


def latest(_config: PipelineConfig) -> Reads:
    """Return the usual input: the newest data."""
    return Reads.LATEST


def nothing(_config: PipelineConfig) -> Reads:
    """Return no input: an import reads nothing of the job."""
    return Reads.NOTHING


@dataclass(frozen=True)
class CheckContext:
    """Facts for the checks before a job starts or continues.

    ``job_dir`` is ``None`` before a job starts. ``online`` is false if no service may be asked, for example because the
    TLS settings cannot be used. ``sizes`` has, by URL, the bytes that servers report before a download, for ``space``.
    """

    config: PipelineConfig
    given: GivenInputs = GivenInputs()
    job_dir: Path | None = None
    online: bool = True
    sizes: dict[str, int] = field(default_factory=dict)

    def held(self, name: str) -> int:
        """Return the bytes in a directory of the job, unfinished files included: the step replaces them all."""
        if self.job_dir is None:
            return 0
        try:
            with os.scandir(self.job_dir / name) as entries:
                return sum(entry.stat().st_size for entry in entries if entry.is_file(follow_symlinks=False))
        except OSError:
            return 0  # not there yet, or for the step itself to report


Gate = Callable[[StepContext, StepReport], GateError | None]
"""Returns the error that stops the pipeline after a complete step, or ``None``. Every run calls it, also when the
report comes from the record because the step was complete before."""


@dataclass(frozen=True)
class Step:
    """Declaration of a step.

    ``output`` is the directory of its data; without one the next step reads the same data. ``tables``: these data are
    no NDJSON. ``folders`` are its other directories. ``takes`` has the fields of ``GivenInputs`` that the step reads,
    each with the error for a job that gets this input but has no step that reads it (``None``: no error); ``needs`` are
    the required ones. ``checks`` and ``warnings`` come before a job exists, and so do ``trials``: synthetic requests to
    services that the probe has found to be the right ones. ``space(context, read)`` returns the bytes that the step
    writes for ``read`` bytes of input.
    """

    name: str
    run: Callable[[StepContext], StepReport]
    reads: Callable[[PipelineConfig], Reads] = latest
    output: str | None = None
    tables: bool = False
    folders: tuple[str, ...] = ()
    takes: Mapping[str, Callable[[GivenInputs], InputError] | None] = field(default_factory=dict)
    needs: Callable[[GivenInputs], Collection[str]] = lambda _: ()
    services: Callable[[PipelineConfig], Sequence[Service]] = lambda _: ()
    checks: Callable[[CheckContext], Iterable[SluiceError]] = lambda _: ()
    warnings: Callable[[CheckContext], Iterable[str]] = lambda _: ()
    trials: Callable[[CheckContext], Iterable[SluiceError]] = lambda _: ()
    space: Callable[[CheckContext, int], int] = lambda _context, _read: 0
    gate: Gate | None = None

    @property
    def is_wait(self) -> bool:
        """Return whether the step parks the job until a person has looked at the data."""
        return self.name == "wait"

    @property
    def delivers(self) -> bool:
        """Return whether the step sends data to the recipient."""
        return self.name == "send"

    def writes(self, steps: Sequence[str], position: int) -> tuple[str, ...]:
        """Return the directories that the step at ``position`` (from 1) of ``steps`` makes below the job directory."""
        others = (folder(name, self.name, steps, position) for name in self.folders)
        return (*([self.output] if self.output else ()), *others)


def folder(name: str, step: str, steps: Sequence[str], position: int) -> str:
    """Return the directory ``name`` of ``step`` at ``position`` (from 1) of ``steps``. A repeated step gets
    ``<name>-<position>``."""
    return f"{name}-{position}" if step in steps[: position - 1] else name


def reconcile(context: StepContext, result: StepReport) -> None:
    """Compare the lines that this step read with those that the step before wrote. Raises ``ReconciliationError``.

    Numbers of resources cannot be compared: an import counts a Bundle as one, a direct load counts its entries.
    """
    source = context.source
    if source is None or source.lines is None or result.lines_in is None or source.lines == result.lines_in:
        return
    raise ReconciliationError(
        "lines-differ",
        f"{context.name} read {result.lines_in:,} lines, the step before wrote {source.lines:,}",
        context=f"{source.path.name}/, step {context.position}",
        hint="the files were changed in between; run the previous step again"
        + (f": {context.again(source.recorded.position)}" if source.recorded is not None else ""),
    )
