"""The JSON Schema of the release report."""

import json

from jsonschema import Draft202012Validator

from flows.reports import schemas
from tests.conftest import ROOT


def test_the_kept_schema_is_current():
    file = ROOT / "docs/schemas/release-report.schema.json"
    command = f"python -m flows.reports.schemas > {file.relative_to(ROOT)}"
    assert file.read_text(encoding="utf-8") == schemas.release_report(), command
    Draft202012Validator.check_schema(json.loads(schemas.release_report()))
