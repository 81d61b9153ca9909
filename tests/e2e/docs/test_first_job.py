"""The steps of the page "Your own files", and examples of other pages with such a job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import free_ports
from tests.docs.pages import example, read
from tests.docs.references import ROOT
from tests.docs.shown import assert_shown, shape
from tests.e2e.docs.place import ExamplePlace, untracked


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_the_first_job_is_what_readme_operating_and_observability_show(tmp_path: Path, prefect_api: str) -> None:
    port = free_ports(5)
    place = ExamplePlace(tmp_path, prefect_api, port=str(port), fhir=f"http://127.0.0.1:{port}")
    place.lines(example("docs/first-job.md", "mkdir -p data").text)
    place.save("first.yaml", example("docs/first-job.md", "services:\n  local_import:").text)
    with place.running(example("docs/first-job.md", "sluice sandbox --port 8090").text, "configuration: "):
        check, plan, start = place.lines(example("docs/first-job.md", "sluice config check").text)
        assert check == "first.yaml: valid; steps: local_import, wait, send\n"
        assert plan == "All checks passed. The job can start.\n"
        assert_shown(example("docs/first-job.md", "job 368f91e2").text, start)

        shows_the_status(json.loads(place.run("sluice pipeline status first.yaml JOB --json")))
        shows_the_row(json.loads(place.run("sluice job list first.yaml --json")))

        status, done, jobs = place.lines(example("docs/first-job.md", "sluice pipeline status").text)
        job = place.known["job"]
        assert f"job {job}: waiting" in status
        assert f"job {job} is complete" in done
        assert re.search(rf"^{job}  completed", jobs, re.MULTILINE)
        sent = httpx.get(f"{place.known['fhir']}/fhir/Observation/o1", trust_env=False, timeout=60)
        assert '"value": 70.50' in sent.text

    directory = tmp_path / "jobs" / job
    shows_the_first_event((directory / "events.ndjson").read_text(encoding="utf-8").splitlines()[0])
    explains_the_summary(json.loads((directory / "summary.json").read_text(encoding="utf-8")))
    assert untracked(tmp_path) == []


def shows_the_status(status: dict[str, Any]) -> None:
    """The JSON page's object of a job that waits."""
    shown = json.loads(example("docs/json.md", '{\n  "id"').text)
    assert shape(shown) == shape(status)
    for key in ("state", "step", "crtdl", "extraction", "progress", "error"):
        assert shown[key] == status[key], key
    for one, other in zip(shown["steps"], status["steps"], strict=True):
        for key in ("position", "name", "state", "files", "resources_in", "resources_out"):
            assert one[key] == other[key], key


def shows_the_row(rows: list[dict[str, Any]]) -> None:
    """The JSON page's list of jobs."""
    shown = json.loads(example("docs/json.md", '[\n  {\n    "id"').text)
    assert shape(shown) == shape(rows)
    for key in ("state", "step", "files"):
        assert shown[0][key] == rows[0][key], key


def shows_the_first_event(line: str) -> None:
    """The observability page's line of ``events.ndjson``: the same keys in the same order, as compact."""
    (shown,) = example("docs/observability.md", '{"time"').text.splitlines()
    assert list(json.loads(shown)) == list(json.loads(line))
    assert json.dumps(json.loads(shown), separators=(",", ":")) == shown


def explains_the_summary(summary: dict[str, Any]) -> None:
    """The observability page's table of ``summary.json``."""
    page = read(ROOT / "docs/observability.md")
    step = summary["steps"][0]
    for key in summary:
        assert re.search(rf"`{key}[`.\[]", page), key
    for key in step:
        assert f"`steps[].{key}" in page, key


@pytest.mark.e2e
def test_a_first_configuration_is_written_as_the_pages_say(tmp_path: Path) -> None:
    place = ExamplePlace(tmp_path, None)
    assert "sluice.yaml is written" in place.run("sluice config init")
    assert "next: sluice config check config.yaml\n" in place.run("sluice config init FILE")
    place.environment["SEND_PASSWORD"] = "x"
    place.run("sluice config check config.yaml")
    assert untracked(tmp_path) == []
