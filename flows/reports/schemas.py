"""The JSON Schemas of a job's output for other tools, kept under ``docs/schemas/``.

Run ``python -m flows.reports.schemas docs/schemas`` after a change of an event, of the summary or of the release
report; a test compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flows.reports import events, summary
from tasks.release_report.report.document import ReleaseReport


def texts() -> dict[str, str]:
    """Return the schemas as text, by file name."""
    schemas = {"events": events.schema(), "summary": summary.schema(), "release-report": _release_report()}
    return {f"{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}


def _release_report() -> dict[str, Any]:
    """Return the schema (2020-12) of ``release-report.json``: as it is written, with every key."""
    found = ReleaseReport.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
    for model in (found, *found["$defs"].values()):
        model.pop("title", None)
        model["required"] = list(model["properties"])
        for value in model["properties"].values():
            value.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "title": "A job's release-report.json",
    }


def write(directory: Path) -> None:
    """Write the schemas into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
