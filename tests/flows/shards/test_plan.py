"""The division of a job as ``pipeline plan`` shows it (6-scale-out.md, *Configuration*)."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.engine.api import PrefectApi
from tests.conftest import Commands, address_of
from tests.flows.shards.site import configure, counting

MB = 1_000_000


def write_sizes(directory: Path, **sizes: int) -> None:
    """Make files of these sizes without content; the plan does not read them."""
    directory.mkdir()
    for name, size in sizes.items():
        with (directory / f"{name}.ndjson").open("wb") as file:
            file.write(b"{}\n")
            file.truncate(size)


def plan(sluice: Commands, *words: str) -> tuple[list[str], str]:
    """Return the lines of the plan, and what it warns of."""
    with counting() as service:
        configure(sluice, service)
        ran = sluice("pipeline", "plan", "config.yaml", *words)
    assert ran.code == 0, ran.err
    return ran.out.splitlines(), ran.err


def test_it_shows_the_shards_and_the_requests_of_each(sluice: Commands) -> None:
    write_sizes(sluice.cwd / "in", core=10, a=4000 * MB, b=4000 * MB, c=4000 * MB)
    lines, err = plan(sluice, "--shards", "3")
    assert "step 2 pseudonymizer: 3 shards of " in lines[0]
    assert lines[0].endswith("3 at once with 1 or 2 requests each")
    assert "warning" not in err
    assert plan(sluice)[0] == ["All checks passed. The job can start."]


def test_it_warns_of_small_shards_and_of_a_file_that_is_much_larger(sluice: Commands) -> None:
    write_sizes(sluice.cwd / "in", a=90_000 * MB, b=10 * MB, c=10 * MB)
    lines, err = plan(sluice, "--shards", "3")
    assert "a shard would hold less than 100 MB" in err
    assert "and is not cut: its shard takes longest" in err
    assert lines[-1] == "2 warnings. The job can start."


@pytest.mark.parametrize("wrong", ["0", "257", "many", "-1"])
def test_a_number_of_shards_that_is_none_is_a_usage_error(sluice: Commands, wrong: str) -> None:
    (sluice.cwd / "config.yaml").write_text("{}")
    ran = sluice("pipeline", "plan", "config.yaml", "--shards", wrong)
    assert ran.code == 2
    assert "error[usage]" in ran.err
    assert "--shards" in ran.err


@pytest.mark.parametrize("name", ["pipeline/nowhere", "another-flow/another-flow"])
def test_a_deployment_that_is_not_there_is_an_error(sluice: Commands, prefect_api: str, name: str) -> None:
    with PrefectApi(address_of(prefect_api)) as api:
        flow = api.created("/flows/", {"name": "another-flow"})
        api.created("/deployments/", {"name": "another-flow", "flow_id": flow})
    write_sizes(sluice.cwd / "in", a=10, b=10)
    with counting() as service:
        configure(sluice, service, shards=2, shard_deployment=name)
        ran = sluice("pipeline", "plan", "config.yaml")
    assert ran.code == 2
    assert "error[shard-deployment]" in ran.err


def test_it_warns_of_a_pool_without_a_worker(sluice: Commands, prefect_api: str) -> None:
    from tests.e2e.machines import deployment

    write_sizes(sluice.cwd / "in", a=9_000 * MB, b=9_000 * MB)
    deployment(prefect_api, "nobody-works-here", sluice.cwd)
    with counting() as service:
        configure(sluice, service, shards=2, shard_deployment="pipeline/nobody-works-here")
        ran = sluice("pipeline", "plan", "config.yaml")
    assert ran.code == 0, ran.err
    assert "no worker of the work pool nobody-works-here is online" in ran.err
