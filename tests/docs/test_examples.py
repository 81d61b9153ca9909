"""Files, answers and scripts that stand on a page are what the program takes and prints."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from config import ConfigError, load_config
from deployments.sandbox.faults import FaultRule
from flows.prefect.form import FormAnswer
from tasks.flattening.lookup import read_lookup
from tasks.shared.fhir import crtdl_preprocessing
from tests.docs.pages import example

UNSET = """
services:
  send:
    send_as: direct_resource_load
    url: https://fhir.project.example
    auth:
      username: sluice
      password: ${SEND_PASSWORD}
pipeline:
  enabled_steps: [local_import, send]
"""


def test_the_query_of_the_page_is_a_crtdl(tmp_path: Path) -> None:
    query = tmp_path / "query.json"
    query.write_text(example("docs/steps.md", '{\n  "version": "1"').text)
    assert crtdl_preprocessing.findings(query) == []


def test_the_lookup_file_of_the_page_is_read(tmp_path: Path) -> None:
    lookup = tmp_path / "lookup.json"
    lookup.write_text(example("docs/steps.md", '[\n  {\n    "url"').text)
    read = read_lookup(lookup)
    assert (len(read.tables), read.findings) == (1, [])


def test_the_error_of_the_page_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sluice.yaml").write_text(UNSET)
    with pytest.raises(ConfigError) as caught:
        load_config("sluice.yaml", environ={})
    assert example("docs/operating.md", "error[").text.strip() in str(caught.value)


def test_the_answer_of_the_page_is_that_of_the_form() -> None:
    sent = msgspec.json.decode(example("docs/prefect.md", '{"run_input"').text)
    assert FormAnswer.model_validate(sent["run_input"]).decision == "release"


def test_the_faults_of_the_page_are_rules() -> None:
    order = re.search(r"'(.*)'", example("docs/development.md", "curl -X PUT").text, re.DOTALL)
    assert order is not None
    assert len(msgspec.json.decode(order[1], type=list[FaultRule])) == 2


@pytest.mark.parametrize(("start", "calls"), [((0, "{}"), 1), ((3, "{}"), 2), ((3, ""), 1), ((1, "{}"), 1)])
def test_the_script_of_the_page_continues_only_a_job_that_failed_temporarily(
    tmp_path: Path, start: tuple[int, str], calls: int
) -> None:
    code, printed = start
    stub = tmp_path / "sluice"
    stub.write_text(f"#!/bin/sh\necho $2 >> calls\n[ $2 = continue ] && exit 0\nprintf '{printed}'\nexit {code}\n")
    stub.chmod(0o755)
    script = example("docs/operating.md", "sluice pipeline start sluice.yaml --json").text.replace("600", "0")
    subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}, check=True, timeout=30
    )
    assert (tmp_path / "calls").read_text().split() == ["start", "continue"][:calls]
