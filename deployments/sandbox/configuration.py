"""The configuration file of a running sandbox, complete for ``pipeline start`` (``4-product.md`` §2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from deployments.sandbox.common.gate import RequiredCredentials
from deployments.sandbox.data import ANONYMIZATION_RULES, DEMO_CRTDL, DEMO_LOOKUP
from deployments.sandbox.options import API_KEY, PASSWORD, TOKEN, USERNAME

STEPS = ("extractor", "validation", "pseudonymizer", "flattening", "wait", "send")
"""Steps that use every service. ``demo`` runs the same steps."""


def configuration(urls: Mapping[str, str], data: Path, jobs: Path, gate: RequiredCredentials) -> str:
    """Return the text of the file. Credentials are written as references to the variables they came from."""
    lines = [
        "# Written by the sandbox. Deleted when the sandbox stops, unless it was started with --state.",
        "# Sandbox services are for trials and tests, not for production.",
        "",
        "# Start a job with a query (CRTDL). This one fits the bundled data:",
        f"#   pipeline start <this file> {DEMO_CRTDL}",
        "# At the wait, check the files. Then: pipeline continue <this file> <job> --approve",
        "",
        "pipeline:",
        "  # With local_import instead of extractor, no query is needed.",
        f"  enabled_steps: [{', '.join(STEPS)}]",
        "",
        "services:",
        "  extractor:",
        "    # Root of the sandbox extraction server; the pipeline appends /fhir.",
        f"    base_url: {_text(urls['extraction'])}",
        "    # First pause between two polls of the extraction job; each further pause doubles.",
        "    polling_interval: PT1S",
        *_auth(gate),
        "  local_import:",
        "    # The extraction server's data: NDJSON, plain or zstd. --dir selects another directory.",
        f"    dir: {_text(str(data))}",
        "  validation:",
        f"    url: {_text(urls['validation'])}",
        "    # Errors in the data stop the pipeline after this step.",
        "    fail_on_error: true",
        "  pseudonymizer:",
        "    # Root of the sandbox pseudonymization service; the pipeline appends /fhir.",
        f"    url: {_text(urls['pseudonymizer'])}",
        "    # Sent with each request. The keys in it are for made-up data only.",
        f"    anonymization_config: {_text(str(ANONYMIZATION_RULES))}",
        *_auth(gate),
        "  flattening:",
        "    # Root of the sandbox flattening service; the pipeline appends /fhir.",
        f"    service_url: {_text(urls['flattening'])}",
        "    # Lookup file: the columns for the elements of the query.",
        f"    lookup_path: {_text(str(DEMO_LOOKUP))}",
        "  send:",
        "    send_as: direct_resource_load",
        "    # Root of the sandbox FHIR server; the pipeline appends /fhir.",
        f"    url: {_text(urls['fhir'])}",
        "    # Resources per transaction.",
        "    batch_size: 100",
        *_auth(gate),
        "",
        "# Directory for the records and files of jobs.",
        f"jobs_dir: {_text(str(jobs))}",
    ]
    return "\n".join(lines) + "\n"


def _auth(gate: RequiredCredentials) -> list[str]:
    if gate.username is not None:
        return [
            "    # The sandbox was started with these variables; set them for the pipeline too.",
            "    auth:",
            f"      username: ${{{USERNAME}}}",
            f"      password: ${{{PASSWORD}}}",
        ]
    if gate.token is not None:
        return [
            "    # The sandbox was started with this variable; set it for the pipeline too.",
            "    auth:",
            f'      api_key: "Bearer ${{{TOKEN}}}"',
            "      api_key_header: Authorization",
        ]
    if gate.api_key is not None:
        return [
            "    # The sandbox was started with this variable; set it for the pipeline too.",
            "    auth:",
            f'      api_key: "${{{API_KEY}}}"',
            f"      api_key_header: {_text(gate.api_key_header)}",
        ]
    return []


def _text(value: str) -> str:
    """Return a YAML string that is not expanded: JSON is YAML, and ``$${`` stands for ``${``."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")
