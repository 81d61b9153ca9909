"""Modules that a command imports when it runs a job, and their order."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.engine import uncollected
from tests.conftest import ROOT


def printed_lines(code: str, home: Path, **environ: str) -> list[str]:
    """Return the lines that a new process prints; this process has Prefect imported already."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=kept | {"PREFECT_HOME": str(home)} | environ,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.split()


@pytest.mark.e2e
def test_a_command_that_runs_a_job_imports_nothing_that_it_has_no_use_for(tmp_path: Path) -> None:
    code = (
        "import sys; import flows.pipeline;"
        "print(*sorted({'prefect.server', 'fastapi', 'sqlalchemy', 'docket', 'boto3', 'botocore', 'authlib',"
        "  'cryptography', 'playwright', 'coolname.data'} & sys.modules.keys()))"
    )
    assert printed_lines(code, tmp_path) == []


def test_garbage_is_looked_for_again_when_everything_is_imported_and_not_in_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "prefect", raising=False)
    try:
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.e2e
def test_the_server_compiles_no_checks_of_types_into_a_library(tmp_path: Path) -> None:
    code = "import key_value.aio; print(key_value.aio.strategy.name)"
    assert printed_lines(code, tmp_path) == ["O1"]
    assert printed_lines(code, tmp_path, PY_KEY_VALUE_DISABLE_BEARTYPE="true") == ["O0"]
