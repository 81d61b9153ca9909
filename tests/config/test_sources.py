"""The three sources of configuration: file, environment and flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from config import ConfigError, KeyInfo, describe_keys, load_config
from config.deprecated import DEPRECATED
from config.fields import KeyKind
from config.keys import env_name
from config.sources import split_list
from tests.config.conftest import MINIMAL, Errors, Load

# --- the file ---


def rejected(path: Path) -> tuple[str, int | None, str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    (finding,) = caught.value.findings
    return finding.reference, finding.line, finding.render()


@pytest.mark.parametrize(
    ("content", "reference", "line"),
    [
        (b"a: 1\nb: c: hunter2\n", "config-yaml", 2),
        (b"a: [hunter2\n", "config-yaml", 2),
        (b"", "config-empty", None),
        (b"# nothing\n", "config-empty", None),
        (b"- hunter2\n", "config-not-a-mapping", 1),
        (b"hunter2", "config-not-a-mapping", 1),
        (b"a: 1\nb: hunter\xff2\n", "config-encoding", 2),
        (b"a: hunter2\nb: \x00\n", "config-yaml", 2),
        (b"a: 1\n---\nb: hunter2\n", "config-yaml", 2),
        (b"x" * (4 * 2**20 + 1), "config-too-large", None),
    ],
)
def test_a_file_that_is_no_mapping_is_a_finding_with_a_line(
    tmp_path: Path, content: Any, reference: Any, line: Any
) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    found, at, text = rejected(path)
    assert (found, at) == (reference, line)
    assert "hunter2" not in text


def test_a_missing_file_and_a_directory_are_findings(tmp_path: Path) -> None:
    assert rejected(tmp_path / "none.yaml")[0] == "config-not-found"
    assert rejected(tmp_path)[0] == "config-is-directory"
    assert rejected(Path("a\0b"))[0] == "config-unreadable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_a_finding(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    path.chmod(0)
    assert rejected(path)[0] == "config-unreadable"


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_config(path, environ={}).config.pipeline.enabled_steps == ("local_import",)


def test_duplicate_keys_are_errors_with_their_lines(errors: Errors) -> None:
    found = errors(MINIMAL + "retry:\n  max_attempts: 2\n  max_attempts: 3\n")
    finding = found["duplicate-key", "retry.max_attempts"]
    assert finding.line == 4
    assert "lines 3 and 4" in finding.message


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("retries: {}", "retries", "did you mean retry?"),
        ("services: {extractor: {url: x}}", "services.extractor.url", "did you mean services.extractor.base_url?"),
        ("services: {sned: {}}", "services.sned", "did you mean services.send?"),
        ("enabled_steps: []", "enabled_steps", "did you mean pipeline.enabled_steps?"),
        ("services: {extractor: {pasword: x}}", "services.extractor.pasword", None),
        (
            "zzz: 1",
            "zzz",
            "known here: jobs_dir, server_linger, services, pipeline, retry, tls, compression, limits, report",
        ),
        ("1: x", "1", None),
        # A typo below a block of a block.
        ("services: {send: {s3: {bukket: x}}}", "services.send.s3.bukket", "did you mean services.send.s3.bucket?"),
        ("services: {send: {auth: {user: x}}}", "services.send.auth.user", "did you mean services.send.auth.username?"),
        # A key that exists below another block; of several, the one that shares most with where it stands.
        ("services: {send: {bucket: x}}", "services.send.bucket", "did you mean services.send.s3.bucket?"),
        ("services: {send: {max_attempts: 3}}", "services.send.max_attempts", "did you mean retry.max_attempts?"),
        ("services: {send: {username: x}}", "services.send.username", "did you mean services.send.auth.username?"),
        # One level too high, with a typo too.
        ("services: {bukket: x}", "services.bukket", "did you mean services.send.s3.bucket?"),
        ("max_atempts: 3", "max_atempts", "did you mean retry.max_attempts?"),
        # Nothing like it: what stands there, never the block that it is in already.
        (
            "services: {send: {s3: {zzz: x}}}", "services.send.s3.zzz",
            "known here: bucket, region, access_key_id, secret_access_key, endpoint, use_path_style, timeout, prefix",
        ),
        ("tls: {tls_ca: x}", "tls.tls_ca", "known here: ca_cert_path, insecure_skip_verify"),
    ],
)  # fmt: skip
def test_unknown_keys_are_errors_with_the_nearest_known_key(errors: Errors, text: Any, key: Any, hint: Any) -> None:
    finding = errors(MINIMAL + text)["unknown-key", key]
    assert finding.hint
    assert hint is None or finding.hint == hint


def test_a_misspelled_block_is_one_error_and_each_name_of_a_path_may_be_misspelled(errors: Errors) -> None:
    text = """
