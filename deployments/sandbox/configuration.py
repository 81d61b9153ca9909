"""The configuration file that a running sandbox offers: complete, for ``pipeline start`` (``4-product.md`` §2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from deployments.sandbox.gate import Gate
from deployments.sandbox.options import PASSWORD, TOKEN, USERNAME


def configuration(urls: Mapping[str, str], data: Path, jobs: Path, gate: Gate) -> str:
    """The file's text. Credentials are named, not written: the variables they came from are expanded by the reader."""
    lines = [
        "# Written by the sandbox for this one run of it; it goes when the sandbox goes, unless --state keeps it.",
        "# Sandbox services are for trials and tests, not for production.",
        "",
        "pipeline:",
        "  # An import comes first. At the wait, look at the files, then: pipeline continue <this file> <job>",
        "  enabled_steps: [local_import, wait, send]",
        "",
        "services:",
        "  local_import:",
        "    # NDJSON files to import, plain or zstd. --dir names another directory.",
        f"    dir: {_text(str(data))}",
        "  extractor:",
        "    # Root of the sandbox extraction server; the pipeline appends /fhir. It extracts from the same files.",
        f"    base_url: {_text(urls['extraction'])}",
        *_auth(gate),
        "  send:",
        "    send_as: direct_resource_load",
        "    # Root of the sandbox FHIR server; the pipeline appends /fhir.",
        f"    url: {_text(urls['fhir'])}",
        "    # Resources per transaction.",
        "    batch_size: 100",
        *_auth(gate),
        "",
        "# Where jobs keep their record and their files.",
        f"jobs_dir: {_text(str(jobs))}",
    ]
    return "\n".join(lines) + "\n"


def _auth(gate: Gate) -> list[str]:
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
    return []


def _text(value: str) -> str:
    """A string in YAML, safe from being expanded: JSON is YAML, and ``$${`` stands for ``${``."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")
