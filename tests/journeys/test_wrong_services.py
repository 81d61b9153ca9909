"""Services that changed places: ``plan`` and ``start`` find them, not one byte of the input is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import httpx
import pytest

from deployments.sandbox.fhir.app import fhir_service
from deployments.sandbox.flattening import flattening_service
from deployments.sandbox.pseudonymization.app import pseudonymization_service
from deployments.sandbox.serve import serve_in_thread
from deployments.sandbox.validation import validation_service
from flows.job.inputs import JobInputs
from flows.job.preflight import preflight
from flows.job.problem import exit_code
from tests.conftest import ROOT, Commands, is_apart
from tests.peers.project import write_input
from tests.peers.sandbox import Sandboxed
from tests.peers.server import Reply, loopback
from tests.peers.services import issue, outcome

STEPS = ("pseudonymizer", "validation", "flattening", "send")
RULES = [pytest.param(False, id="no rules"), pytest.param(True, id="rules", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the four services of the sandbox, by the step that uses them."""
    services = {
        "pseudonymizer": pseudonymization_service(),
        "validation": validation_service(),
        "flattening": flattening_service(),
        "send": fhir_service(state=tmp_path_factory.mktemp("fhir")),
    }
    with ExitStack() as stack:
        yield {name: stack.enter_context(serve_in_thread(service)).url for name, service in services.items()}


def configured(
    directory: Path, urls: dict[str, str], steps: tuple[str, ...] = ("local_import", *STEPS), **pseudonymizer: str
) -> Path:
    data = ROOT / "deployments/sandbox/data"
    services = {
        "local_import": {"dir": "data"},
        "pseudonymizer": {"url": urls["pseudonymizer"], **pseudonymizer},
        "validation": {"url": urls["validation"]},
        "flattening": {"service_url": urls["flattening"], "lookup_path": str(data / "lookup.json")},
        "send": {"send_as": "direct_resource_load", "url": urls["send"]},
    }
    config = {
        "services": services,
        "pipeline": {"enabled_steps": list(steps)},
        "retry": {"max_attempts": 1},
        "jobs_dir": "jobs",
    }
    path = directory / "config.yaml"
    path.write_text(json.dumps(config))
    return path


CRTDL = ROOT / "deployments/sandbox/data/demo.crtdl"