services: {pseudonymiser: {url: 'http://a'}, sned: {send_as: s3_upload, s3: {bucket: b}}, local_import: {dir: d}}
pipeline: {enabled_steps: [local_import, pseudonymizer, send]}
"""
    assert set(errors(text)) == {("unknown-key", "services.pseudonymiser"), ("unknown-key", "services.sned")}
    found = errors(MINIMAL, overrides=["servces.sned.url=http://a"])
    assert found["unknown-key", "servces.sned.url"].hint == "did you mean services.send.url?"


def test_a_misspelled_block_of_an_older_file_is_one_error_too(errors: Errors) -> None:
    text = """
services: {torhc: {base_url: 'http://a'}, dmip: {url: 'http://b'}}
pipeline: {enabled_steps: [torch, dimp]}
"""
    found = {at: finding for at, finding in errors(text).items() if finding.level == "error"}
    assert set(found) == {("unknown-key", "services.torhc"), ("unknown-key", "services.dmip")}
    assert found["unknown-key", "services.torhc"].hint == "did you mean services.extractor?"


def test_steps_with_older_names_may_be_given_as_text_on_the_command_line(load: Load) -> None:
    text = MINIMAL + "services: {extractor: {base_url: 'http://a'}}"
    loaded = load(text, overrides=["pipeline.enabled_steps=torch, wait"])
    assert loaded.config.pipeline.enabled_steps == ("extractor", "wait")
    assert [finding.hint for finding in loaded.warnings] == ["write extractor"]


@pytest.mark.parametrize("value", ["0815", "1.50", "2024-01-01", "1_000", "12:30"])
def test_where_a_key_wants_text_a_number_is_taken_as_written(load: Load, value: Any) -> None:
    text = MINIMAL + f"services: {{send: {{transfer: {{project_identifier: {value}}}}}}}"
    assert load(text).config.services.send.transfer.project_identifier == value


@pytest.mark.parametrize("value", ["true", "no", "[a]", "{a: b}"])
def test_where_a_key_wants_text_anything_else_is_an_error(errors: Errors, value: Any) -> None:
    found = errors(MINIMAL + f"services: {{send: {{transfer: {{project_identifier: {value}}}}}}}")
    assert ("wrong-type", "services.send.transfer.project_identifier") in found


def test_a_list_in_the_file_is_a_yaml_list(errors: Errors) -> None:
    assert ("wrong-type", "pipeline.enabled_steps") in errors("pipeline: {enabled_steps: local_import}")


def test_empty_text_counts_as_not_set(load: Load) -> None:
    config = load(MINIMAL + "services: {send: {s3: {endpoint: ''}}}\njobs_dir: ''").config
    assert config.services.send.s3.endpoint is None
    assert config.jobs_dir == Path("jobs")


# --- the environment ---

SAMPLES = {
    KeyKind.TEXT: "some-text",
    KeyKind.URL: "https://host.example/base",
    KeyKind.SECRET: "s3cret ${x} $${y}",
    KeyKind.PATH: "/some/path",
    KeyKind.DURATION: "PT7S",
    KeyKind.INTEGER: "7",
    KeyKind.BOOLEAN: "true",
    KeyKind.RULES: '[{"group_reference": "https://p.example/x"}]',
}


@pytest.mark.parametrize("info", describe_keys(), ids=lambda info: info.key)
def test_every_key_can_be_set_by_its_variable(load: Load, tmp_path: Path, info: KeyInfo) -> None:
    if info.choices:
        sample = "local_import" if info.key == "pipeline.enabled_steps" else info.choices[0]
    elif info.key == "tls.ca_cert_path":
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        sample = str(tmp_path / "ca.pem")
    else:
        sample = SAMPLES.get(info.kind, "https://a.example/x,https://b.example/y")
    if info.maximum is not None and sample.isdigit():
        sample = str(min(int(sample), info.maximum))
    env = {info.env: sample}
    siblings = {"username": "password", "password": "username"}
    block, _, name = info.key.rpartition(".")
    if name in siblings:
        env[env_name(f"{block}.{siblings[name]}")] = "x"
    if name.startswith("oauth_"):
        env |= {env_name(f"{block}.oauth_{n}"): "x" for n in ("client_id", "client_secret")} | env
        env = {env_name(f"{block}.oauth_issuer_uri"): "https://login.example"} | env
    if name == "polling_interval":
        assert load(MINIMAL, env=env).config.services.extractor.polling_interval.seconds == 7
    loaded = load(MINIMAL, env=env)
    effective = {e.key: e for e in loaded.effective()}[info.key]
    assert effective.source == f"environment {info.env}"
    assert effective.value


def test_variable_names_are_unambiguous_and_derived_from_the_path() -> None:
    names = [env_name(key) for key in (*(info.key for info in describe_keys()), *DEPRECATED)]
    assert len(set(names)) == len(names)
    assert env_name("services.extractor.base_url") == "APP_SERVICES_EXTRACTOR_BASE_URL"
    assert env_name("services.pseudonymizer.url") == "APP_SERVICES_PSEUDONYMIZER_URL"
    assert "APP_JOBS_DIR" in names


def test_lists_are_comma_separated_text(load: Load) -> None:
    loaded = load(
        "retry: {}",
        env={
            "APP_PIPELINE_ENABLED_STEPS": " http_import, wait ,validation,",
            "APP_SERVICES_VALIDATION_URL": "http://localhost:1",
            "APP_SERVICES_HTTP_IMPORT_URLS": "['http://a.example/x,y']",
        },
    )
    assert loaded.config.pipeline.enabled_steps == ("http_import", "wait", "validation")
    assert loaded.config.services.http_import.urls == ("http://a.example/x,y",)


@given(st.lists(st.text(min_size=1).map(str.strip).filter(lambda t: t and "," not in t)))
def test_any_list_without_commas_survives_comma_separation(items: list[str]) -> None:
    assert split_list(",".join(items)) == items


def test_values_from_the_environment_are_not_expanded(load: Load) -> None:
    env = {"APP_SERVICES_SEND_AUTH_API_KEY": "a${HOME}$${x}", "HOME": "/home/someone"}
    key = load(MINIMAL, env=env).config.services.send.auth.api_key
    assert key is not None
    assert key.get_secret_value() == "a${HOME}$${x}"


@pytest.mark.parametrize(
    ("text", "value"), [("TRUE", True), ("yes", True), ("on", True), ("1", True), ("No", False), ("0", False)]
)
def test_truth_values_in_variables(load: Load, text: Any, value: Any) -> None:
    env = {"APP_SERVICES_LOCAL_IMPORT_RECURSIVE": text}
    assert load(MINIMAL, env=env).config.services.local_import.recursive is value


def test_an_app_variable_that_names_no_key_is_a_warning_without_its_value(load: Load) -> None:
    loaded = load(MINIMAL, env={"APP_RETRY_MAX_ATEMPTS": "hunter2", "APP_EMPTY": "", "APPLE": "x"})
    (warning,) = loaded.warnings
    assert (warning.reference, warning.key) == ("unknown-variable", "APP_RETRY_MAX_ATEMPTS")
    assert warning.hint == "did you mean APP_RETRY_MAX_ATTEMPTS?"
    assert "hunter2" not in warning.render()


def test_a_bad_value_in_a_variable_names_the_variable(errors: Errors) -> None:
    found = errors(MINIMAL, env={"APP_RETRY_MAX_ATTEMPTS": "hunter2", "APP_PIPELINE_ENABLED_STEPS": "[a"})
    assert set(found) == {("wrong-type", "retry.max_attempts"), ("config-yaml", "pipeline.enabled_steps")}
    assert found["wrong-type", "retry.max_attempts"].where == "environment APP_RETRY_MAX_ATTEMPTS"


# --- flags ---


def test_flags_are_read_as_yaml(load: Load) -> None:
    config = load(
        MINIMAL,
        overrides=[
            "pipeline.enabled_steps=[local_import, wait]",
            "compression.enabled=false",
            "retry={max_attempts: 3, max_backoff_ms: 5}",
            "services.local_import.dir='quoted: path'",
        ],
    ).config
    assert config.pipeline.enabled_steps == ("local_import", "wait")
    assert config.compression.enabled is False
    assert (config.retry.max_attempts, config.retry.max_backoff_ms) == (3, 5)
    assert config.services.local_import.dir == Path("quoted: path")


@pytest.mark.parametrize("path", ["/a b/c #1", "x: y", "{odd}", "a=b", "[1]", "*x", "true"])
def test_a_path_given_by_a_flag_stays_as_it_is(load: Load, path: Any) -> None:
    loaded = load(MINIMAL, overrides=[f"services.local_import.dir={path}"])
    assert loaded.config.services.local_import.dir == Path(path)


def test_unknown_and_malformed_flags_are_errors(errors: Errors) -> None:
    found = errors(MINIMAL, overrides=["hunter2", "retry.attempts=1", "retry={max_attempts: [}", "=x"])
    assert set(found) == {
        ("override-syntax", "--set, number 1"),
        ("override-syntax", "--set, number 4"),
        ("unknown-key", "retry.attempts"),
        ("config-yaml", "retry"),
    }


@pytest.mark.parametrize("override", ["services.send.auth.password=hunter2", "services.send.auth={password: hunter2}"])
def test_a_literal_secret_on_the_command_line_is_refused(errors: Errors, override: Any) -> None:
    found = errors(MINIMAL + "services: {send: {auth: {username: u}}}", overrides=[override])
    finding = found["secret-on-command-line", "services.send.auth.password"]
    assert "APP_SERVICES_SEND_AUTH_PASSWORD" in (finding.hint or "")
    assert "${VAR}" in (finding.hint or "")
    assert set(found) == {("secret-on-command-line", "services.send.auth.password")}


def test_a_secret_on_the_command_line_may_name_a_variable(load: Load) -> None:
    loaded = load(
        MINIMAL, env={"PW": "hunter2"}, overrides=["services.send.auth.username=u", "services.send.auth.password=${PW}"]
    )
    password = loaded.config.services.send.auth.password
    assert password is not None
    assert password.get_secret_value() == "hunter2"


URLS = "services.http_import.urls"


@pytest.mark.parametrize(
    "override",
    [
        f"{URLS}=https://h.example/x?sig=CANARY",
        f"{URLS}=https://h.example/x?a=1&X-Amz-Signature=CANARY",
        f"{URLS}=[https://h.example/x, 'https://h.example/y?token=CANARY']",
        f"{URLS}=https://h.example/x,https://h.example/y?api_key=CANARY",
        "services.http_import={urls: ['https://h.example/x?sig=CANARY']}",
        f"{URLS}=https://h.example/${{DIR}}/x?sig=CANARY",
        f"{URLS}=https://h.example/x?a=${{DIR}}&sig=CANARY",
        f"{URLS}=https://h.example/x?sig=$${{DIR}}CANARY",
    ],
)
def test_a_url_with_a_literal_secret_in_its_query_is_refused_on_the_command_line(errors: Errors, override: Any) -> None:
    found = errors(MINIMAL, env={"DIR": "d"}, overrides=[override])
    assert set(found) == {("secret-on-command-line", URLS)}
    assert "${VAR}" in (found["secret-on-command-line", URLS].hint or "")


def test_a_url_of_the_command_line_may_bring_its_secret_in_a_variable(load: Load) -> None:
    env = {"SIG": "CANARY", "LINKS": "https://h.example/a?sig=1,https://h.example/b?sig=2"}
    loaded = load(MINIMAL, env=env, overrides=[URLS + "=https://h.example/x?sig=${SIG}"])
    assert loaded.config.services.http_import.urls == ("https://h.example/x?sig=CANARY",)
    loaded = load(MINIMAL, env=env, overrides=[URLS + "=${LINKS}"])
    assert len(loaded.config.services.http_import.urls) == 2


def test_a_signed_url_in_the_file_or_the_environment_is_no_finding(load: Load) -> None:
    text = MINIMAL + "services: {http_import: {urls: ['https://h.example/x?sig=CANARY']}}"
    assert load(text).warnings == ()
    assert load(MINIMAL, env={"APP_SERVICES_HTTP_IMPORT_URLS": "https://h.example/x?sig=CANARY"}).warnings == ()


@pytest.mark.parametrize(
    ("key", "secret", "harmless"),
    [
        (URLS, "https://h.example/x?sig=CANARY", "https://h.example/x"),
        ("services.pseudonymizer.auth.api_key", "CANARY", "${VAR}"),
    ],
)
def test_a_secret_replaced_by_a_later_flag_is_still_on_the_command_line(
    errors: Errors, key: str, secret: str, harmless: str
) -> None:
    found = errors(MINIMAL, env={"VAR": "x"}, overrides=[f"{key}={secret}", f"{key}={harmless}"])
    assert set(found) == {("secret-on-command-line", key)}
