"""JSON Schema, key table and example of the configuration are current."""

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
from config import STEPS, load_config
from config.deprecated import DEPRECATED
from config.docs import BEGIN, END, PAGE, SCHEMA, json_schema, key_table
from config.models import blocks, keys
from config.types import shown
from tests.config.conftest import MINIMAL, Load

EXAMPLE = Path(config.__file__).with_name("example.yaml")
VARIABLES = {name: f"value-of-{name}" for name in re.findall(r"\$\{(\w+)\}", EXAMPLE.read_text())}
BASIC, OAUTH = ("username", "password"), ("oauth_issuer_uri", "oauth_client_id", "oauth_client_secret")


def test_schema_and_page_are_current() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == json_schema(), "run python -m config.docs"
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == key_table().strip(), "run python -m config.docs"
    for name in (*keys(), *STEPS):
        assert f"`{name}`" in page
    for name in DEPRECATED:
        assert f"`{name}`" in page or f"`{name.rpartition('.')[2]}`" in page


# --- the schema ---


@pytest.mark.parametrize(
    "text",
    [
        "retry: {max_attempts: '${N}'}",
        "services: {extractor: {download_stall_timeout: 0, request_timeout: 1h30m}}",
        "services: {extractor: {username: u, password: p, polling_interval_seconds: 5}}",
        "services: {send: {transfer: {project_identifier: 0815}, s3: {use_path_style: yes, timeout: P1DT2H}}}",
        "services: {crtdl_preprocessing: {enrichments: [{group_reference: x, attributes_to_add: []}]}}",
        "services: {send: {url: '${N}', auth: ~}}",
        "services:",
    ],
)
def test_the_schema_accepts_what_the_loader_accepts(load: Load, text: str) -> None:
    load(MINIMAL + text.replace("url: '${N}', ", ""), env={"N": "3"})
    jsonschema.validate(yaml.safe_load(MINIMAL + text), json_schema())


@pytest.mark.parametrize(
    "text",
    [
        "retry: {max_attempts: 11}",
        "retry: {max_attempts: many}",
        "services: {validation: {max_concurrent_requests: 0}}",
        "retries: {}",
        "compression: {level: good}",
        "services: {extractor: {polling_interval: 5}}",
        "services: {extractor: {polling_interval: P1W}}",
        "services: {crtdl_preprocessing: {enrichments: [{attributes_to_add: []}]}}",
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(text: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(MINIMAL + text), json_schema())


# --- the example ---


def example(*, without: tuple[str, ...] = ()) -> str:
    """Return the example with every key switched on, except those whose line matches one of ``without``."""
    lines = [re.sub(r"^(\s*)#(?=[a-z-])", r"\1", line) for line in EXAMPLE.read_text().splitlines()]
    return "\n".join(line for line in lines if not any(re.match(rf"\s*{name}:", line) for name in without))


def leaf_paths(tree: Any, prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, below in tree.items():
        path = f"{prefix}{name}"
        found |= leaf_paths(below, f"{path}.") if path in blocks() else {path}
    return found


def test_it_loads_as_it_is() -> None:
    loaded = load_config(EXAMPLE, environ=VARIABLES)
    assert loaded.warnings == ()
    assert {loaded.config.services.extractor.auth.scheme, loaded.config.services.send.auth.scheme} == {"basic"}


def test_it_has_every_key_and_follows_the_schema() -> None:
    tree = yaml.safe_load(example())
    assert leaf_paths(tree) == set(keys())
    (rule,) = tree["services"]["crtdl_preprocessing"]["enrichments"]
    assert set(rule) == {"group_reference", "create_if_not_exists", "attributes_to_add"}
    assert set(rule["attributes_to_add"][0]) == {"attribute_ref", "must_have", "linked_groups"}
    for text in (EXAMPLE.read_text(), example()):
        jsonschema.validate(yaml.safe_load(text), json_schema())


@pytest.mark.parametrize("other_auth", [BASIC, OAUTH])
def test_every_key_of_it_loads_with_one_of_two_alternatives(
    load: Load, tmp_path: Path, other_auth: tuple[str, ...]
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    env = VARIABLES | {"CA_BUNDLE": str(tmp_path / "ca.pem")}
    assert load(example(without=(*other_auth, "enrichments_path")), env=env).warnings == ()


def test_keys_that_are_switched_off_show_their_defaults() -> None:
    tree = yaml.safe_load(example())
    for key, field in keys().items():
        here: Any = tree
        for name in key.split("."):
            here = here[name]
        if isinstance(field.default, int | float) or field.default not in (None, (), ("csv",)):
            text = f"[{', '.join(here)}]" if isinstance(here, list) else str(here)
            if key != "pipeline.enabled_steps":
                assert text.lower() == shown(field.default).lower(), key
