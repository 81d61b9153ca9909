"""The official FHIR R4 examples through every step, with correct services: no answer is rejected as wrong.

They are those of HL7's package ``hl7.fhir.r4.examples`` 4.0.1, without the definitions that are in it, too: 700
resources and Bundles of 130 types, with contained resources, Parameters, and ids that are numbers. Bundles that answer
something (``transaction-response``, ``history``) are no input of the steps behind the pseudonymizer.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.pseudonymization.app import PseudonymizationOptions, pseudonymization_service
from tasks.send.step import run as send_data
from tests.peers import flattening, pseudonymization, validation
from tests.peers.job import StepJob
from tests.real.conftest import Measure
from tests.real.get import DEFINITIONS
from tests.real.hapi_server import Hapi
from tests.real.job import job, write
from tests.real.programs import directory
from tests.real.test_pathling import paths, view

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

LARGEST = 1_000_000
"""Bytes of an example. What is larger are Bundles of definitions."""
NO_INPUT = {"Bundle", "Parameters", "Provenance"}
CANONICALS = {"ActivityDefinition", "Library", "Measure", "MeasureReport", "PlanDefinition"}
ANSWERS = {"transaction-response", "batch-response", "history"}


@cache
def examples() -> dict[str, list[bytes]]:
    """Return the examples by type, a line each."""
    place = directory("SLUICE_REAL_EXAMPLES", "package.json", "python tests/real/get.py examples")
    found: dict[str, list[bytes]] = {}
    for path in sorted(place.glob("*.json")):
        text = path.read_bytes().replace(b"\r", b" ").replace(b"\n", b" ")
        kind = json.loads(text).get("resourceType", "")
        if kind and kind not in DEFINITIONS | {"ImplementationGuide"} and len(text) < LARGEST:
            found.setdefault(kind, []).append(text)
    assert sum(map(len, found.values())) > 650
    return found


def write_examples(made: StepJob, *, answers: bool = False) -> None:
    """The examples as the input of a job, a file for each type."""
    for kind, lines in examples().items():
        left_out = set() if answers or kind != "Bundle" else ANSWERS
        made.write(
            f"{kind}.ndjson", *(line for line in lines if not left_out or json.loads(line)["type"] not in left_out)
        )


def test_pseudonyms_of_all_examples_are_believed_and_nothing_that_identifies_stays(tmp_path: Path) -> None:
    made = pseudonymization.PseudonymizerJob(tmp_path)
    write_examples(made, answers=True)
    with serve_in_thread(pseudonymization_service(PseudonymizationOptions())) as served:
        result = made.run(served.url)
    assert result.resources_in == result.resources_out
    assert result.details["residual_identifiers"] == "none"
    lines = Counter(path.name for path in made.input.iterdir() for _ in path.read_bytes().splitlines())
    assert lines == Counter(path.name for path in made.output.iterdir() for _ in made.lines(path.name))


def test_what_the_validator_says_of_all_examples_is_a_result(validator: str, tmp_path: Path, figure: Measure) -> None:
    made = validation.ValidationJob(tmp_path)
    write_examples(made, answers=True)
    result = figure("validator", "HL7's R4 examples, one request per line", lambda: made.validate(validator))
    assert result.resources_in is not None
    assert result.resources_in > 2000
    findings = [row for row in made.summary() if row["severity"] == "error"]
    assert len(findings) == result.details["findings"] > 500
    assert all(row["line"] for row in findings)


def test_each_example_has_its_row(pathling: str, tmp_path: Path, figure: Measure) -> None:
    kinds = [kind for kind in examples() if kind not in NO_INPUT]
    made = flattening.FlatteningJob(tmp_path, [view(kind, kind, paths(id="id")) for kind in kinds])
    write_examples(made)
    result = figure("pathling", "HL7's R4 examples, one view per type", lambda: made.run(pathling))
    groups = {row["group"]: row for row in result.details["groups"]}
    assert groups.keys() == set(kinds)
    assert all(row["resources"] == row["with_rows"] == row["rows"] > 0 for row in groups.values())


def references(of: Any) -> set[str]:
    """Yield the references of a resource."""
    if isinstance(of, list):
        return {one for each in of for one in references(each)}
    if not isinstance(of, dict):
        return set()
    own = {of["reference"]} if isinstance(of.get("reference"), str) else set()
    own.update(of.get("instantiatesCanonical", ()))
    return own | {one for each in of.values() for one in references(each)}


def test_what_hapi_can_take_gets_in_whole(hapi: Hapi, tmp_path: Path, figure: Measure) -> None:
    """Those of which all that they refer to is there, too. HAPI wants no ids that are numbers from others, and no
    canonical URLs of places that it does not know."""
    lines = {
        f"{kind}/{one['id']}": (line, references(one))
        for kind, some in examples().items()
        if kind not in NO_INPUT | CANONICALS
        for line in some
        if not (one := json.loads(line))["id"].isdigit()
    }
    before = 0
    while before != len(lines):
        before = len(lines)
        lines = {
            key: (line, wanted)
            for key, (line, wanted) in lines.items()
            if all(one.startswith("#") or one in lines for one in wanted)
        }
    write(tmp_path, "examples.ndjson", *(line for line, _ in lines.values()))
    service = {"send": {"send_as": "direct_resource_load", "url": hapi.url}}
    result = figure("hapi", "HL7's R4 examples that it accepts", lambda: send_data(job(tmp_path, service)))
    assert result.resources_out == len(lines) > 200
    assert len(hapi.versions(lines)) == len(lines)
