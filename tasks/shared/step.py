"""The protocol of a step: what it says of itself, what it gets and what it gives back. Plain values, no Prefect.

``tasks/<step>/step.py`` holds its declaration, and nothing in ``flows/`` names a step: what the flow must know of one
is asked here.

Two steps compare lines, not resources: an import counts a Bundle's line as one, a load what is in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from config import PipelineConfig, Role, has_role
from tasks.shared.errors import GateError, InputError, ReconciliationError, SluiceError, storage_errors
from tasks.shared.files.data_directory import data_files
from tasks.shared.files.inventory import Inventory, Recorded
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.client import ServiceClient
from tasks.shared.meter import Meter
from tasks.shared.report import Corrections, StepReport
from tasks.shared.service import Service
from tasks.shared.stop import Stop


@dataclass(frozen=True)
class Handle:
    """The handle of an extraction job: where to ask for its state, and its id (document 1, procedure 3)."""

    status_url: str
    job_id: str


class HandleStore:
    """Storage of the extraction handle: in memory here, in the job record in a run (``flows/job/writer.py``)."""

    def __init__(self, handle: Handle | None = None) -> None:
        self._handle = handle

    def load(self) -> Handle | None:
        """Return the stored handle."""
        return self._handle

    def save(self, handle: Handle | None) -> None:
        """Store a handle, or clear it. Durable when this returns: nothing is polled before."""
        self._handle = handle


class Parked(Exception):  # noqa: N818 - not an error
    """No decision yet at a ``wait``: the run must be parked, and ``directory`` made for corrected files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory.name)
        self.directory = directory


@dataclass(frozen=True)
class GivenInputs:
    """Inputs of a job besides its configuration: files, and the directory or URL to import."""

    crtdl: Path | None = None
    patients: Path | None = None
    input: str | None = None
    anonymization_config: Path | None = None


@dataclass(frozen=True)
class Source:
    """Data a step reads (``4-product.md`` §4), and what the step that wrote it says of it.

    ``lines`` and ``files`` are how many it says it wrote, ``recorded`` is the inventory that it left; ``None`` from a
    version that left none. ``tables`` says that the data are no NDJSON.
    """

    path: Path
    lines: int | None = None
    files: int | None = None
    tables: bool = False
    recorded: Recorded | None = None


@dataclass(frozen=True)
class StepPart:
    """The part of a step that one run of its function does, of a step that is divided (``shards.py``).

    ``names`` are the input files of the part. ``shard`` is the number of the child run that does it, from 0; ``None``
    if the job's own process does. ``requests`` is how many requests of the step's service may be under way in it.
    """

    names: frozenset[str]
    shard: int | None = None
    requests: int | None = None


def about_the_configuration(verb: str, *rest: str) -> str:
    """Return a command about a configuration whose path is not known."""
    return " ".join(["sluice", verb, "CONFIG", *rest])


def of_a_job(position: int) -> str:
    """Return the command that runs a step again, of a job whose id is not known."""
    return about_the_configuration("job run", "JOB", "--step", str(position), "--force")


