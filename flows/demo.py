"""``demo``: the embedded default. Sandbox services, made-up data, the whole pipeline, and where its files are."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from deployments.sandbox.host import SandboxOptions, start_child

from config import load_config
from flows import runner
from flows.inputs import gather
from flows.record import JobRecord, JobState
from flows.reporting import COLUMNS, row
from flows.server import EmbeddedServer, use
from flows.session import opened
from tasks.shared.errors import InputError, StorageError


def run(*, keep: bool, review: bool) -> int:
    """Run the demo; the exit code of the pipeline."""
    if review and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("review-needs-terminal", "demo --review asks on a terminal, and there is none")
    # The demo is complete in itself: made-up data must not reach a service that the user's environment names.
    for name in [key for key in os.environ if key.startswith(("APP_", "PREFECT_", "SLUICE_SANDBOX_"))]:
        del os.environ[name]
    with place(keep=keep) as directory:
        jobs_dir = directory / "jobs"
        click.echo(f"Sluice demo in {directory}: local_import, wait, send against a sandbox FHIR server")
        with EmbeddedServer(jobs_dir) as server, start_child(SandboxOptions(state=directory / "sandbox")) as sandbox:
            use(server.announced(), jobs_dir)
            server.address()
            config = str(sandbox.config_path)
            overrides = [f"jobs_dir={jobs_dir}"]
            code = runner.start(gather(config, overrides=overrides), progress=True, as_json=False, detach=False)
            os.environ["APP_JOBS_DIR"] = str(jobs_dir)
            if code != 0:
                return code
            record = only_job(config)
            if record.state is JobState.WAITING:
                decision = None if review else "approve"
                comment = "" if review else "approved by the demo"
                code = runner.go_on(config, record.id, decision=decision, comment=comment, progress=True, as_json=False)
                record = only_job(config)
            show(record)
    return code


def only_job(config: str) -> JobRecord:
    """The demo's job."""
    with opened(load_config(Path(config))) as session:
        return session.jobs()[0]


def show(record: JobRecord) -> None:
    """The table of steps and the paths of the files."""
    rows = [row(step) for step in record.steps]
    keep = [n for n in range(len(COLUMNS)) if any(cells[n] for cells in rows)]
    widths = {n: max(len(COLUMNS[n]), *(len(cells[n]) for cells in rows)) for n in keep}
    click.echo("\n" + "  ".join(f"{COLUMNS[n]:{widths[n]}}" for n in keep).rstrip())
    for cells in rows:
        click.echo("  ".join(f"{cells[n]:{widths[n]}}" for n in keep).rstrip())
    directory = Path(record.directory or "")
    click.echo(f"\nfiles of job {record.id}:")
    for file in sorted(directory.rglob("*")):
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(directory).parts):
            click.echo(f"  {file}  {file.stat().st_size:,} bytes")


@contextmanager
def place(*, keep: bool) -> Iterator[Path]:
    """A private directory for this demo. The next demo replaces it unless it is kept or still in use."""
    base = Path(tempfile.gettempdir()) / f"sluice-demo-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    facts = base.lstat()
    if base.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise StorageError(
            "demo-directory", "the demo's directory belongs to somebody else", context=str(base),
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
