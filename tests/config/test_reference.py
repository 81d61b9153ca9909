"""Reference page, JSON Schema and example of the configuration are current."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import trustme
import yaml

import config
from config import STEPS, describe_keys, load_config
from config.deprecated import DEPRECATED
from config.keys import blocks
from config.reference import json_schema, render, render_schema
from config.template import example as entries
from config.template import render_example
from tests.config.conftest import MINIMAL, Load

HERE = Path(config.__file__).parent
PAGE = HERE.parent / "docs" / "configuration.md"
EXAMPLE = HERE / "example.yaml"


def example(*, without: tuple[str, ...] = ()) -> str:
    """Return the example with every key switched on, except those whose line matches one of ``without``."""
    lines = [re.sub(r"^(\s*)#(?=[a-z-])", r"\1", line) for line in EXAMPLE.read_text().splitlines()]
    return "\n".join(line for line in lines if not any(re.match(rf"\s*{name}:", line) for name in without))


def leaf_paths(tree: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, value in tree.items():
        path = f"{prefix}{name}"
        found |= leaf_paths(value, f"{path}.") if path in blocks() and value is not None else {path}
    return found


class TestReferencePage:
    def test_it_is_current(self) -> None:
        assert PAGE.read_text(encoding="utf-8") == render(), "python -m config.reference > docs/configuration.md"

    def test_every_key_variable_step_and_deprecated_key_is_on_it(self) -> None:
        page = render()
        for info in describe_keys():
            assert f"`{info.key}`" in page
            assert f"`{info.env}`" in page
            assert info.description
        for name in (*DEPRECATED, *STEPS):
            assert f"`{name}`" in page


class TestSchema:
    def test_it_is_current_and_valid(self) -> None:
        path = HERE / "pipeline.schema.json"
        assert path.read_text(encoding="utf-8") == render_schema(), (
            "python -m config.reference schema > config/pipeline.schema.json"
        )
        jsonschema.Draft202012Validator.check_schema(json_schema())
        assert json.loads(path.read_text()) == json_schema()

    def test_it_describes_every_key(self) -> None:
        for info in describe_keys():
            here = json_schema()
            for name in info.key.split("."):
                here = here["properties"][name]
            assert here["description"].startswith(info.description)

    @pytest.mark.slow
    def test_the_example_follows_it_with_every_key_switched_on(self) -> None:
        for text in (EXAMPLE.read_text(), example()):
            jsonschema.validate(yaml.safe_load(text), json_schema())

    @pytest.mark.parametrize(
        "text",
        [
            "retry: {max_attempts: '${N}'}",
            "services: {extractor: {download_stall_timeout: 0, request_timeout: 1h30m}}",
            "services: {extractor: {username: u, password: p, polling_interval_seconds: 5}}",
            "services: {send: {transfer: {project_identifier: 0815}}}",
            "services:",
        ],
    )
    def test_it_accepts_what_the_loader_accepts(self, load: Load, text: str) -> None:
        load(MINIMAL + text, env={"N": "3"})
        jsonschema.validate(yaml.safe_load(MINIMAL + text), json_schema())

    @pytest.mark.parametrize(
        "text",
        [
            "retry: {max_attempts: 11}",
            "retry: {max_attempts: many}",
            "retries: {}",
            "compression: {level: good}",
            "services: {extractor: {polling_interval: 5}}",
            "services: {extractor: {polling_interval: P1W}}",
            "services: {crtdl_preprocessing: {enrichments: [{attributes_to_add: []}]}}",
        ],
    )
    def test_it_refuses_what_the_loader_refuses(self, text: str) -> None:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(MINIMAL + text), json_schema())


VARIABLES = {name: f"value-of-{name}" for name in re.findall(r"\$\{(\w+)\}", EXAMPLE.read_text())}
BASIC, OAUTH = ("username", "password"), ("oauth_issuer_uri", "oauth_client_id", "oauth_client_secret")


class TestExample:
    def test_it_is_current(self) -> None:
        assert EXAMPLE.read_text(encoding="utf-8") == render_example(), (
            "python -m config.template > config/example.yaml"
        )

    def test_it_loads_as_it_is(self) -> None:
        loaded = load_config(EXAMPLE, environ=VARIABLES)
        assert loaded.warnings == ()
        assert loaded.config.services.extractor.auth.scheme == "basic"
        assert loaded.config.services.send.auth.scheme == "basic"

    def test_it_holds_every_key_and_the_keys_of_a_rule(self) -> None:
        tree = yaml.safe_load(example())
        assert leaf_paths(tree) == {info.key for info in describe_keys()}
        (rule,) = tree["services"]["crtdl_preprocessing"]["enrichments"]
        assert set(rule) == {"group_reference", "create_if_not_exists", "attributes_to_add"}
        assert set(rule["attributes_to_add"][0]) == {"attribute_ref", "must_have", "linked_groups"}

    @pytest.mark.parametrize("other_auth", [BASIC, OAUTH])
    def test_every_key_of_it_loads_with_one_of_two_alternatives(
        self, load: Load, tmp_path: Path, other_auth: tuple[str, ...]
    ) -> None:
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        loaded = load(
            example(without=(*other_auth, "enrichments_path")), env=VARIABLES | {"CA_BUNDLE": str(tmp_path / "ca.pem")}
        )
        assert loaded.warnings == ()

    def test_switched_off_keys_show_their_defaults_where_they_have_one(self) -> None:
        switched = {"services.crtdl_preprocessing.enabled"}
        tree = yaml.safe_load(example())
        for info in describe_keys():
            here: Any = tree
            for name in info.key.split("."):
                here = here[name]
            if info.default_text and info.kind.value in {"int", "bool", "duration"} and info.key not in switched:
                assert str(here).lower() == info.default_text.lower(), info.key

    def test_every_key_and_block_has_a_comment(self) -> None:
        assert [path for path, entry in entries().items() if path and not entry.said.split(" (step: ")[0]] == []
