"""The JSON Schema of the release report, kept as ``docs/schemas/release-report.schema.json``.

Run ``python -m flows.reports.schemas > docs/schemas/release-report.schema.json`` after a change of the report; a test
compares.
"""

from __future__ import annotations

import json
import sys

from tasks.release_report.report.document import ReleaseReport


def release_report() -> str:
    """Return the schema (2020-12) of ``release-report.json``: as it is written, with every key."""
    found = ReleaseReport.model_json_schema(mode="serialization", ref_template="#/$defs/{model}")
    for model in (found, *found["$defs"].values()):
        model.pop("title", None)
        model["required"] = list(model["properties"])
        for value in model["properties"].values():
            value.pop("title", None)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "title": "A job's release-report.json",
    }
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(release_report())
