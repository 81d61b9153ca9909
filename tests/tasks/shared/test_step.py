"""Reconciliation of two steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.shared.errors import ReconciliationError
from tasks.shared.report import StepReport
from tasks.shared.step import reconcile
from tests.peers.job import context


def test_a_step_that_read_fewer_or_more_lines_than_written_fails_and_names_the_file() -> None:
    given = context(Path("j"), "pseudonymizer", position=2, source=Path("j/import"), lines=7)
    reconcile(given, StepReport(lines_in=7))
    reconcile(given, StepReport())
    with pytest.raises(ReconciliationError) as caught:
        reconcile(given, StepReport(lines_in=6))
    assert caught.value.reference == "lines-differ"
    assert caught.value.message == "pseudonymizer read 6 lines, the step before wrote 7"
    assert caught.value.context == "import/, step 2"
