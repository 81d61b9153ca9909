"""``demo``: run the whole pipeline with sandbox services and synthetic data, and print where its files are."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from deployments.sandbox.child import sandbox_child
from deployments.sandbox.data import DEMO_CRTDL, STEPS
from flows.commands import review
from flows.job.find import opened
from flows.job.record import JobRecord
from flows.job.state import JobState
from flows.jobs_dir import check_jobs_dir, load
from flows.output import on_terminal, patience, print_line
from flows.prefect import server
from flows.run import run as command
from tasks.shared.errors import InputError

TABLE = "Patient.csv"
SHOWN_LINES = 3
"""Lines of the table that are printed: synthetic patients, pseudonymized."""
WIDTH = 96


def run(*, keep: bool, reviewed: bool) -> int:
    """Run the demo; return the exit code of the pipeline."""
    if reviewed and not on_terminal():
        raise InputError("review-needs-terminal", "demo --review needs a terminal")
    # Synthetic data must not reach a service that the user's environment names.
    for name in [key for key in os.environ if key.startswith(("APP_", "PREFECT_", "SLUICE_SANDBOX_"))]:
        del os.environ[name]
    directory = _directory(keep=keep)
    steps = [name for name in STEPS if reviewed or name != "wait"]
    print_line(f"Sluice demo: {', '.join(steps)}, against sandbox services")
    jobs_dir = directory / "jobs"
    os.environ["APP_JOBS_DIR"] = str(jobs_dir)
    server.begin(server.home_of(jobs_dir))  # it gets ready while the services start
    try:
        with ExitStack() as services:
            with patience("starting the sandbox services"):
                config = str(services.enter_context(sandbox_child(directory / "sandbox")))
            enabled = f"pipeline.enabled_steps={','.join(steps)}"
            code = command(["pipeline", "start", config, str(DEMO_CRTDL), "--set", enabled])
            if code == 0 and _job(config).state is JobState.WAITING:
                code = _decided(config)
            if code == 0:
                _show(_job(config))
            return code
    finally:
        server.stop(server.home_of(jobs_dir))


def _directory(*, keep: bool) -> Path:
    """Return a private directory for this demo. Without ``keep``, the next demo replaces it."""
    base = Path(tempfile.gettempdir()) / f"sluice-demo-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    check_jobs_dir(base)
    if keep:
        return Path(tempfile.mkdtemp(prefix="kept-", dir=base))
    shutil.rmtree(base / "last", ignore_errors=True)
    (base / "last").mkdir(mode=0o700)
    return base / "last"


def _decided(config: str) -> int:
    """Ask for the decision and continue the job; return the exit code. ``pipeline start`` printed what to decide."""
    answer = review.prompt()
    if answer is None:
        return 0
    given = [f"--by={answer.by}", f"--comment={answer.comment}"]
    return command(["pipeline", "continue", config, "latest", "--approve", *given])


def _job(config: str) -> JobRecord:
    with opened(load(config)) as session:
        return session.jobs()[0]


def _show(record: JobRecord) -> None:
    """Print the first rows of a table, and what to do next."""
    directory = Path(record.directory or "")
    with (directory / "csv" / TABLE).open(encoding="utf-8") as lines:
        first = [line.rstrip("\n")[:WIDTH] for line in itertools.islice(lines, SHOWN_LINES)]
    print_line("\n" + "\n".join([f"csv/{TABLE}:", *(f"  {line}" for line in first)]))
    print_line(f"""
next:
  read the release report:       {record.page}
  look at the files of the job:  {directory}
  do it yourself:                docs/tutorial.md""")
