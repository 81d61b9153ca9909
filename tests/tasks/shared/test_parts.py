"""How files are divided into parts, and what a step does when workers leave nothing it can use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.shared import parts
from tasks.shared.errors import TransientError
from tasks.validation.step import STEP
from tests.peers import data, job, services
from tests.peers.server import ScriptedServer


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 100)), st.integers(1, 9))
def test_every_file_is_in_one_group_and_no_group_is_too_heavy(sizes: dict[str, int], count: int) -> None:
    groups = parts.groups(sizes, count)
    assert sorted(base for group in groups for base in group) == sorted(sizes)
    assert len(groups) == min(count, len(sizes))
    weights = [sum(sizes[base] for base in group) for group in groups]
    assert max(weights, default=0) <= sum(sizes.values()) / count + max(sizes.values(), default=0)


def test_core_is_a_round_before_and_files_without_a_usable_record_end_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "SEEN_WITHIN", 1)
    data.people(tmp_path / "import")
    rounds = []
    with ScriptedServer(services.validation) as server:
        config = job.configuration({"validation": {"url": server.url}}, pipeline={"parts": 2})
        context = job.context(
            tmp_path, "validation", config, source=tmp_path / "import", divide=lambda _, given: rounds.extend(given)
        )
        with pytest.raises(TransientError) as caught:
            STEP.run(context)
    assert (caught.value.reference, caught.value.exit_code) == ("parts-missing", 3)
    assert [[(sorted(part.files), part.number, part.at_once) for part in one] for one in rounds] == [
        [(["core"], 1, 1)], [(["batch-0", "batch-1"], 1, 2), (["batch-2", "batch-3"], 2, 2)],
    ]  # fmt: skip
