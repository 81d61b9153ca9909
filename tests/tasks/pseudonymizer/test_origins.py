"""Which resource became which: what an answer that was refused leaves behind vouches for nothing."""

from __future__ import annotations

from tasks.pseudonymizer.answer_check import ResourceSummary
from tasks.pseudonymizer.origins import Origins


def patients(*ids: str) -> ResourceSummary:
    return ResourceSummary("Bundle", "b", len(ids), len(ids), types=["Patient"] * len(ids), ids=[*ids])


def test_resources_that_changed_their_ids_are_refused_each_time() -> None:
    origins = Origins()
    assert origins.agree(patients("c"), patients("x"))
    for _ in range(2):
        assert not origins.agree(patients("a", "b"), patients("b", "a"))
    assert origins.agree(patients("c"), patients("x"))
