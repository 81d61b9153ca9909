"""The made-up resource that goes to the flattening service before anything else (document 3 §5)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from config import PipelineConfig
from tasks.flattening.answer import Promise, RowAgreement, RowRule, RowsDifferError
from tasks.flattening.rows import NoRowError, RowReader
from tasks.flattening.views import RESOURCE_TYPE
from tasks.shared.http_old.answer import Answer
from tasks.shared.service import ProbeRequest, Service, SyntheticProbe

HEADERS: Final = {"Content-Type": "application/fhir+json", "Accept": "application/x-ndjson"}
"""*Quirk:* ``Accept`` must be exactly one media type, everything else is a 500."""

_NDJSON: Final = re.compile(r"application/[a-z0-9.+-]*json[a-z0-9.+-]*")
"""Media types under which services send rows: ``x-ndjson``, ``ndjson``, ``fhir+ndjson``, ``x-jsonlines``, ``json``."""

ROW: Final = {"id": "sluice-probe-patient"}
_VIEW: Final = {
    "resourceType": RESOURCE_TYPE,
    "name": "sluice_probe",
    "status": "active",
    "resource": "Patient",
    "select": [{"column": [{"name": "id", "path": "id"}]}],
}
_BODY: Final = json.dumps(
    {
        "resourceType": "Parameters",
        "parameter": [
            {"name": "viewDefinition", "resource": _VIEW},
            {"name": "resources", "resource": {"resourceType": "Patient", **ROW, "active": False}},
        ],
    }
).encode()


def endpoint(url: str) -> str:
    """Return the URL of the operation for the root URL of the service."""
    return f"{url.rstrip('/')}/fhir/ViewDefinition/$run?_format=ndjson"


def _exchanges(service: Service, _config: PipelineConfig) -> Iterator[ProbeRequest]:
    yield ProbeRequest("POST", endpoint(service.url or ""), _wrong, _BODY, HEADERS)


PROBE: Final = SyntheticProbe("a flattening service", _exchanges, key="service_url")


def service(config: PipelineConfig) -> Service:
    """``services.flattening``: it has no credentials."""
    return Service("flattening", config.services.flattening.service_url, probe=PROBE)


def is_ndjson(headers: Mapping[str, str]) -> bool:
    """Return whether the ``Content-Type`` permits rows. *Quirk:* the deployed service sends none."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return not kind or _NDJSON.fullmatch(kind) is not None


def unlike_rows(status: int, headers: Mapping[str, str]) -> str | None:
    """Return what an answer holds that can be no rows by its head, else ``None``."""
    if status != 200:  # 202 is a promise
        return "no rows"
    return None if is_ndjson(headers) else "a Content-Type that is not NDJSON"


def _wrong(answer: Answer) -> str | None:
    if what := unlike_rows(answer.status, answer.headers):
        return f"answered {answer.status} with {what}"
    reader = RowReader(tuple(ROW), key=0)
    agreement = RowAgreement(RowRule(Promise.ONE, 0), ROW.values())
    try:
        reader.read(answer.body)
        agreement.check_ids(reader.ids)
        agreement.end()
    except NoRowError:
        return "answered a row that is no JSON object"
    except RowsDifferError:
        return "did not answer the one row of the resource"
    return "answered a row with keys that are no column" if reader.unknown_keys else None
