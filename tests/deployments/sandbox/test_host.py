"""The sandbox as a command and as a child process."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from deployments.sandbox.child import start_child
from deployments.sandbox.common.serve import GRACE
from deployments.sandbox.data import DATA
from deployments.sandbox.fhir.app import FhirOptions
from deployments.sandbox.options import PASSWORD, TOKEN, USERNAME, OptionError, SandboxOptions, read_settings
from tests.conftest import wait_until
from tests.deployments.sandbox.conftest import SandboxClient

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "deployments.sandbox"]


@pytest.fixture
def run() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes started by a test; those still running at its end are killed."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def begin(started: list[subprocess.Popen[str]], *words: str, **environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    return process


def announced(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("configuration: "), process.communicate()
    return Path(line.removeprefix("configuration: ").rstrip("\n"))


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def ends_within_two_seconds(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Return True if a sandbox ends with 0 after this signal within the allowed time on an idle machine.

    The time is the sandbox's own waiting, at most ``GRACE``, plus its processor time. Waiting for a processor does not
    count.
    """
    used = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    process.send_signal(number)
    assert process.wait(60) == 0
    assert time.monotonic() - started < 20  # that it waits for something else would be for ever
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return GRACE + whole - used / os.sysconf("SC_CLK_TCK") < 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_a_complete_configuration_and_ends_with_0_on_a_signal(
    run: list[subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = begin(run)
    path = announced(process)
    text = path.read_text(encoding="utf-8")
    configuration = yaml.safe_load(text)
    assert configuration["pipeline"]["enabled_steps"] == [
        "extractor", "validation", "pseudonymizer", "flattening", "wait", "send",
    ]  # fmt: skip
    assert configuration["services"]["local_import"]["dir"] == str(DATA)
    send = configuration["services"]["send"]
    assert send["send_as"] == "direct_resource_load"
    assert send["url"].startswith("http://127.0.0.1:")
    assert configuration["jobs_dir"]
    assert "not for production" in text
    assert httpx.get(send["url"] + "/fhir/metadata", trust_env=False, timeout=60).status_code == 200
    assert ends_within_two_seconds(process, number)
    assert not path.exists()


@pytest.mark.slow
def test_options_reach_the_services(run: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    data, state, ready = tmp_path / "daten ${X} ü", tmp_path / "state", tmp_path / "ready.json"
    data.mkdir()
    words = ["--data", str(data), "--state", str(state), "--ready-file", str(ready), "--set", "manners=blaze"]
    process = begin(run, *words, "--set", "max_body=2000")
    path = announced(process)
    told = json.loads(ready.read_text())
    assert told == {"configuration": str(path), "urls": told["urls"], "pid": process.pid}
    assert path.parent == state
    # In the pipeline's configuration $${ stands for a literal ${ (4-product.md §3).
    assert yaml.safe_load(path.read_text())["services"]["local_import"]["dir"].replace("$${", "${") == str(data)
    with SandboxClient(told["urls"]["fhir"]) as client:
        broken = '{"resourceType":"Observation","id":"o","subject":{"reference":"Patient/p"}}'
        assert client.bundle(("PUT", "Observation/o", broken)).status_code == 409
        assert client.post("/fhir", content=b"x" * 3000).status_code == 413
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert path.exists()


@pytest.mark.slow
def test_a_signal_ends_it_within_2_seconds_although_a_client_is_held(run: list[subprocess.Popen[str]]) -> None:
    process = begin(run)
    url = yaml.safe_load(announced(process).read_text())["services"]["send"]["url"]
    with SandboxClient(url) as client:
        client.faults({"action": "stall"})
        with client.stream("GET", "/fhir/metadata") as response:
            assert response.status_code == 200
            assert ends_within_two_seconds(process, signal.SIGTERM)


@pytest.mark.slow
def test_credentials_come_from_the_environment_and_are_nowhere_written(run: list[subprocess.Popen[str]]) -> None:
    secret = "s3cr3t-canary"
    for environment in ({USERNAME: "user", PASSWORD: secret}, {TOKEN: secret}):
        process = begin(run, **environment)
        path = announced(process)
        text = path.read_text()
        assert secret not in text
        assert secret.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        auth = yaml.safe_load(text)["services"]["send"]["auth"]
        assert any("${SLUICE_SANDBOX_" in value for value in auth.values())
        url = yaml.safe_load(text)["services"]["send"]["url"] + "/fhir/metadata"
        assert httpx.get(url, trust_env=False, timeout=60).status_code == 401
        header = {"Authorization": f"Bearer {secret}"} if TOKEN in environment else {}
        basic = ("user", secret) if USERNAME in environment else None
        assert httpx.get(url, trust_env=False, timeout=60, auth=basic, headers=header).status_code == 200
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "colour=blue"], "known are"),
        (["--set", "manners=rude"], "'hapi' or 'blaze'"),
        (["--set", "references=maybe"], "valid boolean"),
        (["--set", "max_body=0"], "greater than or equal to 1"),
        (["--set", "nothing"], "NAME=VALUE"),
        (["--data", "no/such/directory"], "does not exist"),
    ],
)
def test_options_that_cannot_be_used_are_exit_code_2(
    run: list[subprocess.Popen[str]], words: list[str], message: str
) -> None:
    out, err = begin(run, *words).communicate(timeout=60)
    assert (run[0].returncode, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_what_cannot_be_started_is_exit_code_1(run: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    (tmp_path / "fhir").mkdir()
    (tmp_path / "fhir/fhir.sqlite3").write_bytes(b"no database" * 1000)
    nowhere = tmp_path / "no" / "ready.json"
    for words in (["--port", "70000"], ["--ready-file", str(nowhere)], ["--state", str(tmp_path)]):
        process = begin(run, *words)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert err.startswith("error[sandbox]: ")
        assert "Traceback" not in err


@pytest.mark.slow
def test_a_child_is_ready_when_it_is_there_and_gone_when_the_block_ends(tmp_path: Path) -> None:
    with start_child(SandboxOptions(state=tmp_path, settings={"manners": "blaze"})) as child:
        assert set(child.urls) == {"fhir", "extraction", "pseudonymizer", "validation", "flattening"}
        assert child.config_path == tmp_path / "sandbox.yaml"
        assert httpx.get(child.urls["fhir"] + "/fhir/metadata", trust_env=False, timeout=60).status_code == 200
    assert gone(child.pid)
    child.stop()


@pytest.mark.slow
def test_the_child_ends_with_its_parent_also_on_kill_9(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from deployments.sandbox.child import start_child\n"
        "from deployments.sandbox.options import SandboxOptions\n"
        "child = start_child(SandboxOptions())\n"
        "print(child.pid, child.config_path, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, _, path = parent.stdout.readline().strip().partition(" ")
    assert Path(path).exists()
    parent.kill()
    parent.communicate()
    wait_until(lambda: gone(int(pid)))
    assert not Path(path).exists()


def test_settings_are_read_or_named() -> None:
    settings = read_settings({"manners": "blaze", "references": "off", "numeric_ids": "true", "max_body": "10"})
    assert settings.fhir == FhirOptions(manners="blaze", references=False, numeric_ids=True, max_body=10)
    with pytest.raises(OptionError, match="numeric_ids"):
        read_settings({"numeric": "1"})
