"""A step that runs again does what is missing, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers import data
from tests.peers.server import ScriptedServer
from tests.peers.steps import CASES, StepPlace

MAKERS = ["pseudonymizer", "validation", "flattening"]
"""Their output is compared with that of a job of its own; ``send`` deletes nothing of what it sent before."""


@pytest.fixture(params=list(CASES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StepPlace:
    return StepPlace(request.param, tmp_path / "job").fill()


@pytest.fixture
def service(place: StepPlace) -> Iterator[ScriptedServer]:
    with place.serve() as service:
        yield service


def moved(place: StepPlace, service: ScriptedServer, begin: int = 0) -> int:
    return sum(map(place.case.moves, service.seen[begin:]))


def test_a_second_run_moves_nothing_and_reports_the_same(place: StepPlace, service: ScriptedServer) -> None:
    first, made = place.run(service.url), place.made(service)
    begin = len(service.seen)
    second = place.run(service.url)
    assert moved(place, service, begin) == 0
    assert place.made(service) == made
    assert _figures(second) == _figures(first)


def _figures(report: Any) -> tuple[Any, ...]:
    return report.files, report.resources_in, report.resources_out, report.lines_in, report.lines_out, report.bytes_out


def _change(place: StepPlace) -> None:
    data.write(place.input / "batch-0.ndjson", data.person("batch-0-other"))


def _add(place: StepPlace) -> None:
    data.write(place.input / "later.ndjson", data.person("later-p0"))


def _remove(place: StepPlace) -> None:
    (place.input / "batch-0.ndjson").unlink()


def _pack(place: StepPlace) -> None:
    path = place.input / "batch-0.ndjson"
    data.write(path.with_name("batch-0.ndjson.zst"), *path.read_bytes().splitlines())
    path.unlink()


@pytest.mark.parametrize("place", MAKERS, indirect=True)
@pytest.mark.parametrize("change", [_change, _add, _remove, _pack])
def test_with_another_input_the_output_is_that_of_a_new_job(
    place: StepPlace, service: ScriptedServer, change: Callable[[StepPlace], None], tmp_path: Path
) -> None:
    place.run(service.url)
    change(place)
    place.run(service.url)
    other = StepPlace(place.case.step, tmp_path / "other").fill()
    change(other)
    other.run(service.url)
    assert place.made(service) == other.made(service)


@pytest.mark.parametrize("place", ["pseudonymizer", "flattening", "direct load", "transfer"], indirect=True)
def test_another_service_gets_everything(place: StepPlace, service: ScriptedServer) -> None:
    place.run(service.url)
    with place.serve() as other:
        place.run(other.url)
        assert moved(place, other) == moved(place, service)


@pytest.mark.parametrize("place", ["pseudonymizer"], indirect=True)
def test_with_other_rules_everything_is_pseudonymized_again_with_a_warning(
    place: StepPlace, service: ScriptedServer
) -> None:
    rules = place.directory / "rules.yaml"
    block = {"pseudonymizer": {"anonymization_config": str(rules)}}
    rules.write_text("fhirPathRules: [{path: Patient.id, method: cryptoHash}]\nparameters: {cryptoHashKey: k}\n")
    place.run(service.url, services=block)
    rules.write_text(rules.read_text() + "# corrected\n")  # the service answers as before
    before = moved(place, service)
    report = place.run(service.url, services=block)
    assert moved(place, service) == 2 * before
    assert any("are done again" in warning for warning in report.warnings)
