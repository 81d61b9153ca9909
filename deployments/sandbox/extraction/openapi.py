"""The description of the API: OpenAPI 3.1 as JSON, and the same as a page without scripts."""

from __future__ import annotations

import html
from typing import Any

from deployments.sandbox.common.service import DISCLAIMER

_OUTCOME = "an OperationOutcome says why"
_JOB = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}}
_FHIR = "application/fhir+json"


def _text(name: str, where: str, description: str, *, required: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": required,
        "description": description,
        "schema": {"type": "string"},
    }


def _operation(
    summary: str,
    answers: dict[int, str],
    *,
    takes: str | None = None,
    parameters: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": summary}
    if parameters:
        operation["parameters"] = list(parameters)
    if takes is not None:
        operation["requestBody"] = {"required": True, "content": {takes: {"schema": {"type": "object"}}}}
    operation["responses"] = {str(status): {"description": text} for status, text in answers.items()}
    return operation


_NOT_FOUND = {404: f"no such job; {_OUTCOME}"}
_CONFLICT = {409: f"the job's state does not allow it; {_OUTCOME}"}
_RANGE = _text("Range", "header", "one range of bytes")
_FILE = (_JOB, _text("file", "path", "the file's name, below the job", required=True), _RANGE)

PATHS: dict[str, dict[str, Any]] = {
    "/fhir/$extract-data": {
        "post": _operation(
            "Start an extraction: Parameters with crtdl (valueBase64Binary) and any number of patient (valueString)",
            {
                202: "accepted; Content-Location is the status URL",
                400: f"the query is wrong or cannot be honoured; {_OUTCOME}",
                413: "the body is larger than 2 MiB",
            },
            takes=_FHIR,
        )
    },
    "/fhir/$evaluate-cohort": {
        "post": _operation(
            "The cohort of a CRTDL or CCDL, without a job",
            {200: "a List of Patient references", 400: _OUTCOME, 413: "the body is larger than 2 MiB"},
            takes="application/json",
        )
    },
    "/fhir/__status/{id}": {
        "get": _operation(
            "Poll a job",
            {
                200: "complete: the manifest",
                202: "not complete: an OperationOutcome, and X-Progress",
                400: "the id is no UUID",
                404: "no such job",
                410: "the job was cancelled",
                500: "the job failed",
                503: "the job failed for now and will go on by itself",
            },
            parameters=(_JOB,),
        )
    },
    "/fhir/Task": {
        "get": _operation(
            "Search jobs, newest first",
            {200: "a searchset Bundle", 400: f"with Prefer: handling=strict, when a parameter is wrong; {_OUTCOME}"},
            parameters=(
                _text("_id", "query", "job ids, separated by commas"),
                _text("status", "query", "JobStatus values, separated by commas"),
                _text("Prefer", "header", "handling=strict or handling=lenient"),
            ),
        )
    },
    "/fhir/Task/{id}": {
        "get": _operation("Read a job", {200: "the Task"} | _NOT_FOUND, parameters=(_JOB,)),
        "put": _operation(
            "Change the priority of a job",
            {
                200: "the changed Task",
                400: f"the body is no Task; {_OUTCOME}",
                409: f"the version is not the current one; {_OUTCOME}",
                428: "If-Match is missing or cannot be read",
            }
            | _NOT_FOUND,
            takes=_FHIR,
            parameters=(_JOB, _text("If-Match", "header", 'the version, as W/"3"', required=True)),
        ),
        "delete": _operation(
            "Remove a job and its results",
            {204: "removed", 500: f"the results could not be removed; {_OUTCOME}"} | _NOT_FOUND,
            parameters=(_JOB,),
        ),
    },
    **{
        f"/fhir/Task/{{id}}/${name}": {
            "post": _operation(text, {200: "the changed Task"} | _NOT_FOUND | _CONFLICT, parameters=(_JOB,))
        }
        for name, text in (
            ("pause", "Hold a running job"),
            ("resume", "Let a paused job go on"),
            ("cancel", "End a job that has not ended"),
        )
    },
    "/output/{id}/{file}": {
        method: _operation(
            text,
            {200: "the file", 206: "the range", 404: "no such file", 416: "the range is outside the file"},
            parameters=_FILE,
        )
        for method, text in (("get", "Read a result file"), ("head", "Ask for a result file's size"))
    },
    "/fhir/metadata": {"get": _operation("The CapabilityStatement", {200: "a CapabilityStatement"})},
    "/openapi.json": {"get": _operation("This description", {200: "OpenAPI 3.1"})},
    "/docs": {"get": _operation("This description as a page", {200: "HTML"})},
}


def description(root: str) -> dict[str, Any]:
    """The OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice sandbox extraction server", "version": "1", "description": DISCLAIMER},
        "servers": [{"url": root}],
        "paths": PATHS,
    }


def page() -> bytes:
    """The same for people."""
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
