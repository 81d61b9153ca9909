"""What a cohort takes, by the model of ``deployments.sizes``: what is first to give way, and what more of it does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import STEPS
from deployments.sizes import COSTS, MB, Site, evaluate, main

STEPS_OF_A_PROJECT = ("extractor", "pseudonymizer", "flattening", "send")
GB = 1000 * MB

sites = st.builds(
    Site,
    machines=st.integers(1, 9), cores=st.integers(1, 16), at_once=st.integers(1, 8), core=st.floats(0.2, 3),
    share=st.floats(1, 2000), packed=st.floats(1, 30),
    services=st.dictionaries(st.sampled_from(("extractor", "pseudonymizer", "send")), st.floats(0.1, 1000)),
)  # fmt: skip


def test_costs_are_those_of_existing_steps() -> None:
    assert COSTS.keys() < STEPS.keys()


@given(sites, st.floats(1 * MB, 1e5 * GB), st.integers(1, 50))
def test_no_thing_is_busy_for_longer_than_all_of_it_takes(site: Site, data: float, jobs: int) -> None:
    need = evaluate(data, jobs, STEPS_OF_A_PROJECT, site)
    assert all(0 <= used <= 1 + 1e-9 for _, used in need.busy)
    assert need.seconds >= sum(step.seconds for step in need.steps)
    assert 0 < need.least <= need.seconds * (1 + 1e-9)


@given(sites, st.floats(1 * MB, 1e5 * GB))
def test_twice_the_data_takes_longer_and_twice_the_disk(site: Site, data: float) -> None:
    once, twice = (evaluate(size, 4, STEPS_OF_A_PROJECT, site) for size in (data, 2 * data))
    assert once.seconds < twice.seconds < 2.001 * once.seconds
    assert twice.disk == pytest.approx(2 * once.disk)
    assert twice.memory == once.memory  # nothing grows with the data in memory


def test_where_a_service_is_the_limit_another_machine_does_not_help() -> None:
    slow = {"pseudonymizer": 1.0}
    one, three = (
        evaluate(10 * GB, 6, STEPS_OF_A_PROJECT, Site(machines=machines, services=slow)) for machines in (1, 3)
    )
    assert one.first == three.first == "service of pseudonymizer"
    assert [step.seconds for step in three.steps if step.name == "pseudonymizer"] == [10_000]
    assert three.seconds > 0.9 * one.seconds


def test_where_the_cores_are_the_limit_three_machines_take_a_third_of_the_time() -> None:
    one, three = (
        evaluate(100 * GB, 6, STEPS_OF_A_PROJECT, Site(machines=machines, share=10_000)) for machines in (1, 3)
    )
    assert one.first == three.first == "cores"
    assert three.seconds == pytest.approx(one.seconds / 3)


def test_a_slow_shared_directory_gives_way_before_the_cores() -> None:
    need = evaluate(100 * GB, 6, STEPS_OF_A_PROJECT, Site(machines=3, share=1))
    assert need.first == "shared directory"


def test_one_job_is_done_by_one_machine() -> None:
    one, three = (evaluate(10 * GB, 1, STEPS_OF_A_PROJECT, Site(machines=machines)) for machines in (1, 3))
    assert one.seconds == three.seconds


def test_the_command_names_what_gives_way_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--patients", "1_000_000", "--machines", "3", "--service", "pseudonymizer=8"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1,000,000 patients, 79.0 GB of NDJSON in 6 jobs, 2 at once on each of 3 machines\n")
    assert "first to give way: service of pseudonymizer: more of its processes" in out
    assert "no speed is given for the service of extractor, flattening, send" in out


def test_as_json_in_bytes_and_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--patients", "1000", "--kb", "100", "--steps", "local_import,wait,send", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["data"] == 100 * MB
    assert [step["name"] for step in said["steps"]] == ["local_import", "send"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--patients", "0"], "'0' is no whole number above 0"),
        (["--patients", "many"], "'many' is no whole number above 0"),
        (["--patients", "5", "--service", "local_import=3"], "'local_import' is no step with a service: extractor,"),
        (["--patients", "5", "--service", "send=fast"], "'fast' is no number above 0"),
        (["--patients", "5", "--kb", "nan"], "'nan' is no number above 0"),
        (["--patients", "5", "--steps", "extractor,nonsense"], "no such step: nonsense; there are extractor,"),
        ([], "the following arguments are required: --patients"),
    ],
)
def test_what_it_cannot_use_is_said(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