def test_four_services_at_their_own_places_are_believed(
    tmp_path: Path, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path / "data")
    inputs = JobInputs(config=str(configured(tmp_path, urls)), crtdl=str(CRTDL))
    assert preflight(inputs.load(), inputs) == []


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("places", [places for places in permutations(STEPS) if places != STEPS], ids=",".join)
def test_every_permutation_is_a_finding_about_the_configuration(
    places: tuple[str, ...], tmp_path: Path, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, rules: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path / "data")
    given = {"anonymization_config": str(ROOT / "deployments/sandbox/data/anonymization.yaml")} if rules else {}
    swapped = {step: urls[other] for step, other in zip(STEPS, places, strict=True)}
    inputs = JobInputs(config=str(configured(tmp_path, swapped, **given)), crtdl=str(CRTDL))
    findings = preflight(inputs.load(), inputs)
    wrong = {finding.message.partition(":")[0] for finding in findings if finding.reference == "wrong-service"}
    assert wrong == {step for step, other in zip(STEPS, places, strict=True) if step != other}
    assert exit_code(findings) == 2


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("rules", RULES)
def test_a_server_that_answers_400_to_what_it_does_not_know_is_none_of_the_services(
    step: str, tmp_path: Path, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, rules: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write_input(tmp_path / "data")
    given = {"anonymization_config": str(ROOT / "deployments/sandbox/data/anonymization.yaml")} if rules else {}
    unknown = Reply(400, b'{"resourceType":"OperationOutcome","issue":[{"severity":"error","code":"processing"}]}')
    with loopback([unknown] * 8) as peer:
        path = configured(tmp_path, urls | {step: peer.url}, **given)
        inputs = JobInputs(config=str(path), crtdl=str(CRTDL))
        findings = preflight(inputs.load(), inputs)
    # A pseudonymizer answers 400 to rules that it cannot use, too.
    reference = "rules-refused" if step == "pseudonymizer" else "wrong-service"
    assert [finding.reference for finding in findings] == [reference]
    assert findings[0].message.startswith(step)
    assert exit_code(findings) == 2


def test_plan_and_start_find_them_and_nothing_is_sent(sluice: Commands, tmp_path: Path, urls: dict[str, str]) -> None:
    write_input(tmp_path / "data")
    swapped = urls | {"send": urls["pseudonymizer"], "pseudonymizer": urls["send"]}
    config = configured(tmp_path, swapped)
    for command in (("pipeline", "plan"), ("pipeline", "start")):
        shown = sluice(*command, config, CRTDL)
        assert shown.code == 2
        assert shown.err.count("error[wrong-service]") == 2
    stored = httpx.get(f"{urls['send']}/fhir/Patient", params={"_summary": "count"}, trust_env=False, timeout=60)
    assert stored.json()["total"] == 0
    assert not (tmp_path / "jobs").exists()


@pytest.mark.slow
def test_one_503_does_not_end_a_plan_and_is_shown(sluice_process: Commands, tmp_path: Path) -> None:
    """A process: what is logged before a job exists goes to its standard error, which pytest would take."""
    write_input(tmp_path / "data")
    finding = outcome(issue(entry=0))
    with loopback([Reply(503), Reply(200, finding, {"Content-Type": "application/fhir+json"})]) as server:
        path = configured(tmp_path, dict.fromkeys(STEPS, server.url), ("local_import", "validation"))
        path.write_text(path.read_text().replace('"max_attempts": 1', '"max_attempts": 2, "initial_backoff_ms": 10'))
        shown = sluice_process("pipeline", "plan", path)
        assert (shown.code, len(server.seen)) == (0, 2), shown.err
    assert "validation: test request failed (503), attempt 1 of 2, next one in 0.0 s" in shown.err


def take_requests(url: str) -> list[tuple[str, str]]:
    """Return method and path of the requests to the service at ``url`` since the last call."""
    service = Sandboxed(url)
    seen = service.requests()
    service.forget()
    return [(one["method"], one["path"]) for one in seen]


@pytest.mark.parametrize(
    ("steps", "command"),
    [
        (
            ("local_import", "wait", "pseudonymizer", "send"),
            ("pipeline", "continue", "--approve", "--comment", "made up"),
        ),
        pytest.param(
            ("local_import", "pseudonymizer"),
            ("pipeline", "continue", "--from", "pseudonymizer", "--yes"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["continue", "from"],
)
def test_a_step_finds_them_itself_where_no_preflight_ran(
    steps: tuple[str, ...],
    command: tuple[str, ...],
    sluice: Commands,
    tmp_path: Path,
    urls: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A worker that goes on with a job makes no preflight; here a person's commands make none, either."""
    if is_apart(request):
        pytest.skip("the preflight is left out of this process alone")
    write_input(tmp_path / "data")
    job = sluice("pipeline", "start", configured(tmp_path, urls, steps)).job
    config = configured(tmp_path, urls | {"send": urls["pseudonymizer"], "pseudonymizer": urls["send"]}, steps)
    monkeypatch.setattr("flows.job.preflight.preflight", lambda *_, **__: [])
    for url in urls.values():
        take_requests(url)
    ran = sluice(*command[:2], config, job, *command[2:])
    if "--approve" in command:
        assert ran.code == 5, "the destination is another one than was shown"
        ran = sluice(*command[:2], config, job, *command[2:])
    assert (ran.code, ran.err.count("error[wrong-service]")) == (2, 1), ran.err
    assert "tested with a synthetic resource" in ran.err
    assert take_requests(urls["send"]) == [
        ("POST", "/fhir/$de-identify")
    ]  # the synthetic resource, and nothing behind it
    assert take_requests(urls["pseudonymizer"]) == []
