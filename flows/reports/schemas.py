"""The JSON Schemas of what a job tells other tools, kept under ``docs/schemas/``.

Run ``python -m flows.reports.schemas docs/schemas`` after a change of an event or of the summary; a test compares.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows.reports import events, summary


def texts() -> dict[str, str]:
    """The schemas as text, by file name."""
    return {"events.schema.json": events.schema_text(), "summary.schema.json": summary.schema_text()}


def write(directory: Path) -> None:
    """Write the schemas into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
