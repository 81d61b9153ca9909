"""Speed of the sandbox flattening service (issue 5, item 7: 5,000 resources/s, 8 columns, one core).

    python -m tests.bench sandbox_flattening [--resources 20000]

Once as it is, once the FHIRPath library alone with the same eight paths (its share is nearly all of the time), and once
over HTTP. Rates are per second of processor time; over HTTP per second that passed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import fhirpathpy
import httpx
from fhirpathpy.models import models

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.flattening.app import flattening_service
from deployments.sandbox.flattening.run import read_request, run
from deployments.sandbox.flattening.view import CompiledView
from tests.deployments.sandbox.flattening.support import RESOURCE_TYPE

VIEW: dict[str, Any] = {
    "resourceType": RESOURCE_TYPE,
    "name": "laboratory",
    "status": "active",
    "resource": "Observation",
    "select": [
        {
            "column": [
                {"name": "id", "path": "id"},
                {"name": "patient", "path": "subject.reference"},
                {"name": "encounter", "path": "encounter.getReferenceKey(Encounter)"},
                {"name": "date", "path": "effective.ofType(dateTime)"},
                {"name": "value", "path": "value.ofType(Quantity).value"},
                {"name": "unit", "path": "value.ofType(Quantity).unit"},
            ]
        },
        {
            "forEach": "code.coding.where(system = 'http://loinc.org')",
            "column": [{"name": "code", "path": "code"}, {"name": "display", "path": "display"}],
        },
    ],
}
"""Eight columns, as they are typical of a laboratory value."""

_compile: Callable[..., Callable[[Any], Any]] = fhirpathpy.compile


def observations(count: int) -> list[str]:
    """Invented laboratory values of some 900 bytes."""
    return [
        f"""{{"resourceType":"Observation","id":"lab-{number}","meta":{{"profile":["https://example.org/ObservationLab"]}},
"identifier":[{{"system":"https://example.org/sid/lab","value":"{number:08}"}}],"status":"final",
"category":[{{"coding":[{{"system":"http://terminology.hl7.org/CodeSystem/observation-category","code":"laboratory"}},
{{"system":"http://loinc.org","code":"26436-6"}}]}}],
"code":{{"coding":[{{"system":"http://loinc.org","code":"718-7","display":"Hemoglobin [Mass/volume] in Blood"}},
{{"system":"https://example.org/codes","code":"HB","display":"Hämoglobin"}}],"text":"Hemoglobin"}},
"subject":{{"reference":"Patient/p{number % 97}"}},"encounter":{{"reference":"Encounter/e{number % 89}"}},
"effectiveDateTime":"2025-03-{number % 28 + 1:02}T06:45:00+01:00","valueQuantity":{{"value":7.50,"unit":"g/dL",
"system":"http://unitsofmeasure.org","code":"g/dL"}}}}"""
        for number in range(count)
    ]


def body(count: int) -> bytes:
    """Return a request."""
    parts = [f'{{"name":"viewDefinition","resource":{json.dumps(VIEW)}}}']
    parts += [f'{{"name":"resources","resource":{each}}}' for each in observations(count)]
    return f'{{"resourceType":"Parameters","parameter":[{",".join(parts)}]}}'.encode()


def rate(content: bytes) -> float:
    """Resources per second of processor time, reading and writing JSON included."""
    began = time.process_time()
    request = read_request(content)
    compiled = CompiledView.of(request.view)
    for _ in run(compiled, request, null_columns=False):
        pass
    return len(request) / (time.process_time() - began)


def library_alone(content: bytes) -> float:
    """Resources per second of processor time when the library does the same without rows and JSON around it."""
    top, coding = VIEW["select"]
    paths = [each["path"].replace("getReferenceKey(Encounter)", "reference") for each in top["column"]]
    paths += [f"{coding['forEach']}.{each['path']}" for each in coding["column"]]
    compiled = [_compile(path, models["r4"]) for path in paths]
    resources = [each.data for each in read_request(content).resources()]
    began = time.process_time()
    for resource in resources:
        for path in compiled:
            path(resource)
    return len(resources) / (time.process_time() - began)


def over_http(content: bytes, count: int) -> float:
    """Resources per second over loopback, client included."""
    headers = {"accept": "application/x-ndjson", "content-type": "application/fhir+json"}
    with serve_in_thread(flattening_service()) as served, httpx.Client(trust_env=False, timeout=600) as client:
        began = time.perf_counter()
        response = client.post(
            f"{served.url}/fhir/ViewDefinition/$run?_format=ndjson", content=content, headers=headers
        )
        response.raise_for_status()
        seconds = time.perf_counter() - began
        if response.content.count(b"\n") != count:
            raise SystemExit("rows are missing")
        return count / seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this bench."""
    parser.add_argument("--resources", type=int, default=20_000)


def main(given: argparse.Namespace) -> None:
    """Measure and print."""
    count = given.resources
    content = body(count)
    print(f"{count} resources, {len(content) / 1e6:.0f} MB")
    print(f"as it is      {rate(content):8.0f} resources/s (target ≥ 5,000)")
    print(f"library alone {library_alone(content):8.0f} resources/s")
    print(f"over HTTP     {over_http(content, count):8.0f} resources/s")
