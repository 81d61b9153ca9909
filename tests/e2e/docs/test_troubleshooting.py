"""The error on the troubleshooting page equals that of a real start, except host and port."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.sandbox.common.serve import serve_in_thread
from deployments.sandbox.fhir.app import fhir_service
from tests.docs.pages import example
from tests.e2e.docs.place import ExamplePlace
from tests.e2e.docs.services import certified

CONFIGURATION = """
services:
  local_import: {dir: data}
  send: {send_as: direct_resource_load, url: "https://fhir.project.example"}
pipeline: {enabled_steps: [local_import, send]}
"""


@pytest.mark.e2e
def test_a_certificate_that_is_not_trusted_is_found_as_shown(tmp_path: Path) -> None:
    shown = example("docs/troubleshooting.md", "error[tls-untrusted]").text
    certificate, _ = certified(tmp_path)  # the file of its CA is not named in the configuration
    with serve_in_thread(fhir_service(), certificate=certificate) as served:
        place = ExamplePlace(tmp_path, None, fhir=served.url)
        place.save("data/Patient.ndjson", '{"resourceType": "Patient", "id": "p1"}\n')
        place.save("config.yaml", CONFIGURATION)
        ran = place.ran("sluice pipeline start config.yaml")
        assert ran.code == 2
        assert ran.err == shown.replace("https://fhir.example", served.url).replace("fhir.example", "127.0.0.1")
