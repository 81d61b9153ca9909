"""Record of a run by ``python -m tests.real --record``, and its page. No program is needed here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.real.__main__ import RunRecorder
from tests.real.components import COMPONENTS_OF, DIFFERS, FIGURE, components_of
from tests.real.tried import Figure, Tried, load, render, save

FOUND = {
    "what": "made up", "resources_in": 1200, "resources_out": 7, "findings": 3, "files": None, "bytes_in": 2400,
    "seconds": 1.5,
}  # fmt: skip


def report(test: str, outcome: str = "passed", when: str = "call", **more: Any) -> Any:
    """Return pytest's report on a phase of a test that uses MinIO."""
    made = {
        "nodeid": f"tests/real/test_s3.py::{test}", "duration": 0.5, "when": when, "longrepr": None,
        "user_properties": [(COMPONENTS_OF, "minio")], "passed": False, "failed": False, "skipped": False,
    }  # fmt: skip
    return SimpleNamespace(**{**made, outcome: True, **more})


def test_a_run_keeps_counts_reasons_differences_and_figures() -> None:
    recorder = RunRecorder({"minio": "RELEASE.1"}, others=False)
    known = [(COMPONENTS_OF, "minio"), (DIFFERS, ["minio", "is odd"]), (DIFFERS, ["hapi", "is another"])]
    for _ in range(2):
        recorder.pytest_runtest_logreport(report("test_a", user_properties=[*known, (FIGURE, ["minio", FOUND])]))
    recorder.pytest_runtest_logreport(report("test_b", "failed"))
    recorder.pytest_runtest_logreport(report("test_b", "failed", "teardown"))
    recorder.pytest_runtest_logreport(report("test_c", "skipped", "setup", longrepr=("f", 1, "Skipped: no faketime")))
    recorder.pytest_runtest_logreport(report("test_d", user_properties=[(COMPONENTS_OF, "hapi")]))
    one = recorder.tried["minio"]
    assert (one.passed, one.failed, one.skipped) == (2, ["test_b"], {"no faketime": 1})
    assert one.seconds == 2.5
    assert one.differs == ["is odd"]
    assert one.figures == [Figure(**FOUND)] * 2
    assert list(one.modules) == ["test_s3.py"]


def test_what_was_kept_of_other_components_stays(tmp_path: Path) -> None:
    kept = tmp_path / "tried.json"
    save({"hapi": Tried("8", "2026-01-01", passed=3, figures=[Figure(**FOUND)])}, kept)
    save({"minio": Tried("1", "2026-02-02", failed=["test_b"], skipped={"no | faketime": 1})}, kept)
    assert load(kept).keys() == {"hapi", "minio"}
    page = render(load(kept))
    assert "| HAPI's JPA server | made up | 1,200 | 7 | 3 | – | 2 | 1.5 |" in page
    assert "0 passed; **1 failed**: `test_b`; 1 skipped (no \\| faketime)" in page
    assert "| TORCH | – | extraction server | not tested with this command | – | – |" in page


@pytest.mark.parametrize(
    ("marks", "fixtures", "parameters", "used"),
    [
        ([], [], {}, set()),
        (["nginx"], ["tmp_path", "squid"], {}, {"nginx", "squid"}),
        ([], ["hapi", "validator"], {"kind": "minio", "parts": True}, {"hapi", "validator", "minio"}),
    ],
)
def test_a_test_is_of_whom_its_marks_fixtures_and_parameters_name(
    marks: list[str], fixtures: list[str], parameters: dict[str, Any], used: set[str]
) -> None:
    item: Any = SimpleNamespace(
        iter_markers=lambda name: [pytest.mark.real(*marks).mark],
        fixturenames=fixtures,
        callspec=SimpleNamespace(params=parameters),
    )
    assert components_of(item) == used
