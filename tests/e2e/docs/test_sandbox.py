"""The examples of the sandbox page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from tests.docs.pages import example, spoken
from tests.docs.references import ROOT
from tests.docs.shown import assert_shown
from tests.e2e.docs.place import ExamplePlace


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ExamplePlace]:
    """Start the sandbox as on the page in a clone of the repository."""
    (tmp_path / "deployments").symlink_to(ROOT / "deployments")
    place = ExamplePlace(tmp_path, None)
    with place.running(example("docs/sandbox.md", "python -m deployments.sandbox").text, "Ctrl-C ends") as log:
        assert_shown(example("docs/sandbox.md", "configuration: ").text, log.read_text())
        place.known["sandbox"] = log.read_text().partition("\n")[0].removeprefix("configuration: ")
        services = yaml.safe_load(Path(place.known["sandbox"]).read_text(encoding="utf-8"))["services"]
        place.known |= {"extraction": services["extractor"]["base_url"], "fhir": services["send"]["url"]}
        yield place


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl on this machine")
def test_queries_and_faults_are_sent_with_curl_as_shown(place: ExamplePlace) -> None:
    url = place.known["url"] = place.known["extraction"]
    printed = place.run(example("docs/sandbox.md", "CRTDL=").text)
    assert printed.startswith("HTTP/1.1 202")
    assert re.search(rf"^content-location: {url}/fhir/__status/", printed, re.MULTILINE | re.IGNORECASE)
    assert len(json.loads(printed.splitlines()[-1])["entry"]) == 12

    url = place.known["url"] = place.known["fhir"]
    place.run(example("docs/sandbox.md", "curl -X PUT {url}/_sandbox/faults").text)
    answers = [httpx.post(f"{url}/fhir", content=b"{}", trust_env=False, timeout=60) for _ in range(3)]
    assert [answer.status_code == 503 for answer in answers] == [True, True, False]
    assert answers[0].headers["Retry-After"] == "2"


@pytest.mark.campaign
@pytest.mark.timeout(240)
def test_its_configuration_and_the_demo_s_query_make_a_job(place: ExamplePlace) -> None:
    line = "python -m flows.run pipeline start …/sandbox.yaml …/demo.crtdl"
    assert line in spoken(ROOT / "docs/sandbox.md")
    line = line.replace("…/sandbox.yaml", place.known["sandbox"])
    printed = place.run(line.replace("…/demo.crtdl", "deployments/sandbox/data/demo.crtdl"), timeout=200)
    assert "5 wait: waiting for approval" in printed
    assert "Do not release. 1 reason to stop." in printed
    assert "mothersMaidenName" in printed

    mend, again = example("docs/sandbox.md", "sed 's/^fhirPathRules").text.splitlines()
    place.run(mend)
    printed = place.run(again.replace("…/sandbox.yaml", place.known["sandbox"]), timeout=200)
    assert "5 wait: waiting for approval" in printed
    assert "STOP" not in printed
    line = "sluice pipeline continue …/sandbox.yaml JOB --approve"
    assert line in spoken(ROOT / "docs/sandbox.md")
    printed = place.run(line.replace("…/sandbox.yaml", place.known["sandbox"]), timeout=200)
    assert f"job {place.known['job']} is complete" in printed


def test_a_service_is_served_in_a_test_as_shown() -> None:
    seen: dict[str, object] = {}
    source = example("docs/sandbox.md", "from deployments.sandbox").text
    asked = "answer = httpx.get(f'{served.url}/fhir/metadata', trust_env=False, timeout=60)"
    source = source.replace("...  # served.url", asked)
    exec(compile(source, "docs/sandbox.md", "exec"), {"httpx": httpx}, seen)
    answer = seen["answer"]
    assert isinstance(answer, httpx.Response)
    assert answer.status_code == 200


@pytest.mark.campaign
def test_sluice_sandbox_is_the_same(tmp_path: Path) -> None:
    with ExamplePlace(tmp_path, None).running("sluice sandbox", "Ctrl-C ends the sandbox."):
        pass
