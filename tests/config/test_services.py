"""The keys, defaults and ranges of document 1, written out as its tables have them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from config import KeyInfo, PipelineConfig, describe_keys
from config.fields import KeyKind
from tests.config.conftest import MINIMAL, Errors, Load

AUTH: dict[str, Any] = {
    "username": None,
    "password": None,
    "oauth_issuer_uri": None,
    "oauth_client_id": None,
    "oauth_client_secret": None,
    "api_key": None,
    "api_key_header": "x-api-key",
}

DEFAULTS: dict[str, Any] = {
    "services.extractor.base_url": None,
    "services.extractor.extraction_timeout": timedelta(minutes=30),
    "services.extractor.polling_interval": timedelta(seconds=5),
    "services.extractor.max_polling_interval": timedelta(seconds=30),
    "services.extractor.file_ready_retries": 10,
    "services.extractor.file_ready_interval": timedelta(seconds=10),
    "services.extractor.download_stall_timeout": timedelta(minutes=1),
    "services.http_import.stall_timeout": timedelta(minutes=1),
    "services.extractor.max_concurrent_downloads": 4,
    "services.extractor.request_timeout": timedelta(minutes=1),
    "services.pseudonymizer.url": None,
    "services.pseudonymizer.bundle_split_threshold_mb": 10,
    "services.pseudonymizer.timeout": timedelta(seconds=30),
    "services.pseudonymizer.anonymization_config": None,
    "services.pseudonymizer.residual_identifiers": "stop",
    "services.pseudonymizer.kept_identifiers": (),
    "services.pseudonymizer.max_concurrent_requests": 4,
    "services.flattening.service_url": None,
    "services.flattening.lookup_path": None,
    "services.flattening.formats": ("csv",),
    "services.flattening.timeout": timedelta(minutes=30),
    "services.flattening.batch_size_mb": 500,
    "services.send.send_as": None,
    "services.send.url": None,
    "services.send.batch_size": 100,
    "services.send.max_concurrent_requests": 2,
    "services.send.timeout": timedelta(minutes=5),
    "services.send.transfer.project_identifier": None,
    "services.send.transfer.organization_identifier": None,
    "services.send.s3.bucket": None,
    "services.send.s3.region": None,
    "services.send.s3.access_key_id": None,
    "services.send.s3.secret_access_key": None,
    "services.send.s3.endpoint": None,
    "services.send.s3.use_path_style": False,
    "services.send.s3.timeout": timedelta(minutes=30),
    "services.send.s3.prefix": None,
    "services.validation.url": None,
    "services.validation.max_concurrent_requests": 4,
    "services.validation.bundle_chunk_size_mb": 10,
    "services.validation.fail_on_error": True,
    "services.local_import.dir": None,
    "services.local_import.recursive": False,
    "services.http_import.urls": (),
    "services.crtdl_preprocessing.enabled": False,
    "services.crtdl_preprocessing.enrichments_path": None,
    "services.crtdl_preprocessing.enrichments": None,
    "pipeline.enabled_steps": (),
    "retry.max_attempts": 5,
    "retry.initial_backoff_ms": 1000,
    "retry.max_backoff_ms": 30000,
    "tls.ca_cert_path": None,
    "tls.insecure_skip_verify": False,
    "compression.enabled": True,
    "compression.level": "default",
    "report.enabled": True,
    "report.k": 5,
    "report.language": "en",
    "report.quasi_identifiers": ("Patient.birthDate", "Patient.gender", "Patient.address.postalCode"),
    "report.region_prefix": 2,
    "report.purpose": None,
    "report.legal_basis": None,
    "report.retention": None,
    "report.contact": None,
    "report.recipient": None,
    "limits.max_resource_mb": 64,
    "limits.max_line_mb": 512,
    "report.on_stop": "tell",
    "server_linger": None,
} | {f"services.{s}.auth.{k}": v for s in ("extractor", "pseudonymizer", "send") for k, v in AUTH.items()}


def value(config: PipelineConfig, key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = getattr(found, name)
    return found


def test_the_keys_are_those_of_document_1_and_the_ones_document_3_adds() -> None:
    assert {info.key for info in describe_keys()} == {*DEFAULTS, "jobs_dir"}


@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults(key: str) -> None:
    assert value(PipelineConfig(), key) == DEFAULTS[key]


def test_jobs_dir_is_below_the_working_directory_by_default() -> None:
    assert str(PipelineConfig().jobs_dir) == "jobs"


def test_secrets_are_exactly_the_passwords_and_keys() -> None:
    secrets = {info.key for info in describe_keys() if info.secret}
    names = {"password", "oauth_client_secret", "api_key"}
    assert secrets == {key for key in DEFAULTS if key.rpartition(".")[2] in names} | {
        "services.send.s3.secret_access_key"
    }


RANGES = [
    ("retry.max_attempts", 1, 10),
    ("limits.max_resource_mb", 1, 1024),
    ("services.pseudonymizer.bundle_split_threshold_mb", 1, 100),
    ("services.send.batch_size", 0, 1000),
]


@pytest.mark.parametrize(("key", "lowest", "highest"), RANGES)
def test_ranges(load: Load, errors: Errors, key: Any, lowest: Any, highest: Any) -> None:
    for inside in (max(lowest, 1), highest):
        assert value(load(MINIMAL, overrides=[f"{key}={inside}"]).config, key) == inside
    for outside in (lowest - 1, highest + 1):
        finding = errors(MINIMAL, overrides=[f"{key}={outside}"])["out-of-range", key]
        assert f"between {lowest} and {highest}" in finding.message


@pytest.mark.parametrize(
    ("key", "zero", "default"),
    [
        ("services.send.batch_size", "0", 100),
        ("services.flattening.batch_size_mb", "0", 500),
        ("services.extractor.download_stall_timeout", "0", timedelta(minutes=1)),
        ("services.http_import.stall_timeout", "0", timedelta(minutes=1)),
        ("services.http_import.stall_timeout", "90s", timedelta(seconds=90)),
        ("services.extractor.download_stall_timeout", "PT0S", timedelta(minutes=1)),
        ("services.extractor.download_stall_timeout", "0s", timedelta(minutes=1)),
    ],
)
def test_zero_selects_the_default_where_the_specification_says_so(
    load: Load, key: Any, zero: Any, default: Any
) -> None:
    assert value(load(MINIMAL, overrides=[f"{key}={zero}"]).config, key) == default


@pytest.mark.parametrize(
    ("text", "lingers"),
    [
        ("0", timedelta(0)), ("'0'", timedelta(0)), ("PT0S", timedelta(0)), ("90s", timedelta(seconds=90)),
        ("null", None),
    ],
)  # fmt: skip
def test_the_server_lingers_as_long_as_it_says_and_zero_is_not_at_all(load: Load, text: str, lingers: Any) -> None:
    assert load(MINIMAL + f"server_linger: {text}\n").config.server_linger == lingers
    assert load(MINIMAL, env={"APP_SERVER_LINGER": "0"}).config.server_linger == timedelta(0)


@pytest.mark.parametrize("retries", [0, -1])
def test_file_ready_retries_of_zero_or_less_are_fine(load: Load, retries: Any) -> None:
    config = load(MINIMAL, overrides=[f"services.extractor.file_ready_retries={retries}"]).config
    assert config.services.extractor.file_ready_retries == retries


WRONG = {
    KeyKind.INTEGER: ("true", "1.5", "many", "[1]", "99999999999", "1e2", "0x"),
    KeyKind.BOOLEAN: ("1", "maybe", "[]"),
    KeyKind.DURATION: ("30", "P1W", "-PT1S", "soon", "P4000D"),
}


@pytest.mark.parametrize(
    ("info", "text"),
    [(info, text) for info in describe_keys() for text in WRONG.get(info.kind, ())],
    ids=lambda value: value.key if isinstance(value, KeyInfo) else value,
)
def test_a_number_a_truth_value_and_a_duration_are_nothing_else(errors: Errors, info: KeyInfo, text: str) -> None:
    found = errors(MINIMAL, overrides=[f"{info.key}={text}"])
    assert {key for _, key in found} == {info.key}
    assert {reference for reference, _ in found} <= {"wrong-type", "out-of-range", "invalid-duration"}


def test_a_timeout_of_zero_is_an_error(errors: Errors) -> None:
    found = errors(MINIMAL, overrides=["services.pseudonymizer.timeout=PT0S", "services.send.s3.timeout=0s"])
    assert set(found) == {
        ("out-of-range", "services.pseudonymizer.timeout"),
        ("out-of-range", "services.send.s3.timeout"),
    }


# --- URLs ---

ROOTS = [
    "services.extractor.base_url",
    "services.pseudonymizer.url",
    "services.flattening.service_url",
    "services.send.url",
]


@pytest.mark.parametrize("key", ROOTS)
@pytest.mark.parametrize(
    ("written", "corrected"),
    [
        ("http://h.example/fhir", "http://h.example"),
        ("https://h.example:8443/base/fhir/", "https://h.example:8443/base"),
    ],
)
def test_a_url_that_ends_in_fhir_is_an_error_with_the_corrected_value(
    errors: Errors, key: Any, written: Any, corrected: Any
) -> None:
    assert errors(MINIMAL, overrides=[f"{key}={written}"])["url-ends-in-fhir", key].hint == f"write {corrected}"


def test_a_url_that_only_looks_like_it_is_fine(load: Load) -> None:
    for url in ("https://h.example/hapi-fhir", "https://h.example/fhir/v1", "http://fhir"):
        assert load(MINIMAL, overrides=[f"services.send.url={url}"]).config.services.send.url == url


def test_the_validation_url_may_be_an_operation_or_end_in_fhir(load: Load) -> None:
    for url in ("http://v.example/validateResource", "http://v.example/fhir", "http://v.example/fhir/$validate"):
        assert load(MINIMAL, overrides=[f"services.validation.url={url}"]).config.services.validation.url == url


@pytest.mark.parametrize(
    "url",
    [
        "h.example",
        "ftp://h.example",
        "http://",
        "http:///x",
        "http://h:99999",
        "http://h:0",
        "http://[::1",
        "http://h x/",
        "http://h/a b",
        "//h.example",
        "http://h/?q=1",
        "http://h/#x",
    ],
)
def test_a_base_url_is_http_with_a_host_and_a_path_at_most(errors: Errors, url: Any) -> None:
    found = errors(MINIMAL, overrides=[f"services.send.url={url}"])
    assert set(found) == {("invalid-url", "services.send.url")}


@pytest.mark.parametrize("key", [i.key for i in describe_keys() if i.kind is KeyKind.URL])
def test_credentials_in_a_url_are_refused_and_not_shown(errors: Errors, key: Any) -> None:
    found = errors(MINIMAL, overrides=[f"{key}=https://user:hunter2@h.example/fhir"])
    assert ("url-credentials", key) in found


def test_a_download_url_keeps_its_query_but_does_not_show_it(load: Load) -> None:
    loaded = load(MINIMAL, env={"APP_SERVICES_HTTP_IMPORT_URLS": "http://h.example/x?sig=hunter2"})
    assert loaded.config.services.http_import.urls == ("http://h.example/x?sig=hunter2",)
    assert "hunter2" not in repr(loaded) + str(loaded.effective())


def test_control_characters_are_refused(errors: Errors) -> None:
    env = {"APP_SERVICES_SEND_AUTH_API_KEY": "hunter2\n", "APP_JOBS_DIR": "a\0b"}
    found = errors(MINIMAL, env=env)
    assert set(found) == {("control-character", "services.send.auth.api_key"), ("control-character", "jobs_dir")}


@pytest.mark.parametrize("level", ["fastest", "default", "better", "best"])
def test_compression_levels(load: Load, level: Any) -> None:
    assert load(MINIMAL, overrides=[f"compression.level={level}"]).config.compression.level == level


def test_the_only_format_is_csv(errors: Errors) -> None:
    key = "services.flattening.formats"
    assert ("invalid-choice", f"{key}[1]") in errors(MINIMAL, overrides=[f"{key}=csv,parquet"])
    assert ("invalid-choice", f"{key}[1]") in errors(MINIMAL, overrides=[f"{key}=csv,xlsx"])
    assert ("out-of-range", key) in errors(MINIMAL, overrides=[f"{key}=[]"])
