"""Every example configuration of the pages runs as a job, against sandbox services (issue 7)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from config import STEPS
from deployments.sandbox import objectstore
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP
from tests.conftest import Commands
from tests.docs.pages import DOCS, PageBlock, blocks
from tests.e2e.docs.place import ExamplePlace
from tests.e2e.docs.services import SECRET, ExampleServices, services
from tests.peers.s3 import make_bucket

EXAMPLES = [block for page in DOCS for block in blocks(page, "yaml") if page.name != "from-aether.md"]
"""Those of all pages. ``test_connect`` runs the file of aether."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleServices]:
    with services(tmp_path_factory.mktemp("services")) as started:
        yield started


@pytest.fixture
def place(tmp_path: Path, prefect_api: str) -> ExamplePlace:
    """Return the files that examples name, as a reader has them."""
    (tmp_path / "data").mkdir()
    for file in DATA.glob("*.ndjson"):
        shutil.copy(file, tmp_path / "data")
    (tmp_path / "rules").mkdir()
    shutil.copy(ANONYMIZATION_RULES, tmp_path / "rules/project-x.yaml")
    shutil.copy(DEMO_LOOKUP, tmp_path / "lookup.json")
    shutil.copy(DEMO_CRTDL, tmp_path / "query.json")
    place = ExamplePlace(tmp_path, prefect_api)
    # An example waits five seconds between its first looks at an extraction: long for a test.
    place.environment |= {"APP_SERVICES_EXTRACTOR_POLLING_INTERVAL": "PT1S"}
    return place


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_an_example_configuration_runs_as_a_job(
    example: PageBlock, place: ExamplePlace, running: ExampleServices
) -> None:
    configuration = yaml.safe_load(example.text)
    steps = configuration["pipeline"]["enabled_steps"]
    place.known |= running.of(configuration)
    variables = set(re.findall(r"(?<!\$)\$\{(\w+)\}", example.text))
    place.environment |= dict.fromkeys(variables, SECRET) | {"CA_BUNDLE": str(running.ca_bundle)}
    if configuration["services"].get("send", {}).get("send_as") == "s3_upload":
        with objectstore.start_object_store() as store:
            make_bucket(store, configuration["services"]["send"]["s3"]["bucket"])
            place.known["objectstore"] = store.url
            run(place, example, steps)
            assert store.objects("project-x", "deliveries/").keys()
        return
    tokens = running.issuer.issued
    run(place, example, steps)
    if "oauth_issuer_uri" in example.text:
        assert running.issuer.issued > tokens


def run(place: ExamplePlace, example: PageBlock, steps: list[str]) -> None:
    """Start the job, and approve it where it waits. Every step ends well, and no output shows a secret."""
    place.save("config.yaml", example.text)
    sluice = Commands(place.directory, None, in_process=True)
    sluice.environment = place.environment
    started = sluice("pipeline", "start", "config.yaml", *(["query.json"] if "extractor" in steps else []))
    printed = started.out + started.err
    assert started.code == 0, printed
    if "wait" in steps:
        assert "wait: waiting for approval" in started.out
        done = sluice("pipeline", "continue", "config.yaml", started.job, "--approve", "--despite", "made-up")
        assert done.code == 0, done.err
        printed = done.out
    for position, step in enumerate(steps, 1):
        assert re.search(rf"^{position} {step}: (was )?complete", printed, re.MULTILINE), printed
    assert f"job {started.job} is complete" in printed
    assert SECRET not in printed
    if "crtdl_preprocessing" in example.text:
        assert (place.directory / "jobs" / started.job / "enriched-crtdl.json").exists()


def test_every_step_and_every_way_to_send_is_in_an_example() -> None:
    examples = [yaml.safe_load(example.text) for example in EXAMPLES]
    assert {step for example in examples for step in example["pipeline"]["enabled_steps"]} == STEPS.keys()
    modes = {example["services"].get("send", {}).get("send_as") for example in examples} - {None}
    assert modes == {"direct_resource_load", "transfer_load", "s3_upload"}
