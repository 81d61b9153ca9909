"""Pathling behind a service that answers as fhir-flattener does (docs/services.md)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tasks.flattening.step import STEP
from tasks.shared.step import CheckContext, GivenInputs
from tests.peers import data
from tests.peers.job import configuration, context, probed
from tests.real.conftest import Start

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CODES = {"coding": [{"system": "icd", "code": "I10"}, {"system": "snomed", "code": "38341003"}]}
CODE = {"forEach": "code.coding", "column": [{"name": "code", "path": "code"}, {"name": "system", "path": "system"}]}


def test_tables_of_the_groups_of_a_query(start: Start, tmp_path: Path) -> None:
    url = start("pathling")
    query, lookup = data.crtdl(), data.lookup()
    (groups,) = (query["dataExtraction"]["attributeGroups"],)
    groups[1]["attributes"].append({"attributeRef": "Observation.code", "mustHave": False})
    lookup[1]["elements"]["Observation.code"] = {"viewDefinition": CODE}
    (tmp_path / "crtdl.json").write_text(json.dumps(query))
    (tmp_path / "lookup.json").write_text(json.dumps(lookup))
    people = [data.patient("p", gender="female"), data.patient("q")]
    values = [
        data.observation("o1", code=CODES, valueQuantity={"value": 12345678.125}),
        data.observation("o2", code={"text": "none"}, valueQuantity={"value": 1}),
        data.observation("o3", "q", code={"coding": [{"code": 'a "quoted",\ncode'}]}),
    ]
    line = data.bundle(*people, *values, data.provenance("g-pat", *people), data.provenance("g-obs", *values))
    data.write(tmp_path / "import" / "a.ndjson", line)

    def flattened(job: str) -> dict[str, list[dict[str, str]]]:
        settings = {"service_url": url, "lookup_path": str(tmp_path / "lookup.json")}
        config = configuration({"flattening": settings})
        for service in STEP.services(config):
            assert probed(service, config) == []
        STEP.run(
            context(
                tmp_path / job, "flattening", config, source=tmp_path / "import", crtdl=tmp_path / "crtdl.json"
            )
        )  # fmt: skip
        found = {}
        for path in (tmp_path / job / "csv").glob("*.csv"):
            with path.open(encoding="utf-8", newline="") as file:
                found[path.stem] = sorted(csv.DictReader(file), key=lambda row: (row["id"], *row.values()))
        return found

    tables = flattened("job")
    assert tables["Patient"] == [{"id": "p", "gender": "female"}, {"id": "q", "gender": ""}]
    assert [tuple(row.values()) for row in tables["Observation"]] == [
        ("o1", "Patient/p", "12345678.125", "38341003", "snomed"),
        ("o1", "Patient/p", "12345678.125", "I10", "icd"),
        ("o3", "Patient/q", "", 'a "quoted",\ncode', ""),
    ]

    # A column of a whole concept: Pathling refuses it, and the finding names group and table.
    lookup[1]["elements"]["Observation.code"] = {"viewDefinition": {"column": [{"name": "code", "path": "code"}]}}
    (tmp_path / "lookup.json").write_text(json.dumps(lookup))
    config = configuration({"flattening": {"service_url": url, "lookup_path": str(tmp_path / "lookup.json")}})
    (found,) = STEP.trials(CheckContext(config, GivenInputs(crtdl=tmp_path / "crtdl.json")))
    assert found.reference == "flattening-view"
    assert "group Observation" in found.message
    assert "table " in (found.context or "")
