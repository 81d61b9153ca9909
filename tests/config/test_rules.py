"""The rules that join keys: steps, required keys, auth, named files, what is insecure."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config import AuthConfig, ConfigError
from config.models import variable
from config.steps import STEPS
from tests.config.conftest import Errors, Load, Loader, value

KEY = "pipeline.enabled_steps"
IMPORTS = {"extractor", "local_import", "http_import"}

# --- steps ---


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("", {("steps-missing", KEY)}),
        ("local_import", set()),
        ("http_import, wait, validation, wait, validation", set()),
        ("send", {("steps-import-first", f"{KEY}[0]")}),
        ("wait", {("steps-wait-first", f"{KEY}[0]")}),
        ("wait, local_import", {("steps-wait-first", f"{KEY}[0]"), ("steps-two-imports", f"{KEY}[1]")}),
        ("local_import, http_import", {("steps-two-imports", f"{KEY}[1]")}),
        ("local_import, local_import", {("steps-two-imports", f"{KEY}[1]")}),
        ("local_import, wait, wait", {("steps-wait-twice", f"{KEY}[2]")}),
        ("local_import, send, wait, send", {("steps-repeated", f"{KEY}[3]")}),
        ("csv_conversion", {("unknown-step", f"{KEY}[0]")}),
        ("local_import, Send", {("unknown-step", f"{KEY}[1]")}),
    ],
)
def test_step_rules(loader: Loader, steps: str, expected: set[tuple[str, str]]) -> None:
    text = f"pipeline: {{enabled_steps: [{steps}]}}\n"
    env = {
        "APP_SERVICES_SEND_SEND_AS": "direct_resource_load",
        "APP_SERVICES_SEND_URL": "http://h",
        "APP_SERVICES_VALIDATION_URL": "http://h",
    }
    if not expected:
        assert loader.load(text, env=env).config.pipeline.enabled_steps
    else:
        assert set(loader.errors(text, env=env)) == expected


def test_steps_must_be_given(errors: Errors) -> None:
    assert set(errors("jobs_dir: x")) == {("steps-missing", KEY)}


@pytest.mark.parametrize(
    ("step", "hint"),
    [
        ("csv_conversion", "write flattening"),
        ("parquet_conversion", "write flattening"),
        ("torch", "write extractor"),
        ("dimp", "write pseudonymizer"),
        ("flatening", "did you mean flattening?"),
        ("zzz", f"the steps are {', '.join(STEPS)}"),
    ],
)
def test_an_unknown_step_has_a_hint(errors: Errors, step: str, hint: str) -> None:
    found = errors(f"pipeline: {{enabled_steps: [local_import, {step}]}}")
    assert found["unknown-step", f"{KEY}[1]"].hint == hint


@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6))
def test_a_step_list_is_accepted_exactly_when_it_follows_the_rules(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    good = (
        [step for step in steps if step in IMPORTS] == steps[:1]
        and all(not (a == b == "wait") for a, b in pairwise(steps))
        and all(steps.count(step) == 1 for step in steps if step not in {"wait", "validation"})
    )
    found: list[str] = []
    try:
        Loader(tmp_path_factory.getbasetemp()).load(f"pipeline: {{enabled_steps: [{', '.join(steps)}]}}")
    except ConfigError as error:
        found = [one.reference for one in error.findings if one.reference.startswith("steps-")]
    assert (found == []) is good


@pytest.mark.parametrize(
    ("steps", "mode", "missing"),
    [
        ("extractor", "", ["extractor.base_url"]),
        ("local_import, pseudonymizer", "", ["pseudonymizer.url"]),
        ("local_import, validation", "", ["validation.url"]),
        ("local_import, flattening", "", ["flattening.service_url", "flattening.lookup_path"]),
        ("local_import, send", "", ["send.send_as"]),
        ("local_import, send", "direct_resource_load", ["send.url"]),
        (
            "local_import, send",
            "transfer_load",
            ["send.url", "send.transfer.project_identifier", "send.transfer.organization_identifier"],
        ),
        (
            "local_import, send",
            "s3_upload",
            [f"send.s3.{name}" for name in ("bucket", "region", "access_key_id", "secret_access_key")],
        ),
        ("local_import", "s3_upload", []),
        ("local_import, wait", "", []),
        ("http_import", "", []),
    ],
)
def test_what_an_enabled_step_needs_is_required(loader: Loader, steps: str, mode: str, missing: list[str]) -> None:
    text = f"pipeline: {{enabled_steps: [{steps}]}}\n"
    overrides = [f"services.send.send_as={mode}"] if mode else []
    if missing:
        assert set(loader.errors(text, overrides=overrides)) == {("required-key", f"services.{key}") for key in missing}
    else:
        assert loader.load(text, overrides=overrides).warnings == ()


# --- auth ---

BLOCKS = ["services.extractor.auth", "services.pseudonymizer.auth", "services.send.auth"]
BASIC = {"username": "u", "password": "hunter2"}
OAUTH = {"oauth_issuer_uri": "https://login.example/realms/x", "oauth_client_id": "c", "oauth_client_secret": "hunter2"}


def text(block: str, auth: dict[str, Any]) -> str:
    _, service, _ = block.split(".")
    return yaml.safe_dump({"pipeline": {"enabled_steps": ["local_import"]}, "services": {service: {"auth": auth}}})


@pytest.mark.parametrize("block", BLOCKS)
class TestAuth:
    @pytest.mark.parametrize(
        ("auth", "scheme"),
        [({}, "none"), (BASIC, "basic"), (OAUTH, "oauth2"), (BASIC | {"password": "", "username": ""}, "none")],
    )
    @pytest.mark.parametrize("api_key", [{}, {"api_key": "k"}, {"api_key": "k", "api_key_header": "X-Key"}])
    def test_one_scheme_or_none_with_or_without_an_api_key(
        self, load: Load, block: str, auth: dict[str, Any], scheme: str, api_key: dict[str, Any]
    ) -> None:
        found: AuthConfig = value(load(text(block, auth | api_key)).config, block)
        assert found.scheme == scheme
        assert found.api_key_header == api_key.get("api_key_header", "x-api-key")

    @pytest.mark.parametrize("basic", [BASIC, {"username": "u"}, {"password": "hunter2"}])
    @pytest.mark.parametrize("oauth", [OAUTH, {"oauth_client_id": "c"}])
    def test_both_schemes_are_rejected(self, errors: Errors, block: str, basic: Any, oauth: Any) -> None:
        assert set(errors(text(block, basic | oauth))) == {("auth-both-schemes", block)}

    @pytest.mark.parametrize("missing", [*BASIC, *OAUTH])
    def test_an_incomplete_set_is_rejected_and_names_what_lacks(self, errors: Errors, block: str, missing: str) -> None:
        fields = BASIC if missing in BASIC else OAUTH
        found = errors(text(block, {name: one for name, one in fields.items() if name != missing}))
        assert set(found) == {("auth-incomplete", block)}
        assert found["auth-incomplete", block].message.endswith(missing)
        assert variable(f"{block}.{missing}") in (found["auth-incomplete", block].hint or "")

    @pytest.mark.parametrize("header", ["Authorization", "authorization"])
    def test_authorization_may_carry_the_key_alone(self, loader: Loader, block: str, header: str) -> None:
        alone = {"api_key": "k", "api_key_header": header}
        assert value(loader.load(text(block, alone)).config, block).api_key_header == header
        for other in (BASIC, OAUTH):
            assert set(loader.errors(text(block, alone | other))) == {("auth-authorization-twice", block)}


def test_a_variable_that_no_enabled_step_needs_does_not_make_a_set_incomplete(load: Load) -> None:
    assert load(text(BLOCKS[0], {"username": "u", "password": "${PW}"})).warnings == ()


# --- files that the configuration itself reads ---


def test_an_enrichment_file_is_checked_once_and_only_where_it_is_used(loader: Loader, tmp_path: Path) -> None:
    block = (
        "services: {extractor: {base_url: 'http://h'}, crtdl_preprocessing: {enabled: %s, enrichments_path: none}}\n"
    )
    steps = "pipeline: {enabled_steps: [%s]}\n"
    found = loader.errors(steps % "extractor" + block % "true")
    assert set(found) == {("enrichment-file", "services.crtdl_preprocessing.enrichments_path")}
    assert loader.load(steps % "extractor" + block % "false").warnings == ()
    assert loader.load(steps % "local_import" + block % "true").warnings == ()


# --- parts ---


def test_parts_need_as_many_requests_in_each_step_that_has_parts(loader: Loader) -> None:
    text = "pipeline: {enabled_steps: [local_import, pseudonymizer, validation], parts: 5}\nservices: %s"
    services = "{pseudonymizer: {url: 'http://h'%s}, validation: {url: 'http://h', max_concurrent_requests: 5}}"
    found = loader.errors(text % services % "")
    requests = "too-many-parts", "services.pseudonymizer.max_concurrent_requests"
    assert set(found) == {requests}
    assert found[requests].message == "max_concurrent_requests is 4, too few for 5 parts"
    assert loader.load(text % services % ", max_concurrent_requests: 5").config.pipeline.parts == 5
    assert loader.load("pipeline: {enabled_steps: [local_import], parts: 5}").config.pipeline.dask_address is None


def test_parts_need_the_extra(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    assert loader.load("pipeline: {enabled_steps: [local_import], parts: 1}")
    found = loader.errors("pipeline: {enabled_steps: [local_import], parts: 2}")
    assert "pip install -c constraints.txt '.[dask]'" in str(found["extra-missing", "pipeline.parts"].hint)


# --- what is insecure ---


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://h.example", True),
        ("https://h.example", False),
        ("http://localhost:8080", False),
        ("http://127.0.0.1", False),
        ("http://[::1]:80", False),
    ],
)
def test_credentials_over_plain_http_to_another_machine_give_a_warning(load: Load, url: str, warned: bool) -> None:
    text = "pipeline: {enabled_steps: [extractor]}\nservices: {extractor: {auth: {api_key: x}}}"
    warnings = load(text, overrides=[f"services.extractor.base_url={url}"]).warnings
    assert [one.reference for one in warnings] == (["credentials-unencrypted"] if warned else [])


def test_unverified_tls_is_a_warning_and_s3_ignores_the_url(load: Load) -> None:
    s3 = "{bucket: bucket, region: r, access_key_id: a, secret_access_key: s}"
    send = f"{{send_as: s3_upload, url: 'http://unused.example', auth: {{api_key: k}}, s3: {s3}}}"
    rest = "pipeline: {enabled_steps: [local_import, send]}\ntls: {insecure_skip_verify: true}\n"
    loaded = load(rest + f"services: {{send: {send}}}")
    assert [(one.reference, one.level) for one in loaded.warnings] == [("tls-not-verified", "warning")]
