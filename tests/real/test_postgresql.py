"""A Prefect server with PostgreSQL: parallel jobs, and a database that crashes while a job waits."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.engine.api_address import ApiAddress
from flows.engine.server.start import EmbeddedServer
from tests.conftest import Commands, ask_prefect
from tests.peers.postgres import Postgres, postgres_running
from tests.peers.project import Fhir
from tests.real.programs import directory

pytestmark = [pytest.mark.real("postgresql"), pytest.mark.slow, pytest.mark.timeout(300)]

HOW = "python tests/real/get.py postgresql"
AT_ONCE = 4


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    given = None
    if "SLUICE_REAL_POSTGRESQL" in os.environ or shutil.which("initdb") is None:
        given = directory("SLUICE_REAL_POSTGRESQL", "bin/initdb", HOW)
    with postgres_running(given) as made:
        yield made


@pytest.fixture(scope="module")
def address(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiAddress]:
    """Yield a server on this database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", postgres.url)
        with EmbeddedServer(tmp_path_factory.mktemp("server")) as server:
            yield server.address()


@pytest.fixture
def commands(tmp_path: Path, address: ApiAddress) -> Iterator[Commands]:
    """Commands at that server, each a process of its own."""
    made = Commands(tmp_path, address.url)
    made.environment["PREFECT_API_AUTH_STRING"] = str(address.secret)
    yield made
    made.close()


def listed(commands: Commands) -> dict[str, str]:
    """State by job id."""
    return {row["id"]: row["state"] for row in json.loads(commands("job", "list", "config.yaml", "--json").out)}


def runs(address: ApiAddress) -> int:
    """Count the runs in the database."""
    return int(ask_prefect("POST", f"{address.url}/flow_runs/count", {}, secret=str(address.secret)))


def test_jobs_at_once_all_complete_and_their_runs_are_in_the_database(
    address: ApiAddress, commands: Commands, project: Path, fhir: Fhir
) -> None:
    before = runs(address)
    text = (project / "config.yaml").read_text()
    (project / "config.yaml").write_text(text.replace("[local_import, wait, send]", "[local_import, send]"))
    children = [commands.start("pipeline", "start", "config.yaml", "--no-progress") for _ in range(AT_ONCE)]
    for child in children:
        out, err = child.communicate(timeout=200)
        assert child.returncode == 0, out + err
    assert list(listed(commands).values()) == ["completed"] * AT_ONCE
    assert runs(address) == before + AT_ONCE
    assert fhir.total() == 19


def test_a_job_that_waits_is_released_after_a_crash_of_the_database(
    address: ApiAddress, commands: Commands, postgres: Postgres, project: Path, fhir: Fhir
) -> None:
    before = runs(address)
    ran = commands("pipeline", "start", "config.yaml", "--no-progress")
    assert ran.code == 0, ran.err
    postgres.stop("immediate")
    postgres.start()
    assert listed(commands) == {ran.job: "waiting"}
    went_on = commands("pipeline", "continue", "config.yaml", ran.job, "--approve")
    assert went_on.code == 0, went_on.err
    assert listed(commands) == {ran.job: "completed"}
    assert runs(address) == before + 1
    assert fhir.total() == 19
