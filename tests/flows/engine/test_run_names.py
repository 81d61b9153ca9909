"""Detection of run names that a person typed (issue 16, number 7)."""

import pytest
from prefect.utilities.names import generate_slug

from flows.engine.flow_runs import is_made_up


def test_every_name_that_prefect_s_server_makes_up_is_one() -> None:
    assert [name for name in (generate_slug(2) for _ in range(100)) if not is_made_up(name)] == []


@pytest.mark.parametrize("name", ["alpha4-andromedae", "gamma-canis-majoris-prime", "nu62-ikeda", "beta-rigel-cloud"])
def test_so_is_every_star_that_the_ui_s_form_makes_up(name: str) -> None:
    assert is_made_up(name)


@pytest.mark.parametrize(
    "name",
    ["heart-study", "beta-blocker-study", "beta2-microglobulin", "Run 3", "config 2026-11-23 02:59", ""],
)
def test_what_somebody_typed_is_none(name: str) -> None:
    assert not is_made_up(name)
