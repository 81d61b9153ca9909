"""The tutorial, done from its first command to its last one as a reader does it, and what it shows."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, free_ports
from tests.docs.pages import example
from tests.docs.shown import assert_shown
from tests.e2e.docs.place import ExamplePlace, untracked


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_the_tutorial_from_an_empty_directory_to_what_left(tmp_path: Path, prefect_api: str) -> None:
    clone, port = tmp_path / "clone", free_ports(1)
    clone.mkdir()
    (clone / "deployments").symlink_to(ROOT / "deployments")
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/activate").touch()  # the place's PATH has the program already
    place = ExamplePlace(clone, prefect_api, port=str(port), sandbox=f"http://127.0.0.1:{port}")
    place.run(example("docs/tutorial.md", "mkdir study").text)
    place.directory = clone / "study"

    with place.running(example("docs/tutorial.md", "sluice sandbox --port 8090").text, "configuration: "):
        place.run(example("docs/tutorial.md", "cp ../deployments/sandbox/data/demo.crtdl").text)
        written = place.run(example("docs/tutorial.md", "sluice config init").text)
        assert_shown(example("docs/tutorial.md", "sluice.yaml is written").text, written)
        place.run(example("docs/tutorial.md", "sed -e 's|https://extraction").text)
        check = place.run(example("docs/tutorial.md", "sluice config check").text)
        assert_shown(example("docs/tutorial.md", "All checks passed. Steps").text, check)

        plan = place.run(example("docs/tutorial.md", "sluice pipeline plan").text)
        assert_shown(example("docs/tutorial.md", "All checks passed. The job").text, plan)
        started = place.run(example("docs/tutorial.md", "sluice pipeline start").text)
        assert_shown(example("docs/tutorial.md", "job 861fecc8").text, started)
        assert "STOP: " in place.run("sluice job report sluice.yaml latest")
        rejected = place.ran(example("docs/tutorial.md", "sluice pipeline continue sluice.yaml latest --reject").text)
        assert f"job {place.known['job']} is cancelled" in rejected.out + rejected.err
        assert count(port) == 0

        mended = place.run(example("docs/tutorial.md", "sed 's/^fhirPathRules").text)
        assert_shown(example("docs/tutorial.md", "job 00e22651-5c0a-40ce-a10a-0d77a1a82197\n").text, mended)
        released = place.run(example("docs/tutorial.md", "sluice pipeline continue sluice.yaml latest --approve").text)
        assert_shown(example("docs/tutorial.md", "…\n1 extractor: was complete").text, released)
        assert count(port) == 12
        known = place.run(example("docs/tutorial.md", "sluice pipeline status").text)
        assert_shown(example("docs/tutorial.md", "job 00e22651-5c0a-40ce-a10a-0d77a1a82197: completed").text, known)
    assert untracked(clone) == []


def count(port: int) -> int:
    """Return the number of patients that the sandbox FHIR server holds."""
    url = f"http://127.0.0.1:{port}/fhir-server/fhir/Patient?_summary=count"
    return int(httpx.get(url, trust_env=False).json()["total"])
