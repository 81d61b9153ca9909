"""Rules that join keys: steps, required keys, variables of steps that are not enabled, polling, security."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from config import PipelineConfig
from config.rules import RuleFacts, check
from config.steps import STEPS as CATALOGUE
from tests.config.conftest import MINIMAL, Errors, Load, Loader

STEPS = "pipeline.enabled_steps"


IMPORTS = {"extractor", "local_import", "http_import"}


def step_errors(*steps: str) -> set[str]:
    facts = RuleFacts(PipelineConfig(), frozenset(), frozenset(), steps)
    return {f.reference for f in check(facts) if f.reference.startswith("steps-") and f.level == "error"}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("", {("steps-missing", STEPS)}),
        ("local_import", set()),
        ("http_import, wait, validation, wait, validation", set()),
        ("send", {("steps-import-first", f"{STEPS}[0]")}),
        ("wait", {("steps-import-first", f"{STEPS}[0]"), ("steps-wait-first", f"{STEPS}[0]")}),
        ("wait, local_import", {("steps-wait-first", f"{STEPS}[0]")}),
        ("local_import, http_import", {("steps-two-imports", f"{STEPS}[1]")}),
        ("local_import, local_import", {("steps-two-imports", f"{STEPS}[1]")}),
        ("send, local_import", {("steps-import-first", f"{STEPS}[0]")}),
        ("local_import, wait, wait", {("steps-wait-twice", f"{STEPS}[2]")}),
        ("local_import, send, wait, send", {("steps-repeated", f"{STEPS}[3]")}),
        ("csv_conversion", {("step-replaced", f"{STEPS}[0]")}),
        ("local_import, parquet_conversion", {("step-replaced", f"{STEPS}[1]")}),
        ("local_import, Send", {("unknown-step", f"{STEPS}[1]")}),
    ],
)
def test_step_rules(loader: Loader, steps: Any, expected: Any) -> None:
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


@pytest.mark.parametrize(
    ("steps", "at"),
    [
        ("extractor, flattening, validation, pseudonymizer", [2, 3]),
        ("extractor, validation, pseudonymizer, flattening, wait, send", []),
        ("extractor, validation, flattening, wait, validation, send", [4]),
    ],
)
def test_a_step_that_cannot_read_the_tables_before_it_is_warned_of(steps: str, at: list[int]) -> None:
    facts = RuleFacts(PipelineConfig(), frozenset(), frozenset(), tuple(steps.split(", ")))
    found = {(f.key, f.level) for f in check(facts) if f.reference == "steps-after-flattening"}
    assert found == {(f"{STEPS}[{index}]", "warning") for index in at}


@pytest.mark.parametrize(
    ("steps", "mode", "warned"),
    [
        ("local_import, flattening, wait, send", "direct_resource_load", True),
        ("local_import, flattening, wait, send", "s3_upload", False),
        ("local_import, flattening, wait, send", "transfer_load", False),
        ("local_import, flattening, wait", "direct_resource_load", False),
        ("local_import, wait, flattening, send", "direct_resource_load", False),
        ("local_import, wait, send, flattening", "direct_resource_load", False),
    ],
)
def test_a_wait_in_front_of_a_direct_load_that_sends_no_tables_is_warned_of(
    steps: str, mode: str, warned: bool
) -> None:
    config = PipelineConfig.model_validate({"services": {"send": {"send_as": mode}}})
    facts = RuleFacts(config, frozenset(), frozenset(), tuple(steps.split(", ")))
    found = [(f.key, f.level) for f in check(facts) if f.reference == "tables-not-sent"]
    assert found == ([(STEPS, "warning")] if warned else [])


def test_steps_must_be_given(errors: Errors) -> None:
    assert set(errors("jobs_dir: x")) == {("steps-missing", STEPS)}


def test_placeholder_steps_point_to_flattening(errors: Errors) -> None:
    finding = errors("pipeline: {enabled_steps: [csv_conversion]}")["step-replaced", f"{STEPS}[0]"]
    assert "flattening" in (finding.hint or "")


@given(st.lists(st.sampled_from(sorted(CATALOGUE)), min_size=1, max_size=6))
def test_a_step_list_is_accepted_exactly_when_it_follows_the_rules(steps: list[str]) -> None:
    imports = [step for step in steps if step in IMPORTS]
    repeatable = {"wait", "validation"}
    good = (
        len(imports) == 1
        and steps[0] in IMPORTS
        and all(not (a == b == "wait") for a, b in pairwise(steps))
        and all(steps.count(step) == 1 for step in steps if step not in repeatable)
    )
    assert (step_errors(*steps) == set()) is good


@pytest.mark.parametrize(
    ("steps", "settings", "missing"),
    [
        ("extractor", [], ["services.extractor.base_url"]),
        ("local_import, pseudonymizer", [], ["services.pseudonymizer.url"]),
        ("local_import, validation", [], ["services.validation.url"]),
        ("local_import, flattening", [], ["services.flattening.service_url", "services.flattening.lookup_path"]),
        ("local_import, send", [], ["services.send.send_as"]),
        ("local_import, send", ["direct_resource_load"], ["services.send.url"]),
        (
            "local_import, send",
            ["transfer_load"],
            [
                "services.send.url",
                "services.send.transfer.project_identifier",
                "services.send.transfer.organization_identifier",
            ],
        ),
        (
            "local_import, send",
            ["s3_upload"],
            [f"services.send.s3.{n}" for n in ("bucket", "region", "access_key_id", "secret_access_key")],
        ),
        ("local_import", ["s3_upload"], []),
        ("local_import, wait", [], []),
        ("http_import", [], []),
    ],
)
def test_what_an_enabled_step_needs_is_required(loader: Loader, steps: Any, settings: Any, missing: Any) -> None:
    text = f"pipeline: {{enabled_steps: [{steps}]}}\n"
    overrides = [f"services.send.send_as={mode}" for mode in settings]
    if missing:
        assert set(loader.errors(text, overrides=overrides)) == {("required-key", key) for key in missing}
    else:
        assert loader.load(text, overrides=overrides).warnings == ()


# --- variables and steps ---

WITH_VARIABLE = """
services: {send: {send_as: direct_resource_load, url: "${URL}", auth: {username: u, password: "${PW}"}}}
pipeline: {enabled_steps: [local_import%s]}
"""


def test_an_unset_variable_of_an_enabled_step_is_an_error_with_variable_and_key(errors: Errors) -> None:
    found = errors(WITH_VARIABLE % ", send")
    assert set(found) == {("unset-variable", "services.send.url"), ("unset-variable", "services.send.auth.password")}
    assert "PW" in found["unset-variable", "services.send.auth.password"].message


def test_an_unset_variable_of_a_step_that_is_not_enabled_does_not_matter(load: Load) -> None:
    loaded = load(WITH_VARIABLE % "")
    assert loaded.config.services.send.url is None
    source = next(e.source for e in loaded.effective() if e.key == "services.send.url")
    assert "URL is not set" in source


def test_the_steps_may_come_from_a_variable(load: Load, errors: Errors) -> None:
    text = "pipeline: {enabled_steps: '${STEPS}'}"
    assert load(text, env={"STEPS": "local_import,wait"}).config.pipeline.enabled_steps == ("local_import", "wait")
    assert set(errors(text)) == {("unset-variable", STEPS)}


def test_an_unset_variable_outside_the_services_is_always_an_error(errors: Errors) -> None:
    assert set(errors(MINIMAL + "jobs_dir: ${JOBS}")) == {("unset-variable", "jobs_dir")}


def test_a_variable_fills_every_kind_of_key(load: Load) -> None:
    config = load(
        "pipeline: {enabled_steps: [local_import, '${STEP}']}\n"
        "retry: {max_attempts: '${N}'}\ncompression: {enabled: '${B}', level: '${L}'}\n"
        "services: {extractor: {request_timeout: 'PT${S}S'}}\njobs_dir: ${HOME}/$${x}/$y\n",
        env={"STEP": "wait", "N": "3", "B": "no", "L": "best", "S": "7", "HOME": "/h"},
    ).config
    assert config.pipeline.enabled_steps == ("local_import", "wait")
    assert (config.retry.max_attempts, config.compression.enabled, config.compression.level) == (3, False, "best")
    assert config.services.extractor.request_timeout.seconds == 7
    assert str(config.jobs_dir) == "/h/${x}/$y"


def test_an_overridden_variable_need_not_be_set(load: Load) -> None:
    assert str(load(MINIMAL + "jobs_dir: ${JOBS}", overrides=["jobs_dir=x"]).config.jobs_dir) == "x"


def test_a_malformed_reference_is_an_error_that_quotes_nothing(errors: Errors) -> None:
    found = errors(MINIMAL + "services: {send: {auth: {username: u, password: 'hunter2${oops'}}}")
    assert set(found) == {("variable-syntax", "services.send.auth.password")}
    assert "oops" not in str(found)


# --- polling ---


@pytest.mark.parametrize(
    ("first", "cap", "bad"),
    [
        ("PT5S", "PT5S", None),
        ("PT10S", "PT5S", ("polling-order", "services.extractor.max_polling_interval")),
        ("PT1M", None, ("polling-order", "services.extractor.max_polling_interval")),
        ("PT0.999S", None, ("out-of-range", "services.extractor.polling_interval")),
        ("PT1S", None, None),
    ],
)
def test_polling_intervals(loader: Loader, first: Any, cap: Any, bad: Any) -> None:
    overrides = [f"services.extractor.polling_interval={first}"]
    overrides += [f"services.extractor.max_polling_interval={cap}"] if cap else []
    if bad is None:
        assert loader.load(MINIMAL, overrides=overrides)
    else:
        assert set(loader.errors(MINIMAL, overrides=overrides)) == {bad}


# --- security ---


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
def test_credentials_over_plain_http_to_another_machine_give_a_warning(load: Load, url: Any, warned: Any) -> None:
    text = "pipeline: {enabled_steps: [extractor]}\nservices: {extractor: {auth: {api_key: x}}}"
    warnings = load(text, overrides=[f"services.extractor.base_url={url}"]).warnings
    assert [w.reference for w in warnings] == (["credentials-unencrypted"] if warned else [])


@pytest.mark.parametrize(
    ("endpoint", "auth", "warned"),
    [
        ("http://store.example", "{username: u, password: p}", ["services.send.s3.endpoint"]),
        ("https://store.example", "{username: u, password: p}", []),
        ("http://store.example", "{}", []),
    ],
)
def test_in_s3_upload_the_store_gets_them_and_not_the_ignored_url(
    load: Load, endpoint: str, auth: str, warned: list[str]
) -> None:
    s3 = f"{{bucket: bucket, region: r, access_key_id: a, secret_access_key: s, endpoint: '{endpoint}'}}"
    send = f"{{send_as: s3_upload, url: 'http://unused.example', auth: {auth}, s3: {s3}}}"
    steps = "{enabled_steps: [local_import, send]}"
    text = f"{{pipeline: {steps}, services: {{local_import: {{dir: d}}, send: {send}}}}}"
    assert [w.key for w in load(text).warnings if w.reference == "credentials-unencrypted"] == warned


GOOD = trustme.CA().cert_pem.bytes()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"hello\n", "holds no PEM certificate"),
        (b"\x30\x82\x01\x0a\x02\x82garbage", "holds no PEM certificate"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "holds no PEM certificate"),
        (GOOD.replace(b"\nMII", b"\nAAA"), "certificate 1 of 1 in the bundle is damaged"),
        (GOOD + GOOD[: len(GOOD) // 2] + b"\n-----END CERTIFICATE-----\n", "certificate 2 of 2"),
    ],
)
def test_a_ca_bundle_that_does_not_load_is_an_error_for_every_enabled_step(
    errors: Errors, loader: Loader, content: bytes, says: str
) -> None:
    (loader.directory / "ca.pem").write_bytes(content)
    found = errors(MINIMAL + "tls: {ca_cert_path: '${DIR}/ca.pem'}", env={"DIR": str(loader.directory)})
    assert set(found) == {("tls-ca-bundle", "tls.ca_cert_path")}
    finding = found["tls-ca-bundle", "tls.ca_cert_path"]
    assert says in finding.message
    assert finding.hint
    assert finding.line


def test_a_ca_bundle_that_does_not_exist_is_an_error(errors: Errors, loader: Loader) -> None:
    text = MINIMAL + "tls: {ca_cert_path: '${DIR}/ca.pem'}"
    env = {"DIR": str(loader.directory)}
    assert set(errors(text, env=env)) == {("file-not-found", "tls.ca_cert_path")}
    trustme.CA().cert_pem.write_to_path(str(loader.directory / "ca.pem"))
    assert loader.load(text, env=env).config.tls.ca_cert_path == loader.directory / "ca.pem"
