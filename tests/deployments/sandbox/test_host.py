"""The whole sandbox as a program: what it prints, its configuration, its options, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from config import load_config
from deployments.sandbox.child import sandbox_child
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP
from tests.conftest import ROOT, wait_until

pytestmark = pytest.mark.slow
NAMES = ["fhir-server", "extraction", "pseudonymizer", "validation", "flattening"]
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start sandbox processes, which are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.run", "sandbox", *words], cwd=ROOT, env=os.environ | environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def announced(process: subprocess.Popen[str]) -> tuple[Path, dict[str, str]]:
    """Return the path of the configuration and the URLs that a sandbox prints."""
    assert process.stdout is not None
    first, *lines = [process.stdout.readline() for _ in range(6)]
    assert first.startswith("configuration: "), process.communicate()
    return Path(first.removeprefix("configuration: ").rstrip("\n")), dict(line.split() for line in lines)


def get(url: str, **options: Any) -> int:
    return httpx.get(url, trust_env=False, timeout=60, **options).status_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_all_services_on_one_port_and_ends_with_0_on_a_signal(begin: Begin, number: signal.Signals) -> None:
    process = begin()
    path, urls = announced(process)
    assert list(urls) == NAMES
    assert len({url.rpartition("/")[0] for url in urls.values()}) == 1
    assert urls["fhir-server"].startswith("http://127.0.0.1:")
    assert [get(f"{url}/") for url in urls.values()] == [200] * 5
    assert (oct(path.parent.stat().st_mode)[-3:], "not for production" in path.read_text()) == ("700", True)
    process.send_signal(number)
    assert process.wait(20) == 0
    assert not path.exists()


def test_its_configuration_is_complete(begin: Begin, tmp_path: Path) -> None:
    data = tmp_path / 'Daten ${HOME} $x "ü": #1'
    data.mkdir()
    (data / "p.ndjson").write_text('{"resourceType":"Patient","id":"p"}\n')
    path, urls = announced(begin("--data", str(data), "--state", str(tmp_path / "state")))
    assert path == tmp_path / "state" / "sandbox.yaml"
    assert str(DEMO_CRTDL) in path.read_text(encoding="utf-8")
    config = load_config(path, environ={}).config
    steps = [str(step) for step in config.pipeline.enabled_steps]
    assert steps == ["extractor", "validation", "pseudonymizer", "flattening", "wait", "send"]
    services = config.services
    found = (services.send.url, services.extractor.base_url, services.pseudonymizer.url, services.validation.url)
    assert [*found, services.flattening.service_url] == [urls[name] for name in NAMES]
    assert (services.local_import.dir, services.flattening.lookup_path) == (data, DEMO_LOOKUP)
    assert (services.pseudonymizer.anonymization_config, config.jobs_dir) == (ANONYMIZATION_RULES, path.parent / "jobs")


def test_settings_and_state_reach_the_services(begin: Begin, tmp_path: Path) -> None:
    process = begin("--set", "manners=blaze", "--set", "batchsize=2", "--state", str(tmp_path))
    _, urls = announced(process)
    with httpx.Client(base_url=f"{urls['fhir-server']}/fhir", trust_env=False, timeout=60) as client:
        lost = {"resourceType": "Observation", "id": "o", "subject": {"reference": "Patient/p"}}
        assert client.put("/Observation/o", json=lost).status_code == 409
        assert client.put("/Patient/p", json={"resourceType": "Patient", "id": "p"}).status_code == 201
    process.kill()
    process.communicate()
    _, urls = announced(begin("--state", str(tmp_path)))
    assert get(f"{urls['fhir-server']}/fhir/Patient/p") == 200


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "colour=blue"], "`colour`; the settings are manners, batchsize"),
        (["--set", "manners=rude"], "manners"),
        (["--set", "batchsize=0"], ">= 1"),
        (["--data", "no/such/directory"], "does not exist"),
        (["--data", str(DATA.parent)], "bad.ndjson:2, bad.ndjson:3"),
        (["--data", "docs"], "has no file whose name ends in .ndjson"),
        (["--state", "{place}"], "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(begin: Begin, tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "fhir").mkdir()
    (tmp_path / "fhir/resources.sqlite3").write_bytes(b"no database" * 1000)
    data = tmp_path / "data"
    data.mkdir()
    (data / "bad.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n{"canary"\n{"resourceType":"Patient"}\n')
    given = [word.format(place=tmp_path).replace(str(DATA.parent), str(data)) for word in words]
    process = begin(*given)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error[sandbox]: ")
    assert message in err
    assert ("Traceback" in err, "canary" in err) == (False, False)


def test_a_child_ends_with_its_parent_also_on_kill_9(tmp_path: Path) -> None:
    with sandbox_child(tmp_path) as path:
        url = yaml.safe_load(path.read_text())["services"]["send"]["url"]
        assert get(f"{url}/fhir/metadata") == 200
    with pytest.raises(httpx.ConnectError):
        get(url)
    program = "import sys, time, pathlib; from deployments.sandbox.child import sandbox_child\n"
    program += "with sandbox_child(pathlib.Path(sys.argv[1])): print('ready', flush=True); time.sleep(60)"
    words = [sys.executable, "-c", program, str(tmp_path)]
    parent = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    url = yaml.safe_load((tmp_path / "sandbox.yaml").read_text())["services"]["send"]["url"]
    assert get(f"{url}/fhir/metadata") == 200
    parent.kill()
    parent.communicate()
    wait_until(lambda: not answers(url), 20)


def answers(url: str) -> bool:
    try:
        return get(f"{url}/") == 200
    except httpx.TransportError:
        return False
