"""Precedence, provenance, and all findings at once (4-product §3)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from config import ConfigError, PipelineConfig, describe_keys, load_config
from config.loader import MASK
from tests.config.conftest import MINIMAL, Errors, Load, Loader

KEY, VARIABLE = "retry.max_attempts", "APP_RETRY_MAX_ATTEMPTS"


@pytest.mark.parametrize(
    ("in_file", "in_environment", "in_flags", "value", "source"),
    [
        (None, None, None, "5", "default"),
        ("2", None, None, "2", "file"),
        (None, "3", None, "3", f"environment {VARIABLE}"),
        ("2", "3", None, "3", f"environment {VARIABLE}"),
        (None, None, "4", "4", "flag"),
        ("2", None, "4", "4", "flag"),
        (None, "3", "4", "4", "flag"),
        ("2", "3", "4", "4", "flag"),
        ("2", "", None, "2", "file"),
        (None, "", None, "5", "default"),
        ("null", None, None, "5", "default"),
        ("2", "3", "null", "5", "default"),
        ("2", "3", "4 7", "7", "flag"),
    ],
)
def test_flags_win_over_environment_over_file_over_defaults(
    load: Load, in_file: Any, in_environment: Any, in_flags: Any, value: Any, source: Any
) -> None:
    loaded = load(
        MINIMAL + (f"retry: {{max_attempts: {in_file}}}\n" if in_file else ""),
        env={VARIABLE: in_environment} if in_environment is not None else {},
        overrides=[f"{KEY}={text}" for text in (in_flags or "").split()],
    )
    assert str(loaded.config.retry.max_attempts) == value
    (where,) = (entry for entry in loaded.effective() if entry.key == KEY)
    assert (where.value, where.source) == (value, f"file {loaded.path}:2" if source == "file" else source)


def test_every_key_is_effective_with_secrets_masked(load: Load) -> None:
    loaded = load(MINIMAL + "services: {send: {auth: {username: u, password: hunter2}}}")
    effective = {e.key: e for e in loaded.effective()}
    assert list(effective) == [info.key for info in describe_keys()]
    assert effective["services.send.auth.password"].value == MASK
    assert effective["services.send.auth.api_key"].value == ""
    assert effective["services.send.auth.username"].value == "u"
    assert effective["services.extractor.extraction_timeout"].value == "PT30M"
    assert effective["jobs_dir"].value == "./jobs"


def test_every_problem_of_a_file_is_reported_at_once(errors: Errors) -> None:
    found = errors(
        """\
services:
  extractor:
    base_url: http://server.example/fhir
    polling_interval: 10
    max_poling_interval: PT5S
    auth: {username: u, oauth_issuer_uri: https://login.example, api_key: "${UNSET}"}
  send: {send_as: by_mail, batch_size: 1001}
  pseudonymizer: {bundle_split_threshold_mb: 0, url: ftp://x.example}
  validation: yes
pipeline:
  enabled_steps: [extractor, wait, wait, parquet_conversion, flatening]
retry: {max_attempts: lots}
tls: {ca_cert_path: /no/such/bundle.pem}
""",
        env={"APP_RETRY_INITIAL_BACKOFF_MS": "soon"},
        overrides=["compression.level=10", "nonsense"],
    )
    assert set(found) == {
        ("url-ends-in-fhir", "services.extractor.base_url"),
        ("invalid-duration", "services.extractor.polling_interval"),
        ("unknown-key", "services.extractor.max_poling_interval"),
        ("auth-both-schemes", "services.extractor.auth"),
        ("unset-variable", "services.extractor.auth.api_key"),
        ("invalid-choice", "services.send.send_as"),
        ("out-of-range", "services.send.batch_size"),
        ("out-of-range", "services.pseudonymizer.bundle_split_threshold_mb"),
        ("invalid-url", "services.pseudonymizer.url"),
        ("wrong-type", "services.validation"),
        ("steps-wait-twice", "pipeline.enabled_steps[2]"),
        ("step-replaced", "pipeline.enabled_steps[3]"),
        ("unknown-step", "pipeline.enabled_steps[4]"),
        ("wrong-type", "retry.max_attempts"),
        ("file-not-found", "tls.ca_cert_path"),
        ("wrong-type", "retry.initial_backoff_ms"),
        ("invalid-choice", "compression.level"),
        ("override-syntax", "--set, number 2"),
    }
    assert found["unknown-key", "services.extractor.max_poling_interval"].line == 5
    assert found["unknown-key", "services.extractor.max_poling_interval"].hint == (
        "did you mean services.extractor.max_polling_interval?"
    )
    assert found["url-ends-in-fhir", "services.extractor.base_url"].hint == "write http://server.example"


def test_the_error_joins_what_it_found_in_the_products_form(loader: Loader) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.load(MINIMAL + "retry: {max_attempts: 11}\njobsdir: x\n")
    where = loader.directory / "config.yaml"
    assert str(caught.value) == (
        "error[unknown-key]: jobsdir is not a configuration key\n"
        f"  jobsdir ({where}:3)\n"
        "hint: did you mean jobs_dir?\n\n"
        "error[out-of-range]: max_attempts must be between 1 and 10\n"
        f"  retry.max_attempts ({where}:2)"
    )
    assert caught.value.exit_code == 2


def test_warnings_do_not_reject_and_come_along_with_errors(loader: Loader) -> None:
    text = MINIMAL + "tls: {insecure_skip_verify: true}\n"
    assert [w.reference for w in loader.load(text).warnings] == ["tls-not-verified"]
    with pytest.raises(ConfigError) as caught:
        loader.load(text + "x: 1\n")
    assert [f.reference for f in caught.value.findings] == ["unknown-key", "tls-not-verified"]


def test_a_bad_block_does_not_make_its_keys_look_missing(errors: Errors) -> None:
    found = errors("services: {extractor: [1], send: {auth: hunter2}}\npipeline: {enabled_steps: [extractor]}\n")
    assert set(found) == {("wrong-type", "services.extractor"), ("wrong-type", "services.send.auth")}


def test_durations_are_timedeltas_paths_are_paths_and_steps_are_names(load: Load) -> None:
    config = load(
        "services: {extractor: {base_url: http://h.example/, extraction_timeout: 1h30m}}\n"
        "pipeline: {enabled_steps: [extractor, wait]}\njobs_dir: /data/jobs\n"
    ).config
    assert config.services.extractor.extraction_timeout == timedelta(minutes=90)
    assert config.services.extractor.base_url == "http://h.example"
    assert config.jobs_dir == Path("/data/jobs")
    assert config.pipeline.enabled_steps == ("extractor", "wait")
    assert config.pipeline.requires_crtdl


def test_a_loaded_configuration_is_frozen(load: Load) -> None:
    with pytest.raises(ValidationError):
        load(MINIMAL).config.jobs_dir = Path("x")  # type: ignore[misc]


def test_a_model_refuses_unknown_keys_and_shows_no_values() -> None:
    with pytest.raises(ValidationError) as caught:
        PipelineConfig.model_validate({"hunter": "hunter2", "retry": {"max_attempts": "hunter2"}})
    assert "hunter2" not in str(caught.value)


def test_the_process_environment_is_used_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    monkeypatch.setenv(VARIABLE, "9")
    assert load_config(str(path)).config.retry.max_attempts == 9
    assert load_config(path, environ={}).config.retry.max_attempts == 5
