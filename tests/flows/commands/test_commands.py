"""The command line as a user meets it: help at once, usage errors, completion."""

import os
import re
import subprocess
import sys

import pytest

from flows.run import COMMANDS
from flows.run import run as main
from tests.conftest import ROOT

CONFIG = "services: {local_import: {dir: data}}\npipeline: {enabled_steps: [local_import]}\n"


def run(*arguments, cwd, env=None):
    return subprocess.run(
        [sys.executable, "-m", "flows.run", *arguments],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_help_names_every_command(tmp_path):
    ran = run("--help", cwd=tmp_path)
    assert ran.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in ran.stdout


@pytest.mark.e2e
def test_help_the_config_commands_and_a_look_at_jobs_import_no_prefect(sluice, project):
    job = sluice.here("pipeline", "start", "config.yaml").job
    code = (
        "import sys; from flows.run import run; c = run(sys.argv[1:]); sys.exit(9 if 'prefect' in sys.modules else c)"
    )
    for words in (
        ["--help"], ["--version"], ["config", "check", "config.yaml"], ["config", "show", "config.yaml"],
        ["job", "list", "config.yaml"], ["pipeline", "status", "config.yaml", job],
    ):  # fmt: skip
        command = [sys.executable, "-c", code, *words]
        ran = subprocess.run(command, cwd=project, env=sluice.environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, (words, ran.stderr)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["pipeline", "start"],
        ["pipeline", "start", "--nope", "c"],
        ["pipeline", "continue", "c", "j", "--from", "1"],
    ],
)
def test_usage_errors_are_exit_code_2_and_name_the_help(tmp_path, arguments):
    ran = run(*arguments, cwd=tmp_path)
    assert ran.returncode == 2
    assert "--help' for help.\n\nError: " in ran.stderr


def test_alone_it_prints_its_help_and_its_version_is_an_option(tmp_path):
    alone = run(cwd=tmp_path)
    assert (alone.returncode, alone.stderr) == (2, run("--help", cwd=tmp_path).stdout)
    assert run("--version", cwd=tmp_path).stdout.startswith("sluice 0.")


@pytest.mark.parametrize(("words", "meant"), [
    (["job", "lst"], "'list'"), (["pipeline", "start", "--detatch", "c"], "'--detach'"),
])  # fmt: skip
def test_a_mistyped_subcommand_or_option_gets_the_nearest_one(capsys, words, meant):
    assert main(words) == 2
    assert f"Did you mean {meant}" in capsys.readouterr().err


def test_an_age_has_a_unit(capsys):
    assert main(["job", "list", "c.yaml", "--since", "5"]) == 2
    assert "without a unit" in capsys.readouterr().err


def test_config_check_examines_the_files_it_names_as_plan_does(tmp_path):
    (tmp_path / "c.yaml").write_text("""
services:
  local_import: {dir: gone}
  pseudonymizer: {url: 'http://a.example', anonymization_config: rules.yaml}
  flattening: {service_url: 'http://a.example', lookup_path: lookup.json}
pipeline: {enabled_steps: [local_import, pseudonymizer, flattening]}
""")
    ran = run("config", "check", "c.yaml", cwd=tmp_path)
    assert ran.returncode == 2
    for key in ("services.pseudonymizer.anonymization_config", "services.flattening.lookup_path"):
        assert ran.stderr.count(key) == 1
    (tmp_path / "rules.yaml").write_text("nothing: [")
    (tmp_path / "lookup.json").write_text("no JSON")
    ran = run("config", "check", "c.yaml", cwd=tmp_path)
    assert ran.returncode == 2
    assert {"error[rules-not-yaml]", "error[lookup-not-json]"} <= set(re.findall(r"error\[.*?\]", ran.stderr)), (
        ran.stderr
    )
    (tmp_path / "rules.yaml").write_text("fhirPathRules: [{path: Patient.name, method: redact}]")
    (tmp_path / "lookup.json").write_text("[]")
    ran = run("config", "check", "c.yaml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "warning[input-not-found]" in ran.stderr  # --dir may name another one
    assert ran.stdout == "1 warning. Steps: local_import, pseudonymizer, flattening\n"


def test_config_show_names_the_source_of_each_value_and_masks_secrets(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG + "retry: {max_attempts: 3}\n")
    env = {"APP_RETRY_MAX_BACKOFF_MS": "7", "APP_SERVICES_SEND_AUTH_PASSWORD": "hidden-word",
           "APP_SERVICES_SEND_AUTH_USERNAME": "u"}  # fmt: skip
    ran = run("config", "show", "c.yaml", "--set", "retry.initial_backoff_ms=5", cwd=tmp_path, env=env)
    assert ran.returncode == 0, ran.stderr
    lines = {line.split()[0]: line for line in ran.stdout.splitlines()}
    assert "c.yaml:" in lines["retry.max_attempts"]
    assert "environment APP_RETRY_MAX_BACKOFF_MS" in lines["retry.max_backoff_ms"]
    assert "--set" in lines["retry.initial_backoff_ms"]
    assert "default" in lines["compression.enabled"]
    assert "hidden-word" not in ran.stdout


@pytest.mark.e2e
def test_plan_starts_nothing(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.ndjson").write_text('{"resourceType":"Patient","id":"a"}\n')
    (tmp_path / "c.yaml").write_text(CONFIG)
    ran = run("pipeline", "plan", "c.yaml", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.yaml", "data"]


def test_a_command_ends_although_a_thread_still_waits(tmp_path):
    waiting = (
        "import threading, time; from flows.run import main\n"
        "threading.Thread(target=time.sleep, args=(60,)).start(); main(['--version'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", waiting], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30
    )
    assert (ran.returncode, ran.stdout[:8]) == (0, "sluice 0")
