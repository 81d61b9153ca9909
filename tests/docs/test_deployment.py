"""The files that the deployment page shows: their keys are those that compose, Prefect and the units know."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PageBlock, example, read
from tests.docs.references import ROOT

DATABASE = "PREFECT_SERVER_DATABASE_"


def keys(block: PageBlock) -> list[str]:
    return [line.partition("=")[0] for line in block.text.splitlines()]


def test_the_file_of_secrets_has_what_the_compose_file_does_not_start_without() -> None:
    needed = set(re.findall(r"\$\{(\w+):\?", read(ROOT / "deployments/compose.yaml")))
    assert set(keys(example("docs/deployment.md", "SLUICE_API_AUTH=sluice:"))) == needed


@pytest.mark.parametrize(
    "block",
    [
        example("docs/deployment.md", "PREFECT_SERVER_API_AUTH_STRING=sluice:"),
        example("docs/deployment.md", "PREFECT_API_URL="),
    ],
    ids=str,
)
def test_a_file_of_settings_has_settings_of_prefect_and_keys_of_the_configuration(block: PageBlock) -> None:
    from prefect.settings import Settings

    for key in keys(block):
        if key.startswith("APP_"):
            assert f"`{key}`" in read(ROOT / "docs/configuration.md")
            continue
        level = Settings
        words = key.removeprefix("PREFECT_").lower()
        while words not in level.model_fields:
            (name,) = (one for one in level.model_fields if words.startswith(f"{one}_"))
            words = words.removeprefix(f"{name}_")
            level = level.model_fields[name].annotation  # type: ignore[assignment]


def test_the_lines_of_the_database_are_as_many_as_the_page_says() -> None:
    named = keys(example("docs/deployment.md", "PREFECT_SERVER_API_AUTH_STRING=sluice:"))
    assert sum(key.startswith(DATABASE) for key in named) == 6
    assert "Without the six lines of the database" in read(ROOT / "docs/deployment.md")


@pytest.mark.parametrize("name", ["server", "worker"])
def test_the_units_read_the_files_that_the_page_names(name: str) -> None:
    assert f"EnvironmentFile=/etc/sluice/{name}.env" in read(ROOT / f"deployments/systemd/sluice-{name}.service")
    assert f"`/etc/sluice/{name}.env`" in read(ROOT / "docs/deployment.md")
