"""Fixtures of the suites against real programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from tasks.shared.report import StepReport
from tests.real.components import COMPONENTS_OF, DIFFERS, FIGURE, components_of
from tests.real.hapi_server import Hapi, hapi_running
from tests.real.pathling_server import pathling_running
from tests.real.shared import for_all_workers
from tests.real.tried import Figure
from tests.real.validator_server import validator_running

Measure = Callable[[str, str, Callable[[], StepReport]], StepReport]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "real(name, …): talks to programs of other people, as get.py names them; skipped when one is not there",
    )
    config.addinivalue_line("markers", "differs(name, how): shows a known difference, for docs/tried-with.md")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Add the properties that ``python -m tests.real`` reads from the reports."""
    item.user_properties.append((COMPONENTS_OF, " ".join(sorted(components_of(item)))))
    item.user_properties += [(DIFFERS, list(mark.args)) for mark in item.iter_markers("differs")]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Measure:
    """``figure(component, what, call)`` runs a step, and keeps its figures for docs/tried-with.md."""

    def measure(component: str, what: str, call: Callable[[], StepReport]) -> StepReport:
        began = time.monotonic()
        report = call()
        seconds = round(time.monotonic() - began, 1)
        findings = report.details.get("findings")
        counts = (report.resources_in, report.resources_out, findings, report.files, report.bytes_in)
        found = Figure(what, *counts, seconds)
        request.node.user_properties.append((FIGURE, [component, asdict(found)]))
        return report

    return measure


@pytest.fixture(scope="session")
def session_directory(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a directory that all workers of this session see."""
    own = tmp_path_factory.getbasetemp()
    return own if worker_id == "master" else own.parent


@pytest.fixture(scope="session")
def hapi(session_directory: Path) -> Iterator[Hapi]:
    """HAPI's JPA server. All tests share one, and each uses ids of its own."""
    with (
        for_all_workers(session_directory / "hapi", hapi_running) as url,
        httpx.Client(trust_env=False, timeout=60) as http,
    ):
        yield Hapi(url, http)


@pytest.fixture(scope="session")
def validator(session_directory: Path) -> Iterator[str]:
    """Yield the URL of HL7's validator."""
    with for_all_workers(session_directory / "validator", validator_running) as url:
        yield url


@pytest.fixture(scope="session")
def pathling(session_directory: Path) -> Iterator[str]:
    """Yield the URL of a flattening service that is Pathling."""
    with for_all_workers(session_directory / "pathling", pathling_running) as url:
        yield url
