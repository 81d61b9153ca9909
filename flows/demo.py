"""``demo``: run the whole pipeline with sandbox services and made-up data, and print where its files are."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deployments.sandbox.common.serve import SandboxStartError
from deployments.sandbox.configuration import STEPS
from deployments.sandbox.data import DEMO_CRTDL
from deployments.sandbox.host import SandboxChild, SandboxOptions, start_child
from flows.commands import continue_job, start
from flows.job.inputs import gather
from flows.job.record import JobRecord
from flows.job.session import opened
from flows.job.state import JobState
from flows.jobs_dir import load
from flows.output import on_terminal, patience, print_line
from flows.prefect.address import use
from flows.prefect.server import only_here, wait, waiting
from tasks import declared
from tasks.shared.errors import InputError, StorageError, TerminalError
from tasks.shared.report import COLUMNS
from tasks.shared.units import human_bytes

SHOWN_LINES = 2
"""Lines of each table that are printed: made-up patients, pseudonymized."""


def run(*, keep: bool, review: bool) -> int:
    """Run the demo; return the exit code of the pipeline."""
    if review and not on_terminal():
        raise InputError("review-needs-terminal", "demo --review needs a terminal")
    # The demo is complete in itself: made-up data must not reach a service that the user's environment names.
    for name in [key for key in os.environ if key.startswith(("APP_", "PREFECT_", "SLUICE_SANDBOX_"))]:
        del os.environ[name]
    with place(keep=keep) as directory:
        jobs_dir = directory / "jobs"
        steps = [name for name in STEPS if review or not declared(name).is_wait]
        print_line(f"Sluice demo in {directory}: {', '.join(steps)} against sandbox services")
        with (
            only_here(jobs_dir) as address,
            sandbox_in(directory / "sandbox") as sandbox,
        ):
            use(address)
            with patience(waiting(jobs_dir / ".prefect")):
                wait(jobs_dir / ".prefect")
            config = str(sandbox.config_path)
            os.environ["APP_JOBS_DIR"] = str(jobs_dir)
            inputs = gather(config, [str(DEMO_CRTDL)], overrides=[f"pipeline.enabled_steps=[{', '.join(steps)}]"])
            code = start.start(inputs, progress=True, as_json=False, detach=False)
            if code != 0:
                return code
            record = only_job(config)
            if record.state is JobState.WAITING:
                code = continue_job.go_on(continue_job.ContinueRequest(config, record.id))
                record = only_job(config)
            show(record)
            if record.page is not None:
                print_line(
                    f"\nThe release report lists what was sent and what still identifies patients:\n  {record.page}"
                )
    return code


@contextmanager
def sandbox_in(state: Path) -> Iterator[SandboxChild]:
    """Start the sandbox services as a child process.

    Raises:
        TerminalError: a service did not start.
    """
    try:
        with patience("starting the sandbox services"):
            child = start_child(SandboxOptions(state=state))
    except SandboxStartError as error:
        raise TerminalError("sandbox", f"the sandbox did not start: {error}") from None
    try:
        yield child
    finally:
        with patience("stopping the sandbox services"):
            child.stop()


def only_job(config: str) -> JobRecord:
    """Return the demo's job."""
    with opened(load(config)) as session:
        return session.jobs()[0]


def show(record: JobRecord) -> None:
    """Print the table of steps and the paths of the files."""
    rows = [list(step.cells().values()) for step in record.steps]
    keep = [n for n in range(len(COLUMNS)) if any(cells[n] for cells in rows)]
    widths = {n: max(len(COLUMNS[n]), *(len(cells[n]) for cells in rows)) for n in keep}
    print_line("\n" + "  ".join(f"{COLUMNS[n]:{widths[n]}}" for n in keep).rstrip())
    for cells in rows:
        print_line("  ".join(f"{cells[n]:{widths[n]}}" for n in keep).rstrip())
    directory = Path(record.directory or "")
    for table in sorted(directory.glob("csv/*.csv")):
        with table.open(encoding="utf-8") as lines:
            first = [line.rstrip("\n") for line in itertools.islice(lines, SHOWN_LINES)]
        print_line("\n" + "\n".join([f"{table.name}:", *(f"  {line}" for line in first)]))
    print_line(f"\nfiles of job {record.id}, in {directory}:")
    for file in sorted(directory.rglob("*")):
        name = file.relative_to(directory)
        if file.is_file() and not any(part.startswith(".") for part in name.parts):
            print_line(f"  {name}  {human_bytes(file.stat().st_size)}")


@contextmanager
def place(*, keep: bool) -> Iterator[Path]:
    """Provide a private directory for this demo. The next demo replaces it unless it is kept or still in use."""
    base = Path(tempfile.gettempdir()) / f"sluice-demo-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    facts = base.lstat()
    if base.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise StorageError(
            "demo-directory", "the demo's directory belongs to another user", context=str(base),
            hint="set TMPDIR to a directory of your own",
        )  # fmt: skip
    with (base / ".lock").open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            in_use = False
        except BlockingIOError:
            in_use = True
        if keep or in_use:
            yield Path(tempfile.mkdtemp(prefix="demo-", dir=base))
            return
        directory = base / "last"
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(mode=0o700)
        yield directory
