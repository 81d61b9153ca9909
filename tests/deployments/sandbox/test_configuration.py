"""The pipeline accepts the configuration file of a running sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from config import load_config
from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.configuration import configuration
from deployments.sandbox.data import ANONYMIZATION_RULES, DEMO_CRTDL, DEMO_LOOKUP
from deployments.sandbox.options import PASSWORD, TOKEN, USERNAME

NAMES = ("fhir", "extraction", "pseudonymizer", "validation", "flattening")
URLS = {name: f"http://127.0.0.1:{40123 + number}" for number, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("gate", "environment"),
    [
        (RequiredCredentials(), {}),
        (RequiredCredentials(username="user", password="p4ss"), {USERNAME: "user", PASSWORD: "p4ss"}),
        (RequiredCredentials(token="t0ken"), {TOKEN: "t0ken"}),
    ],
)
def test_it_is_complete_whatever_the_paths_and_credentials(
    tmp_path: Path, gate: RequiredCredentials, environment: dict[str, str]
) -> None:
    data, jobs = tmp_path / 'Daten ${HOME} $x "ü": #1', tmp_path / "jobs"
    file = tmp_path / "sandbox.yaml"
    file.write_text(configuration(URLS, data, jobs, gate), encoding="utf-8")
    effective = load_config(file, environ=environment).config
    steps = [str(step) for step in effective.pipeline.enabled_steps]
    assert steps == ["extractor", "validation", "pseudonymizer", "flattening", "wait", "send"]
    assert effective.services.local_import.dir == data
    assert effective.services.extractor.base_url == URLS["extraction"]
    assert str(DEMO_CRTDL) in file.read_text(encoding="utf-8")
    assert effective.services.send.url == URLS["fhir"]
    assert effective.services.validation.url == URLS["validation"]
    assert effective.services.pseudonymizer.url == URLS["pseudonymizer"]
    assert effective.services.pseudonymizer.anonymization_config == ANONYMIZATION_RULES
    assert effective.services.flattening.service_url == URLS["flattening"]
    assert effective.services.flattening.lookup_path == DEMO_LOOKUP
    assert effective.services.send.batch_size == 100
    assert effective.jobs_dir == jobs
    assert "p4ss" not in file.read_text(encoding="utf-8")
    auth = effective.services.send.auth
    if gate.token:
        assert auth.api_key is not None
        assert (auth.api_key_header, auth.api_key.get_secret_value()) == ("Authorization", "Bearer t0ken")
    elif gate.username:
        assert auth.password is not None
        assert (auth.username, auth.password.get_secret_value()) == ("user", "p4ss")
