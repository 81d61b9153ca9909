"""The sandbox's own data is valid and validated fast enough."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from deployments.sandbox.data import DATA
from tests.deployments.sandbox.validation.support import VALIDATOR, findings

FILES = sorted(DATA.glob("*.ndjson"))
LEAST = 200
"""Resources per second of processor time; measured: 3,000."""


def lines(path: Any) -> list[Any]:
    decoder = msgspec.json.Decoder(float_hook=Decimal)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_bundled_data_has_no_finding(path: Any) -> None:
    assert [found for line in lines(path) for found in findings(line)] == []


@pytest.mark.slow
def test_it_validates_at_least_200_resources_a_second() -> None:
    bundles = [line for path in FILES for line in lines(path)]
    for each in bundles:
        VALIDATOR.validate(each)  # expressions are parsed on first use
    began = time.process_time()
    count = sum(VALIDATOR.validate(each).types.total() for each in bundles)
    assert count / (time.process_time() - began) >= LEAST
