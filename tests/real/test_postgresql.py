"""A Prefect server with PostgreSQL: jobs at once, and one that waits and is released."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Commands, free_ports
from tests.peers.project import Fhir
from tests.real.conftest import Start
from tests.real.services import HOST, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@contextmanager
def prefect_server(database: str, place: Path) -> Iterator[str]:
    """Run ``prefect server start`` on this database; yield the address of its API."""
    place.mkdir()
    port = free_ports(1)
    command = (sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port))
    settings = {
        "PREFECT_HOME": str(place), "PREFECT_SERVER_DATABASE_CONNECTION_URL": database,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }  # fmt: skip
    with running("Prefect", command, place, port, **settings):
        yield f"http://{HOST}:{port}/api"


def test_jobs_complete_and_wait_on_a_server_with_postgresql(
    start: Start, tmp_path: Path, project: Path, fhir: Fhir
) -> None:
    with prefect_server(start("postgresql"), tmp_path / "server") as api:
        commands = Commands(tmp_path, api)
        commands.environment.pop("PREFECT_API_AUTH_STRING", None)
        try:
            text = (project / "config.yaml").read_text()
            (project / "at-once.yaml").write_text(text.replace("[local_import, wait, send]", "[local_import, send]"))
            children = [commands.start("pipeline", "start", "at-once.yaml", "--no-progress") for _ in range(3)]
            for child in children:
                out, err = child.communicate(timeout=300)
                assert child.returncode == 0, out + err
            ran = commands("pipeline", "start", "config.yaml", "--no-progress", timeout=300)
            assert ran.code == 0, ran.err
            went_on = commands("pipeline", "continue", "config.yaml", ran.job, "--approve", timeout=300)
            assert went_on.code == 0, went_on.err
            rows = json.loads(commands("job", "list", "config.yaml", "--json").out)
        finally:
            commands.close()
    assert [row["state"] for row in rows] == ["completed"] * 4
    assert fhir.total() == 19
