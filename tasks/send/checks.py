"""Check the destination of the data, its server and its capabilities (document 1, services.send).

A FHIR server is asked what it is before the first data go there (document 3 §7): one of R4, that takes what
``services.send.send_as`` will send, and none of the other services of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from config import PipelineConfig, SendMode
from tasks.shared.errors import InputError
from tasks.shared.fhir.reading import UNREADABLE
from tasks.shared.http_old.answer import Answer, place
from tasks.shared.service import Found, ProbeRequest, ProbeWarning, Service, SyntheticProbe
from tasks.shared.step import CheckContext

HEADERS: Final = {"Accept": "application/fhir+json"}
_HIDDEN: Final = frozenset({401, 403, 404})
_R4: Final = "4.0."
_OTHERS: Final = frozenset({"de-identify", "extract-data", "viewdefinition-run"})
"""Operations by which the other services are known."""


class StoreProbe:
    """The check that an S3-compatible store has the bucket (HeadBucket)."""

    proves = True

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """See ``tasks.shared.service.Probe``."""
        from tasks.send.s3 import upload  # boto3 is slow to import

        yield from upload.findings(config, **more)


def service(config: PipelineConfig) -> Service:
    """``services.send``, as its mode says: a FHIR server or a bucket."""
    send = config.services.send
    if send.send_as is not SendMode.S3_UPLOAD:
        return Service("send", send.url, send.auth, PROBE, f"{place(send.url or '')} ({send.send_as})")
    store = place(send.s3.endpoint) if send.s3.endpoint else f"the public service in {send.s3.region}"
    words = f"bucket {send.s3.bucket} at {store} (s3_upload)"
    return Service("send", send.s3.endpoint, send.auth, StoreProbe(), words)


def fhir_url(config: PipelineConfig) -> str:
    """Return the base URL of the FHIR server that takes the data. Raises ``InputError`` (``send-url``) for none."""
    if config.services.send.url is None:
        raise InputError("send-url", "send: there is no FHIR server to send to", context="services.send.url")
    return f"{str(config.services.send.url).rstrip('/')}/fhir"


def space(context: CheckContext, read: int) -> int:
    """Return the space for the zip file of a transfer, which is deleted afterwards."""
    return read if context.config.services.send.send_as is SendMode.TRANSFER_LOAD else 0


def _exchanges(service: Service, config: PipelineConfig) -> Iterator[ProbeRequest]:
    loads = config.services.send.send_as is SendMode.DIRECT_RESOURCE_LOAD

    def wrong(answer: Answer) -> ProbeWarning | str | None:
        return _wrong(answer, transactions=loads)

    url = f"{(service.url or '').rstrip('/')}/fhir/metadata"
    yield ProbeRequest("GET", url, wrong, headers=HEADERS, accept=_HIDDEN)


PROBE: Final = SyntheticProbe("a FHIR R4 server that takes data", _exchanges)


def _wrong(answer: Answer, *, transactions: bool) -> ProbeWarning | str | None:
    if answer.status in _HIDDEN:
        return ProbeWarning(
            f"send: the server refused its metadata ({answer.status}), so its capabilities could not be checked"
        )
    if not answer.says_json:
        return "answered with a Content-Type that is not JSON"
    try:
        statement = msgspec.json.decode(answer.body, type=dict[str, Any])
    except UNREADABLE:
        return "answered something that is no CapabilityStatement"
    if statement.get("resourceType") != "CapabilityStatement":
        return "answered something that is no CapabilityStatement"
    if not str(statement.get("fhirVersion", "")).startswith(_R4):
        return "answered a CapabilityStatement that is not of FHIR 4.0"
    rests = _objects(statement.get("rest"))
    for operation in (one for rest in rests for one in _operations(rest)):
        if operation in _OTHERS:
            return "offered an operation of another service of the pipeline"
    if not any(_objects(rest.get("resource")) for rest in rests):
        return "reported that it holds no resources"
    offered = {str(one.get("code")) for rest in rests for one in _objects(rest.get("interaction"))}
    if not transactions:
        return None
    if offered and "transaction" not in offered:
        return "reported that it accepts no transactions"
    return None if offered else ProbeWarning("send: the server does not report whether it accepts transactions")


def _operations(rest: dict[str, Any]) -> Iterator[str]:
    """Yield the operations of a server and of its resource types, in one spelling."""
    for one in _objects(rest.get("operation")):
        yield _named(one)
    for resource in _objects(rest.get("resource")):
        for one in _objects(resource.get("operation")):
            name = _named(one)
            yield f"{str(resource.get('type', '')).lower()}-run" if name == "run" else name


def _named(operation: dict[str, Any]) -> str:
    name = str(operation.get("name", "")).lstrip("$").lower()
    definition = str(operation.get("definition", ""))
    of_views = name in {"run", "viewdefinition-run"} and (
        "viewdefinition" in definition.lower() or "sql-on-fhir" in definition
    )
    return "viewdefinition-run" if of_views else name


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list from another program."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
