"""Every key: its default, what it accepts and refuses, in each of the three sources."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from config import PipelineConfig
from config.models import is_secret, keys, variable
from tests.config.conftest import MINIMAL, Errors, Load, Loader, value, written

S, M = timedelta(seconds=1), timedelta(minutes=1)

INTEGER = {"many": "wrong-type", "1.5": "wrong-type", "1_0": "wrong-type", "0x3": "wrong-type", "1:5": "wrong-type"}
TRUTH = {"maybe": "wrong-type", "2": "wrong-type"}
LENGTH = {"30": "invalid-duration", "P1W": "invalid-duration", "soon": "invalid-duration", "-PT1S": "invalid-duration"}
TIMEOUT = LENGTH | {"PT0S": "out-of-range", "0s": "out-of-range"}
ADDRESS = {
    "h.example": "invalid-url",
    "ftp://h.example": "invalid-url",
    "http://": "invalid-url",
    "http://h:0": "invalid-url",
    "http://h/?q=1": "invalid-url",
    "http://h/#x": "invalid-url",
    "https://user:hunter2@h.example": "url-credentials",
}
ROOT = ADDRESS | {"http://h.example/fhir": "url-ends-in-fhir", "http://h.example/base/fhir/": "url-ends-in-fhir"}
ANY = {"a: b": "a: b", "0815": "0815", "true": "true", "x # y": "x # y"}

WHOLE = {"010": 10, "7": 7, "+7": 7}
FROM_ONE = INTEGER | {"0": "out-of-range", "-1": "out-of-range"}
TRUTHS = {"true": True, "YES": True, "on": True, "1": True, "false": False, "No": False, "off": False, "0": False}
LENGTHS = {"PT7S": 7 * S, "1h30m": 90 * M, "1500ms": 1.5 * S, "P1DT2H": 26 * 60 * M}
HTTP = {"https://h.example:8443/base/": "https://h.example:8443/base", "http://fhir": "http://fhir"}

Row = tuple[Any, dict[str, Any], dict[str, str]]

AUTH: dict[str, Row] = {
    "username": (None, {}, {}),
    "password": (None, {}, {}),
    "oauth_issuer_uri": (None, {}, ADDRESS),
    "oauth_client_id": (None, {}, {}),
    "oauth_client_secret": (None, {}, {}),
    "api_key": (None, {"s3 cret$x": "s3 cret$x"}, {}),
    "api_key_header": (
        "x-api-key",
        {"X-Key": "X-Key", "Authorization": "Authorization"},
        {"x api": "invalid-header-name", "x:key": "invalid-header-name", "schlüssel": "invalid-header-name"},
    ),
}

KEYS: dict[str, Row] = {
    "services.extractor.base_url": (None, HTTP, ROOT),
    "services.extractor.extraction_timeout": (30 * M, LENGTHS, TIMEOUT),
    "services.extractor.polling_interval": (5 * S, {"PT1S": S}, LENGTH | {"PT0.999S": "out-of-range"}),
    "services.extractor.max_polling_interval": (30 * S, {"PT5S": 5 * S}, LENGTH | {"PT4S": "polling-order"}),
    "services.extractor.file_ready_retries": (10, WHOLE | {"0": 0, "-1": -1}, INTEGER),
    "services.extractor.file_ready_interval": (10 * S, LENGTHS | {"PT0S": 0 * S}, LENGTH),
    "services.extractor.download_stall_timeout": (M, LENGTHS | {"0": M, "PT0S": M, "0s": M}, LENGTH),
    "services.extractor.max_concurrent_downloads": (4, WHOLE, FROM_ONE),
    "services.extractor.request_timeout": (M, LENGTHS, TIMEOUT),
    "services.pseudonymizer.url": (None, HTTP, ROOT),
    "services.pseudonymizer.bundle_split_threshold_mb": (10, {"1": 1, "100": 100}, FROM_ONE | {"101": "out-of-range"}),
    "services.pseudonymizer.timeout": (30 * S, LENGTHS, TIMEOUT),
    "services.pseudonymizer.max_concurrent_requests": (4, WHOLE, FROM_ONE),
    "services.pseudonymizer.anonymization_config": (None, {"a b.yaml": Path("a b.yaml")}, {}),
    "services.pseudonymizer.residual_identifiers": ("stop", {"warn": "warn"}, {"ignore": "invalid-choice"}),
    "services.pseudonymizer.kept_identifiers": ((), {"a, b ,c": ("a", "b", "c")}, {}),
    "services.flattening.service_url": (None, HTTP, ROOT),
    "services.flattening.lookup_path": (None, {"/x/lookup.json": Path("/x/lookup.json")}, {}),
    "services.flattening.formats": (("csv",), {"csv": ("csv",)}, {"[]": "out-of-range"}),
    "services.flattening.timeout": (30 * M, LENGTHS | {"30m": 30 * M}, TIMEOUT),
    "services.flattening.batch_size_mb": (500, WHOLE | {"0": 500}, INTEGER | {"-1": "out-of-range"}),
    "services.send.send_as": (
        None,
        {one: one for one in ("direct_resource_load", "transfer_load", "s3_upload")},
        {"by_mail": "invalid-choice"},
    ),
    "services.send.url": (None, HTTP, ROOT),
    "services.send.batch_size": (
        100,
        {"0": 100, "1": 1, "1000": 1000},
        INTEGER | {"-1": "out-of-range", "1001": "out-of-range"},
    ),
    "services.send.max_concurrent_requests": (2, WHOLE, FROM_ONE),
    "services.send.timeout": (5 * M, LENGTHS, TIMEOUT),
    "services.send.transfer.project_identifier": (None, ANY, {}),
    "services.send.transfer.organization_identifier": (None, ANY, {}),
    "services.send.s3.bucket": (None, ANY, {}),
    "services.send.s3.region": (None, ANY, {}),
    "services.send.s3.access_key_id": (None, ANY, {}),
    "services.send.s3.secret_access_key": (None, {"s3cret": "s3cret"}, {}),
    "services.send.s3.endpoint": (None, HTTP, ADDRESS),
    "services.send.s3.use_path_style": (False, TRUTHS, TRUTH),
    "services.send.s3.timeout": (30 * M, LENGTHS, TIMEOUT),
    "services.send.s3.prefix": (None, ANY, {}),
    "services.validation.url": (None, HTTP | {"http://v/fhir/$validate": "http://v/fhir/$validate"}, ADDRESS),
    "services.validation.max_concurrent_requests": (4, WHOLE, FROM_ONE),
    "services.validation.bundle_chunk_size_mb": (10, WHOLE, FROM_ONE),
    "services.validation.fail_on_error": (True, TRUTHS, TRUTH),
    "services.local_import.dir": (None, {"a b/c": Path("a b/c"), "a=b": Path("a=b")}, {}),
    "services.local_import.recursive": (False, TRUTHS, TRUTH),
    "services.http_import.urls": (
        (),
        {"https://a/x?code=8867-4,https://b/y": ("https://a/x?code=8867-4", "https://b/y")},
        {},
    ),
    "services.http_import.stall_timeout": (M, LENGTHS | {"0": M}, LENGTH),
    "services.crtdl_preprocessing.enabled": (False, TRUTHS, TRUTH),
    "services.crtdl_preprocessing.enrichments_path": (None, {"/x/e.json": Path("/x/e.json")}, {}),
    "services.crtdl_preprocessing.enrichments": (None, {}, {}),
    "pipeline.enabled_steps": ((), {"local_import , wait,": ("local_import", "wait")}, {}),
    "pipeline.parts": (1, {"1": 1, "16": 16}, FROM_ONE),
    "pipeline.dask_address": (
        None,
        {"tls://host.example:8786": "tls://host.example:8786"},
        {},
    ),
    "retry.max_attempts": (5, {"1": 1, "010": 10}, FROM_ONE | {"11": "out-of-range"}),
    "retry.initial_backoff_ms": (1000, WHOLE | {"0": 0}, INTEGER | {"-1": "out-of-range"}),
    "retry.max_backoff_ms": (30000, WHOLE | {"0": 0}, INTEGER | {"-1": "out-of-range", "9999999999": "wrong-type"}),
    "tls.ca_cert_path": (None, {"/x/ca.pem": Path("/x/ca.pem")}, {}),
    "tls.insecure_skip_verify": (False, TRUTHS, TRUTH),
    "compression.enabled": (True, TRUTHS, TRUTH),
    "compression.level": (
        "default",
        {one: one for one in ("fastest", "default", "better", "best")},
        {"good": "invalid-choice", "BEST": "invalid-choice"},
    ),
    "limits.max_line_mb": (512, {"1": 1, "4096": 4096}, FROM_ONE | {"4097": "out-of-range"}),
    "report.enabled": (True, TRUTHS, TRUTH),
    "report.k": (5, {"3": 3, "20": 20}, INTEGER | {"2": "out-of-range", "21": "out-of-range"}),
    "report.language": ("en", {"de": "de"}, {"fr": "invalid-choice"}),
    "report.quasi_identifiers": (
        ("Patient.birthDate", "Patient.gender", "Patient.address.postalCode"),
        {"Patient.gender": ("Patient.gender",)},
        {},
    ),
    "report.region_prefix": (2, {"0": 0, "10": 10}, INTEGER | {"11": "out-of-range"}),
    "report.purpose": (None, ANY, {}),
    "report.legal_basis": (None, ANY, {}),
    "report.recipient": (None, ANY, {}),
    "report.retention": (None, ANY, {}),
    "report.contact": (None, ANY, {}),
    "report.on_stop": ("tell", {"fail": "fail"}, {"ask": "invalid-choice"}),
    "jobs_dir": (Path("jobs"), {"/data/jobs": Path("/data/jobs")}, {}),
} | {f"services.{s}.auth.{name}": row for s in ("extractor", "pseudonymizer", "send") for name, row in AUTH.items()}
"""Of each key: its default, texts that it accepts with their values, and texts that it refuses with the reference."""

SOURCES = ("file", "environment", "flag")


def given_by(key: str, text: str, source: str) -> dict[str, Any]:
    """Return the arguments of a load that takes the value of a key from one source."""
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if source == "file":
        return {"text": written(key, quoted)}
    if source == "environment":
        return {"text": MINIMAL, "env": {variable(key): text}}
    if is_secret(key):
        return {"text": MINIMAL, "env": {"SECRET": text}, "overrides": [f"{key}=${{SECRET}}"]}
    return {"text": MINIMAL, "overrides": [f"{key}={text}"]}


def test_the_keys_are_those_of_the_specification() -> None:
    assert set(keys()) == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_defaults(key: str) -> None:
    assert value(PipelineConfig(), key) == KEYS[key][0]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("key", [key for key, row in KEYS.items() if row[1]])
def test_a_text_means_the_same_in_each_source(load: Load, key: str, source: str) -> None:
    for text, read in KEYS[key][1].items():
        found = value(load(**given_by(key, text, source)).config, key)
        assert (found.get_secret_value() if isinstance(found, SecretStr) else found) == read, text


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("key", [key for key, row in KEYS.items() if row[2]])
def test_a_text_is_refused_in_each_source(errors: Errors, key: str, source: str) -> None:
    place = {"file": ":", "environment": f"environment {variable(key)}", "flag": "--set"}[source]
    for text, reference in KEYS[key][2].items():
        finding = errors(**given_by(key, text, source))[reference, key]
        assert place in (finding.where or "")
        assert reference == "polling-order" or len(text) < 8 or text not in finding.message


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("key", KEYS)
def test_every_key_can_be_set_in_each_source(loader: Loader, key: str, source: str) -> None:
    block, _, name = key.rpartition(".")
    _, accepted, _ = KEYS[key]
    text = next(iter(accepted), "some-text")
    beside: dict[str, str] = {}
    match name:
        case "username" | "password":
            beside = {"username": "u", "password": "p"}
        case "oauth_issuer_uri" | "oauth_client_id" | "oauth_client_secret":
            beside = {"oauth_issuer_uri": "https://l", "oauth_client_id": "c", "oauth_client_secret": "s"}
            text = "https://login.example" if name == "oauth_issuer_uri" else text
        case "enrichments":
            text = "[{group_reference: https://p.example/x}]"
    given = {"text": written(key, text)} if (name, source) == ("enrichments", "file") else given_by(key, text, source)
    env = {variable(f"{block}.{one}"): text for one, text in beside.items() if one != name} | given.pop("env", {})
    loaded = loader.load(env=env, **given)
    (shown,) = (row for row in loaded.effective() if row[0] == key)
    assert shown[1]
    assert (
        shown[2]
        == {
            "file": f"{loader.path}:{key.count('.') + 1}",
            "environment": f"environment {variable(key)}",
            "flag": "--set",
        }[source]
    )


@pytest.mark.parametrize("key", [key for key, row in KEYS.items() if "url-ends-in-fhir" in row[2].values()])
def test_a_url_that_ends_in_fhir_is_shown_without_it(errors: Errors, key: str) -> None:
    url = "https://h.example:8443/base/fhir/"
    assert errors(written(key, url))["url-ends-in-fhir", key].hint == "write https://h.example:8443/base"


def test_variable_names_are_derived_from_the_path_and_unambiguous() -> None:
    assert variable("services.extractor.base_url") == "APP_SERVICES_EXTRACTOR_BASE_URL"
    assert len({variable(key) for key in keys()}) == len(keys())


def test_secrets_are_exactly_the_passwords_and_keys() -> None:
    names = {"password", "oauth_client_secret", "api_key", "secret_access_key"}
    assert {key for key in keys() if is_secret(key)} == {key for key in KEYS if key.rpartition(".")[2] in names}


def test_control_characters_are_refused(errors: Errors) -> None:
    env = {"APP_SERVICES_SEND_AUTH_API_KEY": "hunter2\n", "APP_JOBS_DIR": "a\0b"}
    found = errors(MINIMAL, env=env)
    assert set(found) == {("control-character", "services.send.auth.api_key"), ("control-character", "jobs_dir")}


def test_a_download_url_keeps_its_query_but_does_not_show_it(load: Load) -> None:
    loaded = load(MINIMAL, env={"APP_SERVICES_HTTP_IMPORT_URLS": "http://h.example/x?sig=hunter2"})
    assert loaded.config.services.http_import.urls == ("http://h.example/x?sig=hunter2",)
    assert "hunter2" not in repr(loaded) + str(list(loaded.effective()))
