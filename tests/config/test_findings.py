"""All findings at once, in the product's form, without a value; and no secret anywhere in a loaded configuration."""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import config
from config import ConfigError, PipelineConfig
from config.models import is_secret, keys, variable
from tests.config.conftest import MINIMAL, Errors, Load, Loader, value, written

CANARY = "canary-5f1d"


def test_every_problem_is_reported_at_once(errors: Errors) -> None:
    found = errors(
        """\
services:
  extractor:
    base_url: http://server.example/fhir
    polling_interval: 10
    max_poling_interval: PT5S
    max_polling_interval: PT1S
    auth: {username: u, oauth_issuer_uri: https://login.example, api_key: "${UNSET}", api_key_header: a b}
  torch: {base_url: x}
  send: {send_as: by_mail, batch_size: 1001}
  pseudonymizer: {bundle_split_threshold_mb: 0, url: ftp://x.example}
  validation: yes
pipeline:
  enabled_steps: [extractor, wait, wait, parquet_conversion, flatening]
retry: {max_attempts: lots}
""",
        env={"APP_RETRY_INITIAL_BACKOFF_MS": "soon"},
        overrides=["compression.level=10", "nonsense"],
    )
    assert set(found) == {
        ("url-ends-in-fhir", "services.extractor.base_url"),
        ("invalid-duration", "services.extractor.polling_interval"),
        ("unknown-key", "services.extractor.max_poling_interval"),
        ("auth-both-schemes", "services.extractor.auth"),
        ("invalid-header-name", "services.extractor.auth.api_key_header"),
        ("unset-variable", "services.extractor.auth.api_key"),
        ("unknown-key", "services.torch"),
        ("invalid-choice", "services.send.send_as"),
        ("out-of-range", "services.send.batch_size"),
        ("out-of-range", "services.pseudonymizer.bundle_split_threshold_mb"),
        ("invalid-url", "services.pseudonymizer.url"),
        ("wrong-type", "services.validation"),
        ("steps-wait-twice", "pipeline.enabled_steps[2]"),
        ("unknown-step", "pipeline.enabled_steps[3]"),
        ("unknown-step", "pipeline.enabled_steps[4]"),
        ("wrong-type", "retry.max_attempts"),
        ("wrong-type", "retry.initial_backoff_ms"),
        ("invalid-choice", "compression.level"),
        ("override-syntax", "--set, number 2"),
    }
    assert found["out-of-range", "services.send.batch_size"].message == "batch_size must be at most 1000"


def test_the_error_joins_what_it_found_errors_first(loader: Loader) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.load(MINIMAL + "retry: {max_attempts: 11}\njobsdir: x\n", env={"APP_X": "y"})
    assert str(caught.value) == (
        "error[unknown-key]: jobsdir is not a configuration key\n"
        f"  jobsdir ({loader.path}:3)\n"
        "hint: did you mean jobs_dir?\n\n"
        "error[out-of-range]: max_attempts must be at most 10\n"
        f"  retry.max_attempts ({loader.path}:2)\n\n"
        "warning[unknown-variable]: the environment variable begins with APP_ but names no configuration key\n"
        "  APP_X"
    )
    assert caught.value.exit_code == 2


def test_every_key_is_shown_with_secrets_masked(load: Load) -> None:
    loaded = load(MINIMAL + "services: {send: {auth: {username: u, password: hunter2}}}")
    shown = {key: text for key, text, _ in loaded.effective()}
    assert list(shown) == list(keys())
    assert shown["services.send.auth.password"] == "********"
    assert shown["services.send.auth.username"] == "u"
    assert shown["services.extractor.extraction_timeout"] == "PT30M"
    assert (shown["jobs_dir"], shown["services.send.auth.api_key"]) == ("./jobs", "")


@pytest.mark.parametrize("key", [key for key in keys() if is_secret(key)])
def test_a_secret_shows_nowhere_in_a_loaded_configuration(loader: Loader, key: str) -> None:
    block, _, name = key.rpartition(".")
    others = {
        "password": {"username": "u"},
        "oauth_client_secret": {"oauth_client_id": "c", "oauth_issuer_uri": "https://h.example"},
    }.get(name, {})
    env = {variable(f"{block}.{other}"): text for other, text in others.items()} | {"S": CANARY}
    loaded = loader.load(MINIMAL, env=env, overrides=[f"{key}=${{S}}"])
    assert value(loaded.config, key).get_secret_value() == CANARY
    shown = repr(loaded) + str(list(loaded.effective())) + str(loaded.config) + loaded.config.model_dump_json()
    assert CANARY not in shown + repr(loaded.config.model_dump())


@pytest.mark.parametrize("key", keys())
def test_no_error_quotes_a_value_whatever_key_it_stands_in(loader: Loader, key: str) -> None:
    for shape in ("%s", "[%s]", "{x: %s}", "'${%s'", "!%s x", "%s: %s: x", "[[%s]]", '"%s\\n"'):
        with pytest.raises(ConfigError) as caught:
            loader.load(written(key, shape.replace("%s", CANARY)) + "x: [")
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(ConfigError) as caught:
            loader.load(written(key, shape.replace("%s", CANARY)) + "unknown: 1\n")
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        assert CANARY.encode() not in pickle.dumps(caught.value.findings)


def test_a_model_refuses_unknown_keys_shows_no_values_and_is_frozen(load: Load) -> None:
    with pytest.raises(ValidationError) as caught:
        PipelineConfig.model_validate({"hunter": "hunter2", "retry": {"max_attempts": "hunter2"}})
    assert "hunter2" not in str(caught.value)
    loaded: Any = load(MINIMAL).config
    with pytest.raises(ValidationError):
        loaded.jobs_dir = Path("x")


@pytest.mark.slow
def test_loading_brings_no_heavy_library_in(tmp_path: Path) -> None:
    code = (
        "import sys; from config import load_config; load_config(sys.argv[1], environ={});"
        "heavy = {'tasks', 'flows', 'deployments', 'prefect', 'httpx', 'boto3', 'starlette', 'jsonschema', 'authlib'};"
        "heavy &= set(sys.modules);"
        "sys.exit(' '.join(sorted(heavy)) or 0)"
    )
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    command = [sys.executable, "-c", code, str(path)]
    home = Path(config.__file__).parents[1]
    done = subprocess.run(command, text=True, cwd=home, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
