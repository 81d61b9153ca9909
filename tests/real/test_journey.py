"""A complete job with services that sites use: import, HL7's validator, Pathling, HAPI."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from deployments.sandbox.data import DATA, DEMO_CRTDL, DEMO_LOOKUP
from tests.conftest import Commands
from tests.real.hapi_server import Hapi

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def test_the_demo_is_validated_and_flattened_as_a_user_starts_it(
    sluice: Commands, validator: str, pathling: str, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for source in DATA.glob("*.ndjson"):
        shutil.copy(source, tmp_path / "data")
    (tmp_path / "config.yaml").write_text(f"""
services:
  local_import: {{dir: data}}
  validation: {{url: "{validator}", fail_on_error: false}}
  flattening: {{service_url: "{pathling}", lookup_path: {DEMO_LOOKUP}}}
pipeline: {{enabled_steps: [local_import, validation, flattening]}}
jobs_dir: jobs
""")
    planned = sluice("pipeline", "plan", "config.yaml", DEMO_CRTDL)
    assert planned.code == 0, planned.err
    ran = sluice("pipeline", "start", "config.yaml", DEMO_CRTDL)
    assert ran.code == 0, ran.err
    job = tmp_path / "jobs" / ran.job
    assert list((job / "validation").glob("*.validation.ndjson"))
    patients = {
        entry["resource"]["id"]
        for path in (tmp_path / "data").glob("patients-*.ndjson")
        for line in path.read_text(encoding="utf-8").splitlines()
        for entry in json.loads(line)["entry"]
        if entry["resource"]["resourceType"] == "Patient"
    }
    tables = {}
    for path in (job / "csv").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            tables[path.stem] = list(csv.DictReader(file))
    assert len(tables) > 2
    assert any({row["id"] for row in rows} == patients for rows in tables.values())
    assert all(rows for rows in tables.values())


@pytest.mark.parametrize("wrong", ["validation", "flattening", "send"])
def test_urls_that_changed_places_are_found_before_anything_is_sent(
    sluice: Commands, validator: str, pathling: str, hapi: Hapi, tmp_path: Path, wrong: str
) -> None:
    """Each step with the URL of another one of these programs: ``plan`` says which."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.ndjson").write_text('{"resourceType":"Patient","id":"canary"}\n')
    urls = {"validation": validator, "flattening": pathling, "send": hapi.url}
    others = {"validation": hapi.url, "flattening": validator, "send": pathling}
    urls[wrong] = others[wrong]
    (tmp_path / "config.yaml").write_text(f"""
services:
  local_import: {{dir: data}}
  validation: {{url: "{urls["validation"]}"}}
  flattening: {{service_url: "{urls["flattening"]}", lookup_path: {DEMO_LOOKUP}}}
  send: {{send_as: direct_resource_load, url: "{urls["send"]}"}}
pipeline: {{enabled_steps: [local_import, validation, flattening, send]}}
retry: {{max_attempts: 2, initial_backoff_ms: 10, max_backoff_ms: 20}}
jobs_dir: jobs
""")
    planned = sluice("pipeline", "plan", "config.yaml", DEMO_CRTDL)
    assert planned.code == 2, planned.err
    assert f"services.{wrong}." in planned.err
    assert "canary" not in planned.err
    assert hapi.get("Patient/canary").status_code == 404
