"""The how-to pages of a beginning: connecting services one by one, and coming from aether."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deployments.sandbox.data import ANONYMIZATION_RULES, DEMO_CRTDL, DEMO_LOOKUP
from tests.docs.pages import example
from tests.docs.shown import assert_shown
from tests.e2e.docs.place import ExamplePlace
from tests.e2e.docs.services import SECRET, ExampleServices, services

ENRICHMENTS = """\
[{"groupReference": "https://www.medizininformatik-initiative.de/fhir/core/modul-person/StructureDefinition/Patient",
  "attributesToAdd": [{"attributeRef": "Patient.identifier", "mustHave": false}]}]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExampleServices]:
    with services(tmp_path_factory.mktemp("services")) as started:
        yield started


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_each_service_is_asked_alone_and_a_lookup_of_one_s_own_makes_tables(
    tmp_path: Path, prefect_api: str, running: ExampleServices
) -> None:
    place = ExamplePlace(tmp_path, prefect_api)
    text = example("docs/connect.md", "services:\n  extractor:").text
    place.known |= running.of(yaml.safe_load(text))
    place.environment |= dict.fromkeys(("EXTRACTOR_PASSWORD", "PSEUDONYMIZER_API_KEY", "SEND_CLIENT_SECRET"), SECRET)
    place.environment |= {"APP_SERVICES_EXTRACTOR_POLLING_INTERVAL": "PT1S"}
    place.save("sluice.yaml", text)
    (tmp_path / "rules").mkdir()
    shutil.copy(ANONYMIZATION_RULES, tmp_path / "rules/project-x.yaml")
    shutil.copy(DEMO_CRTDL, tmp_path / "query.json")
    lookup = place.save("lookup.json", example("docs/connect.md", "[\n  {").text)
    assert len(json.loads(lookup.read_text())) == 2

    place.run("sluice config check sluice.yaml")
    place.run(example("docs/connect.md", "mkdir -p made-up").text)
    place.lines(example("docs/connect.md", "sluice extraction list").text)
    plans = (
        example(
            "docs/connect.md", "sluice pipeline plan sluice.yaml --set 'pipeline.enabled_steps=[local_import, val"
        ).text,
        example(
            "docs/connect.md", "sluice pipeline plan sluice.yaml --set 'pipeline.enabled_steps=[local_import, pse"
        ).text,
        example(
            "docs/connect.md", "sluice pipeline plan sluice.yaml --set 'pipeline.enabled_steps=[local_import, send"
        ).text,
        example("docs/connect.md", "sluice pipeline plan sluice.yaml query.json --set").text,
        "sluice pipeline plan sluice.yaml query.json",
    )
    said = [place.run(plan) for plan in plans]
    assert all(last.endswith("The job can start.\n") for last in said)
    assert example("docs/connect.md", "All checks passed").text in said  # the others have warnings

    place.run("sluice pipeline start sluice.yaml query.json --set 'pipeline.enabled_steps=[extractor, flattening]'")
    tables = tmp_path / "jobs" / place.known["job"] / "csv"
    table = next(path for path in tables.iterdir() if "code_system" in path.read_text())
    assert_shown(example("docs/connect.md", "id,patient").text, table.read_text().partition("\n")[0] + "\n")
    assert len(table.read_text().splitlines()) > 2


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_configuration_of_aether_runs_and_is_migrated(
    tmp_path: Path, prefect_api: str, running: ExampleServices
) -> None:
    file = example("docs/from-aether.md", "services:\n  torch:").text
    place = ExamplePlace(tmp_path, prefect_api, **running.of(yaml.safe_load(file)))
    place.known["config"] = "aether.yaml"
    place.save("aether.yaml", file)
    place.save("enrichments.json", ENRICHMENTS)
    shutil.copy(DEMO_LOOKUP, tmp_path / "lookup.json")
    shutil.copy(DEMO_CRTDL, tmp_path / "query.json")
    check, migrated, shown, plan = place.lines(example("docs/from-aether.md", "sluice config check").text)
    assert check == "aether.yaml: valid; steps: extractor, pseudonymizer, flattening, send\n"
    assert migrated.startswith("sluice.yaml is written")
    assert "services.extractor.extraction_timeout" in shown
    assert "The job can start." in plan
    for config in ("aether.yaml", "sluice.yaml"):
        place.known["config"] = config
        started = place.ran("sluice pipeline start CONFIG query.json")
        assert f"job {place.known['job']} is complete" in started.out, started.err
        assert ("deprecated-key" in started.err) is (config == "aether.yaml")
        assert (tmp_path / "jobs" / place.known["job"] / "enriched-crtdl.json").is_file()
