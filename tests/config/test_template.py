"""``config init``: a commented configuration with just the blocks that these steps need (4-product.md §2)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from config import describe_keys, load_config
from config.services import SendMode
from config.template import template, to_fill_in, variables

LISTS = [
    [first, *rest]
    for first, count in itertools.product(("extractor", "local_import", "http_import"), range(5))
    for rest in (["pseudonymizer", "wait", "validation", "flattening", "send"][:count], ["send"])
]


@pytest.mark.parametrize("steps", LISTS, ids=" ".join)
def test_it_passes_the_check_once_the_variables_are_set(tmp_path: Path, steps: list[str]) -> None:
    names = list(steps)
    for mode in SendMode:
        path = tmp_path / f"{mode}.yaml"
        text = template(names, mode=mode)
        path.write_text(text)
        loaded = load_config(path, environ=dict.fromkeys(variables(text), "x"))
        assert loaded.config.pipeline.enabled_steps == tuple(names)
        if "send" in steps:
            assert loaded.config.services.send.send_as is mode
        given = {row.key for row in loaded.effective() if row.source != "default"}
        assert set(to_fill_in(names, mode)) <= given


def test_the_template_has_only_the_keys_of_its_steps_and_a_variable_per_secret() -> None:
    text = template(["http_import", "pseudonymizer", "send"])
    blocks = re.findall(r"^  (\w+):", text, re.MULTILINE)
    assert blocks == ["http_import", "pseudonymizer", "send", "enabled_steps"]
    for key in describe_keys():
        service = key.key.split(".")[1] if key.key.startswith("services.") else None
        if service in {"pseudonymizer", "send", "http_import"}:
            assert re.search(rf"^ *#?{key.key.rpartition('.')[2]}:", text, re.MULTILINE), key.key
    secrets = {key.key.rpartition(".")[2] for key in describe_keys() if key.secret}
    written = re.findall(rf"^ *#?(?:{'|'.join(secrets)}): (.*)$", text, re.MULTILINE)
    assert written
    assert all(re.fullmatch(r"\$\{[A-Z0-9_]+\}", value) for value in written)


def test_values_take_the_place_of_the_examples_and_are_safe_in_yaml(tmp_path: Path) -> None:
    values = {
        "services.local_import.dir": "my data: #1", "services.send.url": "https://fhir.example/a",
        "services.send.auth.username": "on",
    }  # fmt: skip
    text = template(["local_import", "send"], values=values)
    (tmp_path / "c.yaml").write_text(text)
    services = load_config(tmp_path / "c.yaml", environ={"SEND_PASSWORD": "x"}).config.services
    assert services.local_import.dir == Path("my data: #1")
    assert (services.send.url, services.send.auth.username) == ("https://fhir.example/a", "on")


def test_a_list_stays_one(tmp_path: Path) -> None:
    values = {"services.http_import.urls": "https://a.example/x.ndjson, https://b.example/y.ndjson"}
    text = template(["http_import"], values=values)
    (tmp_path / "c.yaml").write_text(text)
    found = load_config(tmp_path / "c.yaml", environ={}).config.services.http_import.urls
    assert found == ("https://a.example/x.ndjson", "https://b.example/y.ndjson")
