"""Descriptions of the server: CapabilityStatement, and OpenAPI 3.1 as JSON and as a page without scripts."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from deployments.sandbox.common import request
from deployments.sandbox.common.request import DISCLAIMER

_OPERATIONS = "https://sandbox.example/fhir/OperationDefinition"


def capability_statement(root: str, started: str) -> bytes:
    """Return the CapabilityStatement as JSON."""
    tasks = {
        "type": "Task",
        "interaction": [{"code": code} for code in ("read", "update", "delete", "search-type")],
        "versioning": "versioned-update",
        "searchParam": [{"name": "_id", "type": "token"}, {"name": "status", "type": "token"}],
        "operation": [_operation(name) for name in ("pause", "resume", "cancel")],
    }
    rest = {"resource": [tasks], "operation": [_operation(name) for name in ("extract-data", "evaluate-cohort")]}
    return request.capability_statement("extraction server", started, rest, url=f"{root}/fhir")


def _operation(name: str) -> dict[str, str]:
    return {"name": name, "definition": f"{_OPERATIONS}/{name}"}


PATHS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_bytes())
"""Operations by path and method."""


def description(root: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice sandbox extraction server", "version": "1", "description": DISCLAIMER},
        "servers": [{"url": root}],
        "paths": PATHS,
    }


def page() -> bytes:
    """Return the OpenAPI document as an HTML page."""
    rows = [
        f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(operation['summary'])}</p>"
        + _list(operation)
        for path, methods in PATHS.items()
        for method, operation in methods.items()
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Extraction server</title>"
        "<style>body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}</style>"
        f"<h1>Sluice sandbox extraction server</h1><p>{html.escape(DISCLAIMER)}</p>"
        '<p><a href="openapi.json">openapi.json</a></p>' + "".join(rows) + "</html>\n"
    ).encode()


def _list(operation: dict[str, Any]) -> str:
    given = [
        f"<li><code>{html.escape(item['name'])}</code> ({item['in']}) {html.escape(item.get('description', ''))}</li>"
        for item in operation.get("parameters", ())
    ]
    answers = [
        f"<li><b>{status}</b> {html.escape(answer['description'])}</li>"
        for status, answer in operation["responses"].items()
    ]
    return f"<ul>{''.join(given)}{''.join(answers)}</ul>"
