"""Credentials of the sandbox: from the environment to the configuration file and to every service."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import httpx
import pytest

from config import load_config
from deployments.sandbox.child import start_child
from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.configuration import configuration
from deployments.sandbox.host import run_sandbox
from deployments.sandbox.options import API_KEY, API_KEY_HEADER, SandboxOptions

SECRET = "k3y-of-the-sandbox"


@pytest.mark.slow
@pytest.mark.parametrize("header", [None, "X-Research-Key"])
def test_an_api_key_of_the_environment_opens_every_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, header: str | None
) -> None:
    monkeypatch.setenv(API_KEY, SECRET)
    if header is not None:
        monkeypatch.setenv(API_KEY_HEADER, header)
    with (
        start_child(SandboxOptions(state=tmp_path)) as child,
        httpx.Client(trust_env=False, timeout=60, verify=False) as client,
    ):
        for url in (f"{child.urls['fhir']}/fhir/metadata", f"{child.urls['extraction']}/fhir/metadata"):
            assert client.get(url).status_code == 401
            assert client.get(url, headers={header or "x-api-key": SECRET}).status_code == 200
        text = child.config_path.read_text(encoding="utf-8")
        effective = load_config(child.config_path, environ={API_KEY: SECRET}).config
    assert SECRET not in text
    for auth in (effective.services.extractor.auth, effective.services.send.auth):
        assert auth.api_key is not None
        assert (auth.api_key.get_secret_value(), auth.api_key_header) == (SECRET, header or "x-api-key")


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({API_KEY_HEADER: "x-key"}, f"{API_KEY_HEADER} requires {API_KEY}"),
        ({API_KEY: SECRET, API_KEY_HEADER: "x key"}, f"{API_KEY_HEADER} is not a valid HTTP header name"),
    ],
)
def test_what_cannot_be_a_header_is_named_without_the_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], environment: dict[str, str], text: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_sandbox(SandboxOptions()) == 2
    said = capsys.readouterr().err
    assert text in said
    assert SECRET not in said


def test_the_configuration_refers_to_the_variable(tmp_path: Path) -> None:
    urls = defaultdict[str, str](lambda: "http://127.0.0.1:1")
    text = configuration(
        urls, tmp_path, tmp_path / "jobs", RequiredCredentials(api_key=SECRET, api_key_header="X-${HOME}")
    )
    assert f'api_key: "${{{API_KEY}}}"' in text
    assert 'api_key_header: "X-$${HOME}"' in text
