"""Keys of earlier shapes: accepted with a warning, refused beside the new form."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from config.models import variable
from tests.config.conftest import MINIMAL, Errors, Load

EXTRACTOR = "services.extractor"
BASIC = {"username": "u", "password": "hunter2"}
OAUTH = {"oauth_issuer_uri": "https://login.example", "oauth_client_id": "c", "oauth_client_secret": "hunter2"}


def text(fields: dict[str, Any], steps: str = "local_import") -> str:
    return yaml.safe_dump({"pipeline": {"enabled_steps": [steps]}, "services": {"extractor": fields}})


@pytest.mark.parametrize("fields", [BASIC, OAUTH])
def test_flat_auth_keys_are_accepted_with_a_warning(load: Load, fields: dict[str, str]) -> None:
    wanted = load(text({"auth": fields})).config
    variables = {variable(f"{EXTRACTOR}.{name}"): one for name, one in fields.items()}
    for loaded in (load(text(fields)), load(text({}), env=variables)):
        assert loaded.config == wanted
        assert {(one.reference, one.key) for one in loaded.warnings} == {
            ("deprecated-key", f"{EXTRACTOR}.{name}") for name in fields
        }
        assert all(one.hint == f"use {EXTRACTOR}.auth.{one.key.rpartition('.')[2]}" for one in loaded.warnings)
        assert "hunter2" not in str(loaded.warnings) + repr(loaded) + str(list(loaded.effective()))


@pytest.mark.parametrize(
    ("fields", "env", "override", "expected"),
    [
        (BASIC | {"auth": {"api_key": "k"}}, {}, "", ("auth-flat-and-block", "auth")),
        (BASIC | {"auth": BASIC}, {}, "", ("auth-flat-and-block", "auth")),
        (BASIC, {"APP_SERVICES_EXTRACTOR_AUTH_USERNAME": "v"}, "", ("auth-flat-and-block", "auth")),
        ({"username": "u"}, {}, "", ("auth-incomplete", "auth")),
        (BASIC | OAUTH, {}, "", ("auth-both-schemes", "auth")),
        ({"username": "u"}, {}, "password=hunter2", ("secret-on-command-line", "password")),
    ],
)
def test_flat_auth_keys_follow_the_rules_of_the_block_and_do_not_go_with_it(
    errors: Errors, fields: dict[str, Any], env: dict[str, str], override: str, expected: tuple[str, str]
) -> None:
    found = errors(text(fields), env=env, overrides=[f"{EXTRACTOR}.{override}"] if override else [])
    assert set(found) == {(expected[0], f"{EXTRACTOR}.{expected[1]}")}


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("extraction_timeout_minutes", "extraction_timeout", "PT7M"),
        ("polling_interval_seconds", "polling_interval", "PT7S"),
        ("max_polling_interval_seconds", "max_polling_interval", "PT7S"),
    ],
)
class TestIntegerKeys:
    def test_accepted_with_a_warning(self, load: Load, old: str, new: str, shown: str) -> None:
        given = {"file": text({old: 7}), "variable": {variable(f"{EXTRACTOR}.{old}"): "07"}}
        for loaded in (load(given["file"]), load(MINIMAL, env=given["variable"])):
            (row,) = (row for row in loaded.effective() if row[0] == f"{EXTRACTOR}.{new}")
            assert row[1] == shown
            assert row[2].endswith(f", as {old}")
            assert [(one.reference, one.key) for one in loaded.warnings] == [("deprecated-key", f"{EXTRACTOR}.{old}")]

    def test_together_with_the_new_form_an_error(self, errors: Errors, old: str, new: str, shown: str) -> None:
        found = errors(text({old: 7}), env={variable(f"{EXTRACTOR}.{new}"): shown})
        assert set(found) == {("deprecated-and-current", f"{EXTRACTOR}.{old}")}

    @pytest.mark.parametrize("bad", ["PT7S", 0, -1, True, 99999999999])
    def test_a_bad_value_names_the_key_as_written(
        self, errors: Errors, old: str, new: str, shown: str, bad: Any
    ) -> None:
        (finding,) = errors(text({old: bad})).values()
        assert finding.key == f"{EXTRACTOR}.{new}"
        assert finding.where
        assert finding.where.endswith(f", as {old}")


def test_an_unset_variable_in_an_older_key_counts_only_for_an_enabled_step(load: Load, errors: Errors) -> None:
    fields = {"extraction_timeout_minutes": "${X}", "base_url": "http://h"}
    assert load(text(fields))
    found = errors(text(fields, "extractor"))
    assert set(found) == {("unset-variable", f"{EXTRACTOR}.extraction_timeout_minutes")}
    assert load(text(fields, "extractor"), env={"X": "5"}).config.services.extractor.extraction_timeout.seconds == 300


def test_the_size_of_a_line_is_accepted_with_a_warning_and_zero_is_the_default(load: Load, errors: Errors) -> None:
    key = "pipeline.max_ndjson_line_size_mb"
    in_file = load("pipeline: {enabled_steps: [local_import], max_ndjson_line_size_mb: 100}")
    for loaded in (in_file, load(MINIMAL, overrides=[f"{key}=100"]), load(MINIMAL, env={variable(key): "100"})):
        assert [(one.reference, one.key) for one in loaded.warnings] == [("deprecated-key", key)]
        assert loaded.config.limits.max_line_mb == 100
    assert load(MINIMAL, overrides=[f"{key}=0"]).config.limits.max_line_mb == 512
    found = errors(MINIMAL + "limits: {max_line_mb: 5}", overrides=[f"{key}=100"])
    assert set(found) == {("deprecated-and-current", key)}
    assert set(errors(MINIMAL, overrides=[f"{key}=-1"])) == {("out-of-range", "limits.max_line_mb")}
