"""R4 search parameters and codes of the sandbox equal those of the published package."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from deployments.sandbox.common.definitions.schema import DEFINITIONS
from tasks.release_report.measure.kinds import NAMED
from tests.deployments.sandbox.validation.support import findings
from tests.real.programs import directory
from tests.real.test_examples import examples
from tests.tasks.release_report.measure.test_r4_types import made_named
from tests.tools.definitions.package import make

pytestmark = pytest.mark.real


def test_the_tables_that_are_checked_in_are_those_that_the_package_gives(tmp_path: Path) -> None:
    package = directory("SLUICE_REAL_EXAMPLES", "package.json", "python tests/real/get.py examples")
    left_out = make(package, tmp_path)
    for name in ("search-parameters.json", "codes.json"):
        assert (tmp_path / name).read_bytes() == (DEFINITIONS / name).read_bytes(), name
    assert len(left_out) == 7
    assert NAMED.read_text() == made_named(package)


def test_the_sandboxs_validator_finds_in_hl7s_examples_only_what_is_wrong_with_them() -> None:
    """One of them, ``Questionnaire/qs1``, has items without ``linkId``."""
    decoder = msgspec.json.Decoder(float_hook=Decimal)
    found = Counter(
        f"{message} {expression.rpartition('.')[2]}"
        for lines in examples().values()
        for line in lines
        for severity, _, message, expression in findings(decoder.decode(line))
        if severity == "error"
    )
    assert found == {"Profile_Minimum linkId": 32}
