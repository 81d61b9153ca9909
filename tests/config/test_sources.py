"""File, environment and flags: what each gives, which one wins, and what is no configuration at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from config import ConfigError, load_config
from tests.config.conftest import MINIMAL, Errors, Load, value

KEY, VARIABLE = "retry.max_attempts", "APP_RETRY_MAX_ATTEMPTS"
STEPS = "pipeline.enabled_steps"


@pytest.mark.parametrize(
    ("in_file", "in_environment", "in_flags", "read", "source"),
    [
        (None, None, None, 5, "default"),
        ("2", None, None, 2, "file"),
        (None, "3", None, 3, "environment"),
        ("2", "3", None, 3, "environment"),
        (None, None, "4", 4, "flag"),
        ("2", None, "4", 4, "flag"),
        (None, "3", "4", 4, "flag"),
        ("2", "3", "4", 4, "flag"),
        ("2", "3", "4 7", 7, "flag"),
        ("2", "", None, 2, "file"),
        (None, "", None, 5, "default"),
        ("null", None, None, 5, "default"),
        ("~", None, None, 5, "default"),
        ("", None, None, 5, "default"),
        ("''", None, None, 5, "default"),
        ("2", "null", None, 5, "default"),
        ("2", "3", "~", 5, "default"),
        ("2", "3", "null", 5, "default"),
    ],
)
def test_flags_win_over_environment_over_file_over_defaults(
    load: Load, in_file: str | None, in_environment: str | None, in_flags: str | None, read: int, source: str
) -> None:
    loaded = load(
        MINIMAL + (f"retry:\n  max_attempts: {in_file}\n" if in_file is not None else ""),
        env={} if in_environment is None else {VARIABLE: in_environment},
        overrides=[f"{KEY}={text}" for text in (in_flags or "").split()],
    )
    (shown,) = (row for row in loaded.effective() if row[0] == KEY)
    where = {"file": f"{loaded.path}:3", "environment": f"environment {VARIABLE}", "flag": "--set"}
    assert shown == (KEY, str(read), where.get(source, "default"))
    assert loaded.config.retry.max_attempts == read


# --- the file ---


@pytest.mark.parametrize(
    ("content", "reference", "line"),
    [
        (b"a: 1\nb: c: hunter2\n", "config-yaml", 2),
        (b"a: [hunter2\n", "config-yaml", 2),
        (b"a:\n\thunter2: 1\n", "config-yaml", 2),
        (b"a: hunter2\nb: \x00\n", "config-yaml", 2),
        (b"a: 1\n---\nb: hunter2\n", "config-yaml", 2),
        (b"a: 1\n? [hunter2]\n: 1\n", "config-yaml", 2),
        (b"a: *hunter2\n", "config-yaml", 1),
        (b"[" * 100_000, "config-yaml", None),
        (b"services: {http_import: {urls: &a [*a]}}\n", "config-yaml", None),
        (b"- hunter2\n", "config-not-a-mapping", None),
        (b"hunter2", "config-not-a-mapping", None),
        (b"a: 1\nb: hunter\xff2\n", "config-encoding", 2),
        (b"", "steps-missing", None),
        (b"# nothing\n", "steps-missing", None),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes, reference: str, line: int | None) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path, environ={})
    (finding,) = caught.value.findings
    assert finding.reference == reference
    assert line is None or finding.key == f"{path}:{line}"
    assert "hunter2" not in finding.render()


def test_a_missing_or_unreadable_file_and_a_directory(tmp_path: Path) -> None:
    unreadable = tmp_path / "c.yaml"
    unreadable.write_text(MINIMAL)
    unreadable.chmod(0)
    expected: dict[Path, str] = {tmp_path / "none.yaml": "config-not-found", tmp_path: "config-unreadable"}
    expected |= {Path("a\0b"): "config-unreadable"} | ({} if os.geteuid() == 0 else {unreadable: "config-unreadable"})
    for path, reference in expected.items():
        with pytest.raises(ConfigError) as caught:
            load_config(path, environ={})
        assert [finding.reference for finding in caught.value.findings] == [reference]


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load_config(path, environ={}).config.pipeline.enabled_steps == ("local_import",)


def test_duplicate_keys_and_blocks_are_errors_with_their_lines(errors: Errors) -> None:
    text = "retry:\n  max_attempts: 2\n  max_attempts: 3\ntls: {}\nretry: {}\n"
    rules = "services: {crtdl_preprocessing: {enrichments: [{group_reference: x, group_reference: y}]}}\n"
    found = errors(MINIMAL + text + rules)
    inside = "services.crtdl_preprocessing.enrichments[0].group_reference"
    assert {reference for reference, _ in found} == {"duplicate-key"}
    assert {key for _, key in found} == {KEY, "retry", inside}
    assert "lines 3 and 4" in found["duplicate-key", KEY].message


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("a: &x https://h\n", None),
        ("services: {send: {url: &x https://h}, validation: {url: *x}}", "https://h"),
        ("services: {validation: {url: 'https://h'}}", "https://h"),
        ('services: {validation: {url: "https:\\/\\/h"}}', "https://h"),
        ("services: {validation: {url: >-\n  https://h\n}}", None),
        ("services:\n  validation:\n    url: >-\n      https://h\n", "https://h"),
        ("services: {validation: {url: !!str https://h}}", "https://h"),
        ("services: {validation: }", ""),
        ("services: ~", ""),
        ("services:", ""),
    ],
)
def test_yaml_is_read_with_its_anchors_quotes_and_folds(load: Load, text: str, read: str | None) -> None:
    if read is None:
        with pytest.raises(ConfigError):
            load(MINIMAL + text)
    else:
        assert (load(MINIMAL + text).config.services.validation.url or "") == read


def test_quoted_null_is_text_and_merge_keys_are_unknown(load: Load, errors: Errors) -> None:
    assert load(MINIMAL + "report: {purpose: 'null'}").config.report.purpose == "null"
    assert ("unknown-key", "retry.<<") in errors(MINIMAL + "tls: &t {}\nretry: {<<: *t}")


def test_a_block_must_be_a_block_and_a_value_one_value(errors: Errors) -> None:
    text = (
        "services: {extractor: [1], send: {auth: hunter2, url: [a], s3: {bucket: {a: b}}}, http_import: {urls: {a: b}}}"
    )
    assert set(errors(MINIMAL + text)) == {
        ("wrong-type", "services.extractor"),
        ("wrong-type", "services.send.auth"),
        ("wrong-type", "services.send.url"),
        ("wrong-type", "services.send.s3.bucket"),
        ("wrong-type", "services.http_import.urls"),
    }


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("retries: {}", "retries", "did you mean retry?"),
        ("services: {extractor: {url: x}}", "services.extractor.url", "did you mean services.extractor.base_url?"),
        ("services: {sned: {}}", "services.sned", "did you mean services.send?"),
        ("enabled_steps: []", "enabled_steps", "did you mean pipeline.enabled_steps?"),
        ("max_atempts: 3", "max_atempts", "did you mean retry.max_attempts?"),
        ("services: {send: {s3: {bukket: x}}}", "services.send.s3.bukket", "did you mean services.send.s3.bucket?"),
        ("services: {send: {bucket: x}}", "services.send.bucket", "did you mean services.send.s3.bucket?"),
        ("services: {send: {max_attempts: 3}}", "services.send.max_attempts", "did you mean retry.max_attempts?"),
        ("services: {send: {username: x}}", "services.send.username", "did you mean services.send.auth.username?"),
        ("tls: {zzz: x}", "tls.zzz", "known here: ca_cert_path, insecure_skip_verify"),
        # aether's names
        ("services: {torch: {base_url: x}}", "services.torch", "here it is called services.extractor"),
        ("services: {dimp: {url: x}}", "services.dimp", "here it is called services.pseudonymizer"),
        ("crtdl_preprocessing: {}", "crtdl_preprocessing", "here it is called services.crtdl_preprocessing"),
        ("services: {send: {server_url: x}}", "services.send.server_url", "here it is called services.send.url"),
        ("services: {csv_conversion: {}}", "services.csv_conversion", "here it is called services.flattening"),
        ("services: {parquet_conversion: {}}", "services.parquet_conversion", "here it is called services.flattening"),
        *(
            (
                f"services: {{send: {{{name}: x}}}}",
                f"services.send.{name}",
                f"here it is called services.send.transfer.{name}",
            )
            for name in ("project_identifier", "organization_identifier")
        ),
    ],
)
def test_unknown_keys_are_errors_with_the_nearest_known_key(errors: Errors, text: str, key: str, hint: str) -> None:
    found = errors(MINIMAL + text)
    assert set(found) == {("unknown-key", key)}
    assert found["unknown-key", key].hint == hint


# --- the environment ---


def test_lists_and_rules_in_variables(load: Load) -> None:
    loaded = load(
        "retry: {}",
        env={
            "APP_PIPELINE_ENABLED_STEPS": " http_import, wait ,validation,",
            "APP_SERVICES_VALIDATION_URL": "http://localhost:1",
            "APP_SERVICES_HTTP_IMPORT_URLS": "['http://a.example/x,y']",
            "APP_SERVICES_CRTDL_PREPROCESSING_ENRICHMENTS": '[{"group_reference": "p", "attributes_to_add": []}]',
        },
    )
    assert loaded.config.pipeline.enabled_steps == ("http_import", "wait", "validation")
    assert loaded.config.services.http_import.urls == ("http://a.example/x,y",)
    assert [rule.group_reference for rule in loaded.config.services.crtdl_preprocessing.enrichments or ()] == ["p"]


def test_an_app_variable_that_names_no_key_is_a_warning_without_its_value(load: Load) -> None:
    loaded = load(MINIMAL, env={"APP_RETRY_MAX_ATEMPTS": "hunter2", "APP_EMPTY": "", "APPLE": "x", "AETHER_X": "y"})
    (warning,) = loaded.warnings
    assert (warning.reference, warning.key) == ("unknown-variable", "APP_RETRY_MAX_ATEMPTS")
    assert warning.hint == f"did you mean {VARIABLE}?"
    assert "hunter2" not in warning.render()


def test_the_process_environment_is_used_unless_another_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL)
    monkeypatch.setenv(VARIABLE, "9")
    assert load_config(str(path)).config.retry.max_attempts == 9
    assert load_config(path, environ={}).config.retry.max_attempts == 5


# --- flags ---


def test_unknown_and_malformed_flags_are_errors(errors: Errors) -> None:
    overrides = ["hunter2", "retry.attempts=1", "retry={}", "services.http_import.urls=[a", "=x", "services.dimp.url=x"]
    found = errors(MINIMAL, overrides=overrides)
    assert set(found) == {
        ("override-syntax", "--set, number 1"),
        ("unknown-key", "retry.attempts"),
        ("unknown-key", "retry"),
        ("config-yaml", "services.http_import.urls"),
        ("override-syntax", "--set, number 5"),
        ("unknown-key", "services.dimp.url"),
    }
    assert (found["unknown-key", "retry"].hint or "").startswith("it is a block: set one of its keys, max_attempts")
    assert found["unknown-key", "services.dimp.url"].hint == "here it is called services.pseudonymizer.url"


@pytest.mark.parametrize("key", ["services.send.auth.api_key", "services.send.s3.secret_access_key"])
def test_a_secret_in_a_flag_must_name_a_variable(load: Load, errors: Errors, key: str) -> None:
    for text in ("hunter2", "$${hunter2}", "$hunter2"):
        found = errors(MINIMAL, overrides=[f"{key}={text}", f"{key}=${{X}}"], env={"X": "x"})
        assert set(found) == {("secret-on-command-line", key)}
        assert "${VARIABLE}" in (found["secret-on-command-line", key].hint or "")
    loaded = load(MINIMAL, overrides=[f"{key}=${{X}}"], env={"X": "hunter2"})
    assert value(loaded.config, key).get_secret_value() == "hunter2"


def test_a_search_parameter_of_an_import_url_is_no_secret(load: Load) -> None:
    url = "https://h.example/Observation?code=8867-4&key=x"
    loaded = load(MINIMAL, overrides=[f"services.http_import.urls={url}"])
    assert loaded.config.services.http_import.urls == (url,)


# --- ${VAR} ---


def test_a_variable_fills_every_kind_of_key_in_the_file_and_in_flags(load: Load) -> None:
    text = (
        "pipeline: {enabled_steps: [local_import, '${STEP}']}\n"
        "retry: {max_attempts: '${N}'}\ncompression: {enabled: '${B}', level: '${L}'}\n"
        "services: {extractor: {request_timeout: 'PT${S}S'}}\njobs_dir: ${HOME}/$${x}/$y\n"
    )
    env = {"STEP": "wait", "N": "010", "B": "no", "L": "best", "S": "7", "HOME": "/h", "STEPS": "http_import, wait"}
    config = load(text, env=env).config
    assert config.pipeline.enabled_steps == ("local_import", "wait")
    assert (config.retry.max_attempts, config.compression.enabled, config.compression.level) == (10, False, "best")
    assert config.services.extractor.request_timeout.seconds == 7
    assert str(config.jobs_dir) == "/h/${x}/$y"
    for given in (
        {"text": "pipeline: {enabled_steps: '${STEPS}'}"},
        {"text": text, "overrides": [f"{STEPS}=${{STEPS}}"]},
    ):
        assert load(env=env, **given).config.pipeline.enabled_steps == ("http_import", "wait")


def test_what_a_variable_holds_is_not_expanded_again(load: Load) -> None:
    env = {"APP_JOBS_DIR": "a${HOME}$${x}", "HOME": "/h", "A": "${HOME}"}
    config = load(MINIMAL + "report: {purpose: '${A}'}", env=env).config
    assert (str(config.jobs_dir), config.report.purpose) == ("a${HOME}$${x}", "${HOME}")


def test_an_empty_variable_is_set_and_leaves_the_key_unset(load: Load) -> None:
    config = load(MINIMAL + "jobs_dir: ${E}\nservices: {send: {auth: {api_key: '${E}'}}}", env={"E": ""}).config
    assert (str(config.jobs_dir), config.services.send.auth.api_key) == ("jobs", None)


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
    (source,) = (where for key, _, where in loaded.effective() if key == "services.send.url")
    assert "URL is not set" in source


def test_other_unset_and_malformed_variables_are_errors_that_quote_nothing(load: Load, errors: Errors) -> None:
    assert set(errors(MINIMAL + "jobs_dir: ${JOBS}")) == {("unset-variable", "jobs_dir")}
    assert str(load(MINIMAL + "jobs_dir: ${JOBS}", overrides=["jobs_dir=x"]).config.jobs_dir) == "x"
    assert set(errors("pipeline: {enabled_steps: '${S}'}")) == {("unset-variable", STEPS)}
    for malformed in ("hunter2${oops", "${hunter2-x}", "${"):
        found = errors(MINIMAL + f"services: {{send: {{auth: {{username: u, password: '{malformed}'}}}}}}")
        assert set(found) == {("variable-syntax", "services.send.auth.password")}
        assert "oops" not in str(found)


@pytest.mark.parametrize("bad", ["[a", "[local_import, {a: b}]", "[local_import, ~]"])
def test_a_list_that_is_none_is_an_error(errors: Errors, bad: str) -> None:
    found: Any = errors(MINIMAL, env={"APP_PIPELINE_ENABLED_STEPS": bad})
    assert {key.partition("[")[0] for _, key in found} == {STEPS}
