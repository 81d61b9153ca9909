"""A file in a directory that is not what it seems, in one way at a time: what becomes of each.

The files are those of an extraction. No server says what a file holds, so any resource, and any JSON object, is data:
the steps that read it look closer. ``docs/lies.md`` is made from this table.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config import PipelineConfig
from tasks.local_import.importer import run
from tasks.shared.errors import SluiceError
from tests.peers import job
from tests.peers.lies import Lie
from tests.tasks.extractor.test_liar import CANARY, CONTENTS, FILE

_ANY = "no server describes the contents of a file; the steps that read it check them"
OTHER = bytes(FILE.splitlines(keepends=True)[0])
"""What the other, honest file holds."""


def _here(name: str, lie: Lie) -> Lie:
    if name == "an OperationOutcome":
        return replace(lie, reference=None, because="gives a warning: how many")
    if lie.reference in ("not-a-resource", "resource-type-differs"):
        return replace(lie, reference=None, because=_ANY)
    if lie.reference == "empty-file":
        return replace(lie, reference=None, because="gives a warning: the file is left out")
    return lie


LIES: dict[str, Lie] = {name: _here(name, lie) for name, lie in CONTENTS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", LIES)
def test_a_lie_in_a_directory(name: str, packed: bool, tmp_path: Path) -> None:
    lie = LIES[name]
    told: Any = None  # what a file holds is no answer to anything
    said = lie.tell(told)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "b1.ndjson").write_bytes(said if isinstance(said, bytes) else said.encode())
    (tmp_path / "data" / "other.ndjson").write_bytes(OTHER)
    config = PipelineConfig.model_validate({"compression": {"enabled": packed}, "limits": {"max_resource_mb": 1}})
    context = job.context(tmp_path / "job", "local_import", config, position=0, input=str(tmp_path / "data"))
    if lie.reference is None:
        done = run(context)
        assert bool(done.warnings) == lie.because.startswith("gives a warning")
        assert CANARY not in repr(done.warnings)
        return
    with pytest.raises(SluiceError) as caught:
        run(context)
    assert caught.value.reference == lie.reference
    assert (caught.value.context or "").startswith("b1.ndjson")
    assert CANARY not in caught.value.render()
    suffix = ".ndjson.zst" if packed else ".ndjson"
    assert {path.name for path in (tmp_path / "job" / "import").iterdir()} <= {f"other{suffix}"}
