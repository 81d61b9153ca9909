"""Document 1, "Authentication", rule by rule, and the deprecated flat keys."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from config import AuthConfig
from config.keys import env_name
from tests.config.conftest import Errors, Load, Loader

BLOCKS = ["services.extractor.auth", "services.pseudonymizer.auth", "services.send.auth"]
BASIC = {"username": "u", "password": "hunter2"}
OAUTH = {"oauth_issuer_uri": "https://login.example/realms/x", "oauth_client_id": "c", "oauth_client_secret": "hunter2"}


def text(block: str, auth: dict[str, Any]) -> str:
    _, service, _ = block.split(".")
    return yaml.safe_dump({"pipeline": {"enabled_steps": ["local_import"]}, "services": {service: {"auth": auth}}})


def auth_of(loaded: Any, block: str) -> AuthConfig:
    found: AuthConfig = getattr(loaded.config.services, block.split(".")[1]).auth
    return found


@pytest.mark.parametrize("block", BLOCKS)
class TestEveryBlock:
    def test_no_auth_is_allowed(self, load: Load, block: Any) -> None:
        assert auth_of(load(text(block, {})), block).scheme == "none"

    def test_basic(self, load: Load, block: Any) -> None:
        auth = auth_of(load(text(block, BASIC)), block)
        assert auth.scheme == "basic"
        assert auth.password is not None
        assert auth.password.get_secret_value() == "hunter2"

    def test_oauth(self, load: Load, block: Any) -> None:
        assert auth_of(load(text(block, OAUTH)), block).scheme == "oauth2"

    @pytest.mark.parametrize("basic", [BASIC, {"username": "u"}, {"password": "hunter2"}])
    @pytest.mark.parametrize("oauth", [OAUTH, {"oauth_client_id": "c"}])
    def test_rule_1_both_schemes_are_rejected(self, errors: Errors, block: Any, basic: Any, oauth: Any) -> None:
        found = errors(text(block, basic | oauth))
        assert set(found) == {("auth-both-schemes", block)}

    @pytest.mark.parametrize("missing", [*BASIC, *OAUTH])
    def test_rule_3_an_incomplete_set_is_rejected_and_names_what_lacks(
        self, errors: Errors, block: Any, missing: Any
    ) -> None:
        fields = BASIC if missing in BASIC else OAUTH
        found = errors(text(block, {k: v for k, v in fields.items() if k != missing}))
        assert set(found) == {("auth-incomplete", block)}
        finding = found["auth-incomplete", block]
        assert finding.message.endswith(missing)
        assert env_name(f"{block}.{missing}") in (finding.hint or "")

    @pytest.mark.parametrize("fields", [{}, BASIC, OAUTH])
    def test_rule_4_the_api_key_goes_with_either(self, load: Load, block: Any, fields: Any) -> None:
        auth = auth_of(load(text(block, {"api_key": "k"} | fields)), block)
        assert auth.api_key is not None
        assert auth.api_key_header == "x-api-key"

    @pytest.mark.parametrize("header", ["Authorization", "authorization", "AUTHORIZATION"])
    def test_rule_5_authorization_may_carry_the_key_alone(self, loader: Loader, block: Any, header: Any) -> None:
        alone = {"api_key": "k", "api_key_header": header}
        assert auth_of(loader.load(text(block, alone)), block).api_key_header == header
        for other in (BASIC, OAUTH):
            assert set(loader.errors(text(block, alone | other))) == {("auth-authorization-twice", block)}

    @pytest.mark.parametrize("header", ["x api key", "x:key", "schlüssel", "(x)", "Host", "content-length"])
    def test_rule_5_the_header_name_must_be_valid(self, errors: Errors, block: Any, header: Any) -> None:
        found = errors(text(block, {"api_key": "k", "api_key_header": header}))
        assert set(found) == {("invalid-header-name", f"{block}.api_key_header")}


def test_a_user_name_with_a_colon_is_rejected(errors: Errors) -> None:
    found = errors(text(BLOCKS[0], BASIC | {"username": "a:b"}))
    assert set(found) == {("invalid-username", "services.extractor.auth.username")}


S3 = {"bucket": "b", "region": "r", "access_key_id": "a", "secret_access_key": "s"}


def test_rule_7_s3_upload_uses_only_basic_auth_and_warns_of_the_rest(load: Load) -> None:
    def loaded(auth: dict[str, str]) -> Any:
        send = {"send_as": "s3_upload", "s3": S3, "auth": auth}
        return load(
            yaml.safe_dump({"pipeline": {"enabled_steps": ["local_import", "send"]}, "services": {"send": send}})
        )

    assert loaded({}).warnings == loaded(BASIC).warnings == ()
    keys = {(w.reference, w.key) for w in loaded(BASIC | {"api_key": "k"}).warnings}
    assert keys == {("auth-ignored", "services.send.auth.api_key")}
    assert {w.reference for w in loaded(OAUTH).warnings} == {"auth-ignored"}


# --- the deprecated flat keys ---


def flat(fields: dict[str, Any]) -> str:
    return yaml.safe_dump({"pipeline": {"enabled_steps": ["local_import"]}, "services": {"extractor": fields}})


@pytest.mark.parametrize("fields", [BASIC, OAUTH])
def test_flat_extractor_keys_are_accepted_with_a_warning(load: Load, fields: Any) -> None:
    loaded = load(flat(fields))
    assert loaded.config == load(text(BLOCKS[0], fields)).config
    loaded = load(flat(fields))
    assert {(w.reference, w.key) for w in loaded.warnings} == {
        ("deprecated-key", f"services.extractor.{name}") for name in fields
    }
    assert all(f"services.extractor.auth.{w.key.rpartition('.')[2]}" in (w.hint or "") for w in loaded.warnings)


def test_their_environment_names_too(load: Load) -> None:
    env = {"APP_SERVICES_EXTRACTOR_USERNAME": "u", "APP_SERVICES_EXTRACTOR_PASSWORD": "hunter2"}
    loaded = load(flat({}), env=env)
    assert loaded.config.services.extractor.auth.scheme == "basic"
    assert len(loaded.warnings) == 2
    assert "hunter2" not in str(loaded.warnings) + repr(loaded) + str(loaded.effective())


@pytest.mark.parametrize(
    ("fields", "env", "override", "reference", "key"),
    [
        (BASIC | {"auth": {"api_key": "k"}}, {}, "", "auth-flat-and-block", "auth"),
        (BASIC | {"auth": BASIC}, {}, "", "auth-flat-and-block", "auth"),
        (BASIC, {"APP_SERVICES_EXTRACTOR_AUTH_USERNAME": "v"}, "", "auth-flat-and-block", "auth"),
        ({"username": "u"}, {}, "", "auth-incomplete", "auth"),
        ({"username": "u"}, {}, "services.extractor.password=hunter2", "secret-on-command-line", "password"),
    ],
)
def test_flat_keys_follow_the_rules_of_the_block_and_do_not_go_with_it(
    errors: Errors, fields: Any, env: dict[str, str], override: str, reference: str, key: str
) -> None:
    found = errors(flat(fields), env=env, overrides=[override] if override else [])
    assert set(found) == {(reference, f"services.extractor.{key}")}


# --- the older integer keys ---


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("extraction_timeout_minutes", "extraction_timeout", "PT7M"),
        ("polling_interval_seconds", "polling_interval", "PT7S"),
        ("max_polling_interval_seconds", "max_polling_interval", "PT7S"),
    ],
)
class TestOlderIntegerKeys:
    def test_accepted_with_a_warning(self, load: Load, old: Any, new: Any, shown: Any) -> None:
        for loaded in (load(flat({old: 7})), load(flat({}), env={env_name(f"services.extractor.{old}"): "7"})):
            effective = {e.key: e for e in loaded.effective()}[f"services.extractor.{new}"]
            assert effective.value == shown
            assert f"(services.extractor.{old})" in effective.source
            assert [(w.reference, w.key) for w in loaded.warnings] == [("deprecated-key", f"services.extractor.{old}")]

    def test_together_with_the_new_form_an_error(self, errors: Errors, old: Any, new: Any, shown: Any) -> None:
        found = errors(flat({old: 7}), env={env_name(f"services.extractor.{new}"): shown})
        assert set(found) == {("deprecated-and-current", f"services.extractor.{old}")}

    @pytest.mark.parametrize("value", ["PT7S", 0, -1, True, 99999999999])
    def test_a_bad_value_is_an_error_at_the_key_as_written(
        self, errors: Errors, old: Any, new: Any, shown: Any, value: Any
    ) -> None:
        assert {key for _, key in errors(flat({old: value}))} == {f"services.extractor.{old}"}


def test_an_unset_variable_in_an_older_key_counts_only_for_an_enabled_step(load: Load, errors: Errors) -> None:
    fields = {"extraction_timeout_minutes": "${X}", "base_url": "http://h"}
    assert load(flat(fields))
    enabled = flat(fields).replace("local_import", "extractor")
    assert set(errors(enabled)) == {("unset-variable", "services.extractor.extraction_timeout_minutes")}


def test_a_key_that_nothing_replaces_is_accepted_and_has_no_effect(load: Load, errors: Errors) -> None:
    key = "pipeline.max_ndjson_line_size_mb"
    steps = "pipeline: {enabled_steps: [local_import], max_ndjson_line_size_mb: %s}"
    for value in (0, 100):
        (warning,) = load(steps % value).warnings
        assert (warning.reference, warning.key) == ("deprecated-key", key)
        assert warning.hint is not None
        assert warning.hint.startswith("remove it: ")
    for bad in ("-1", "big"):
        assert {found for _, found in errors(steps % bad)} == {key}