@dataclass(frozen=True)
class StepContext:
    """Everything one step instance may use.

    ``given`` is what the job was given, with its effective CRTDL, which was made of ``given_crtdl``; without an
    ``input`` the configuration says what is imported. Import steps have no ``source``. ``approved`` and ``corrections``
    are for ``wait`` only: the files that a person has released, ``None`` while nobody has, and which corrected files
    can be taken. ``doubts`` are what could not be found out of the step's services before their first data. ``command``
    gives a command about the job's configuration as a person can run it anywhere on the machine: of its verb, and what
    follows the configuration; ``again`` the one that runs the step at a position of this job once more. ``part`` is
    for a divided step: ``None`` if this run does the whole step, or what its parts have left of it.
    """

    config: PipelineConfig
    job_id: str
    job_dir: Path
    position: int
    name: str
    given: GivenInputs = GivenInputs()
    given_crtdl: Path | None = None
    source: Source | None = None
    doubts: tuple[str, ...] = ()
    approved: Inventory | None = None
    corrections: Corrections = Corrections.NDJSON
    handle: HandleStore = field(default_factory=HandleStore)
    meter: Meter = field(default_factory=Meter)
    stop: Stop = field(default_factory=Stop)
    command: Callable[..., str] = about_the_configuration
    again: Callable[[int], str] = of_a_job
    part: StepPart | None = None

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

    def files(self) -> list[Path]:
        """Return the data files of the input that this run processes, in their order. Raises ``StorageError``."""
        found = data_files(self.input_dir)
        return found if self.part is None else [path for path in found if path.name in self.part.names]

    def requests_at_once(self, configured: int) -> int:
        """Return how many requests of the step's service this run may have under way, of those ``configured``."""
        return configured if self.part is None else min(configured, self.part.requests or configured)

    def state(self, name: str) -> Path:
        """Return a directory of this step below the job's, created (0700) if missing. Raises ``StorageError``.

        A step that comes again has its own, see ``folder``; and so has each shard of a divided step.
        """
        if self.part is not None and self.part.shard is not None:
            directory = shard_directory(self.job_dir, self.position, self.part.shard) / name
        else:
            directory = self.job_dir / folder(name, self.name, self.config.pipeline.enabled_steps, self.position)
        with storage_errors(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return directory

    @property
    def whole(self) -> StepContext:
        """Return the context of the step as a whole, also in a run of a part of it."""
        return replace(self, part=None)

    def shard_states(self, name: str) -> list[Path]:
        """Return the directories ``name`` that the shards of this step have left, in no order."""
        return [*(self.job_dir / ".results" / str(self.position)).glob(f"[0-9]*/{name}")]

    def remove_shard_states(self, name: str) -> None:
        """Remove them. Raises ``StorageError``."""
        for directory in self.shard_states(name):
            with storage_errors(directory):
                shutil.rmtree(directory)

    def failed_answers(self, name: str) -> FailedAnswers:
        """Return what keeps the answers to failed requests below the directory ``name`` of this step: that of all its
        shards, each with names of its own. Raises ``StorageError``."""
        shard = self.part.shard if self.part is not None else None
        return FailedAnswers(self.whole.state(name), "" if shard is None else f"{shard}-").begin()

    def client(self, service: Service, **more: Any) -> ServiceClient:
        """Return a client of a service that ends with this run and counts for it; ``more`` goes to
        ``ServiceClient``."""
        return service.client(self.config, **({"stop": self.stop, "meter": self.meter} | more))


class Reads(StrEnum):
    """Input of a step (``4-product.md`` §4, "What a step reads")."""

    NOTHING = "nothing"
    """An import brings data in."""

    LATEST = "latest"
    """The output of the nearest step before that makes data."""

    RESOURCES = "resources"
    """The same, but never tables: behind ``flattening`` the NDJSON that it read."""


def latest(_config: PipelineConfig) -> Reads:
    """Return the usual input: the newest data."""
    return Reads.LATEST


def nothing(_config: PipelineConfig) -> Reads:
    """Return no input: an import reads nothing of the job."""
    return Reads.NOTHING


@dataclass(frozen=True)
class CheckContext:
    """Facts for the checks before a job exists or continues.

    ``job_dir`` is the directory of a job that goes on: what is in it need not be imported again. ``online`` is false
    where nobody can be asked, because the TLS block is of no use. ``sizes`` are what servers said about URLs that are
    still to be fetched, in bytes: a check asks them, and ``space`` counts them.
    """

    config: PipelineConfig
    given: GivenInputs = GivenInputs()
    job_dir: Path | None = None
    online: bool = True
    sizes: dict[str, int] = field(default_factory=dict)

    def held(self, name: str) -> int:
        """Return bytes in a directory of the job; unfinished files count too, because the step replaces them."""
        if self.job_dir is None:
            return 0
        try:
            with os.scandir(self.job_dir / name) as entries:
                return sum(entry.stat().st_size for entry in entries if entry.is_file(follow_symlinks=False))
        except OSError:
            return 0  # not there yet, or for the step itself to report


def same_as_input(_context: CheckContext, read: int) -> int:
    """It writes as much as it reads."""
    return read


Gate = Callable[[StepContext, StepReport], GateError | None]
"""Why the pipeline stops behind a step that is complete, by its context and report; ``None`` when it goes on. Asked
whenever the flow comes by, also when the step answers from its stored result."""


def input_files(context: StepContext) -> list[tuple[str, int]]:
    """Return the names and stored bytes of the data files of the input. Raises ``StorageError``."""
    with storage_errors(context.input_dir):
        return [(path.name, path.stat().st_size) for path in data_files(context.input_dir)]


@dataclass(frozen=True)
class Splits:
    """The division of a step by file among child runs (``6-scale-out.md``).

    Each child runs the step's function on a part of the input (``StepContext.part``), with directories of its own
    (``StepContext.state``); it writes the step's output files where they belong. When all have ended, ``adopt`` takes
    over their states, and the step's function runs once more, on the whole input: what the ledgers say is done it only
    counts, and what is to be done last it does. It must be safe to repeat each of these.

    ``at_once`` returns how many requests of the step's service may be under way in the whole job; the children share
    them. ``files`` returns the names and bytes that are divided, and ``first`` the names of those that are processed
    before all others, by the parent. ``in_order`` has each shard get neighbours. ``prepare`` is called in the parent
    before the children run. ``adopt`` gets the context of the step and that of one child that has ended.
    """

    at_once: Callable[[PipelineConfig], int]
    adopt: Callable[[StepContext, StepContext], None] = lambda _context, _child: None
    files: Callable[[StepContext], Sequence[tuple[str, int]]] = input_files
    first: Callable[[Sequence[str]], Collection[str]] = lambda _: ()
    in_order: bool = False
    prepare: Callable[[StepContext], None] = lambda _: None


@dataclass(frozen=True)
class Step:
    """Declaration of a step.

    ``output`` is the directory of the step's data below the job's; ``None`` if the step writes no data, and the next
    step reads the same data. ``tables`` is true if these data are not NDJSON. ``folders`` are the step's other
    directories (see ``folder``).

    ``takes`` maps each field of ``GivenInputs`` that the step reads to an error for jobs that are given this field and
    have no step for it, or to ``None``. ``needs`` are the required fields. ``checks`` yields errors and ``warnings``
    yields warnings before a job exists. ``space`` returns the bytes the step writes for so many bytes read, 0 if
    unknown. ``planned`` returns the names and stored bytes of the files that an import will write, where that is known
    before there is a job. ``holds`` returns whether the step, in this job directory, has begun something outside the
    job that depends on the job's inputs. ``splits`` says how the step is divided among child runs; ``None`` if it
    is not.
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
    space: Callable[[CheckContext, int], int] = lambda _context, _read: 0
    planned: Callable[[CheckContext], Sequence[tuple[str, int]]] = lambda _: ()
    holds: Callable[[Path], bool] = lambda _: False
    gate: Gate | None = None
    splits: Splits | None = None

    @property
    def is_wait(self) -> bool:
        """Return whether the step parks the job for a person; it reads data so that she can look at them."""
        return has_role(self.name, Role.WAIT)

    @property
    def delivers(self) -> bool:
        """Return whether the step sends data to the recipient."""
        return has_role(self.name, Role.SEND)

    def writes(self, steps: Sequence[str], position: int) -> tuple[str, ...]:
        """Return every directory that the step at ``position`` (from 1) of ``steps`` makes, relative to the job's."""
        others = (folder(name, self.name, steps, position) for name in self.folders)
        return (*([self.output] if self.output else ()), *others)


def folder(name: str, step: str, steps: Sequence[str], position: int) -> str:
    """Return the directory ``name`` of ``step`` at ``position`` (from 1) of ``steps``: where it comes again it has its
    own."""
    return f"{name}-{position}" if step in steps[: position - 1] else name


def shard_directory(job_dir: Path, position: int, shard: int) -> Path:
    """Return the directory of one shard of the step at ``position``: its state, and what it leaves when it ends."""
    return job_dir / ".results" / str(position) / str(shard)


def reconcile(context: StepContext, result: StepReport) -> None:
    """Compare what this step read with what the step before says it wrote (``4-product.md`` §5, "Reconciliation").

    Raises:
        ReconciliationError: the numbers differ; says both and where.
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
