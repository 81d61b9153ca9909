"""The step that the page on development shows works as it is written there."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.docs.pages import read
from tests.peers.data import patient, write
from tests.peers.job import context


def test_the_step_of_the_page_counts_lines(tmp_path: Path) -> None:
    text = read(ROOT / "docs/development.md").partition("```python\n")[2].partition("```")[0]
    found: dict[str, Any] = {}
    exec(textwrap.dedent(text), found)
    write(tmp_path / "import/a.ndjson.zst", patient("p"), patient("q"))
    report = found["STEP"].run(context(tmp_path, "line_counts", source=tmp_path / "import"))
    assert (report.files, report.lines_in) == (1, 2)
    assert (tmp_path / "line_counts/counts.json").read_bytes() == b'{"a.ndjson.zst":2}'
