"""What Prefect does while it is imported is left out or quicker, and comes to the same."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.engine import light_prefect
from flows.engine.server import SPARED
from tests.conftest import ROOT


def said(code: str, home: Path, **environ: str) -> list[str]:
    """What a process of its own prints: here others have imported Prefect."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=kept | {"PREFECT_HOME": str(home)} | environ,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout.split()


@pytest.mark.e2e
def test_a_command_that_runs_a_job_imports_nothing_that_it_has_no_use_for(tmp_path: Path) -> None:
    code = (
        "import sys; from flows.engine import light_prefect as light; light.blocks_later(); import flows.pipeline;"
        "print(*[name for name in light.BLOCKS if type(sys.modules[name]) is not light._Later]);"
        "print(*sorted({'prefect.server', 'fastapi', 'sqlalchemy', 'docket', 'boto3', 'botocore', 'authlib',"
        "  'cryptography', 'playwright', 'pyarrow', 'coolname.data'} & sys.modules.keys()))"
    )
    assert said(code, tmp_path) == []


def test_garbage_is_looked_for_again_when_everything_is_imported_and_not_in_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "prefect", raising=False)
    try:
        with light_prefect.uncollected():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.e2e
def test_blocks_that_somebody_wants_after_all_are_there(tmp_path: Path) -> None:
    code = (
        "from flows.engine import light_prefect; light_prefect.blocks_later(); import prefect.main, prefect.blocks;"
        "import prefect.blocks.notifications; print(prefect.blocks.notifications.SlackWebhook.__name__);"
        "from prefect.blocks.webhook import Webhook; print(Webhook.__name__, prefect.blocks.webhook.Webhook is Webhook)"
    )
    assert said(code, tmp_path) == ["SlackWebhook", "Webhook", "True"]


@pytest.mark.e2e
def test_the_settings_are_written_as_prefect_writes_them(tmp_path: Path) -> None:
    code = (
        "from flows.engine.light_prefect import settings_in_one_pass as quick;"
        "from prefect.settings import get_current_settings;"
        "ways = [{}, {'include_aliases': True}, {'exclude_unset': True}, {'include_secrets': False}];"
        "written = lambda: [list(get_current_settings().to_environment_variables(**how).items()) for how in ways];"
        "before = written(); quick(); print(written() == before, len(before[0]) > 100);"
        "print(dict(before[0])['PREFECT_API_KEY'] != dict(before[3])['PREFECT_API_KEY'])"
    )
    assert said(code, tmp_path, PREFECT_API_KEY="k", PREFECT_CLIENT_RETRY_EXTRA_CODES="404,429") == ["True"] * 3


@pytest.mark.e2e
def test_the_server_compiles_no_checks_of_types_into_a_library(tmp_path: Path) -> None:
    code = "import key_value.aio; print(key_value.aio.strategy.name)"
    assert said(code, tmp_path) == ["O1"]
    assert said(code, tmp_path, **SPARED) == ["O0"]
