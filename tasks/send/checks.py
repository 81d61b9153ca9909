"""Check the input and the destination before data leave (docs/services.md).

Every mode first compares the input with the record, which reads the stored bytes once. A FHIR server must be one of R4
that accepts what ``services.send.send_as`` sends, and not another service of the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from config import PipelineConfig, SendMode
from tasks.shared.errors import DataError, SluiceError
from tasks.shared.fhir.resource import UNREADABLE
from tasks.shared.files.data_directory import CORE, base_name, finished_files, stored_bytes
from tasks.shared.files.inventory import differences, take_inventory
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import Call
from tasks.shared.service import PATIENCE, Found, ProbeRequest, ProbeWarning, Service, SyntheticProbe
from tasks.shared.step import CheckContext, StepContext
from tasks.shared.stop import Stop

_HIDDEN: Final = frozenset({401, 403, 404})
_OTHERS: Final = frozenset({"de-identify", "extract-data", "run", "viewdefinition-run"})
"""Operations that other services of the pipeline offer; ``$run`` is that of views."""


class StoreProbe:
    """The check that an S3-compatible store has the bucket (HeadBucket)."""

    proves = True

    def find_problems(self, service: Service, config: PipelineConfig, **more: Any) -> Iterator[Found]:
        """See ``tasks.shared.service.Probe``. Keys that have no right to look for the bucket give a warning."""
        from tasks.send.s3_store import StoreClient, translated  # botocore is slow to import

        more = {"stop": Stop()} | more
        try:
            with StoreClient(config, within=PATIENCE, **more) as client, translated():
                client.boto.head_bucket(Bucket=config.services.send.s3.bucket)
        except SluiceError as error:
            denied = error.status == 403 and error.reference == "s3-access-denied"
            what = "send: the keys have no right to look for the bucket; only the upload shows whether they can write"
            yield ProbeWarning(what) if denied else error


def service(config: PipelineConfig) -> Service:
    """Return ``services.send``: a FHIR server or, in the mode ``s3_upload``, a bucket."""
    send = config.services.send
    if send.send_as is SendMode.S3_UPLOAD:
        return Service("send", send.s3.endpoint, send.auth, probe=StoreProbe())
    return Service("send", send.url, send.auth, send.timeout.total_seconds(), PROBE)


def fhir_url(config: PipelineConfig) -> str:
    """Return the base URL of the FHIR server that takes the data."""
    return f"{str(config.services.send.url).rstrip('/')}/fhir"


def space(context: CheckContext, read: int) -> int:
    """Return the space for the temporary zip file of a transfer; other modes need none."""
    return read if context.config.services.send.send_as is SendMode.TRANSFER_LOAD else 0


def _exchanges(service: Service, config: PipelineConfig) -> Iterator[ProbeRequest]:
    loads = config.services.send.send_as is SendMode.DIRECT_RESOURCE_LOAD

    def wrong(answer: Answer) -> ProbeWarning | str | None:
        return _wrong(answer, transactions=loads)

    url = f"{(service.url or '').rstrip('/')}/fhir/metadata"
    headers = {"Accept": "application/fhir+json"}
    yield ProbeRequest(Call("GET", url, "test request", headers=headers, accept=_HIDDEN), wrong)


PROBE: Final = SyntheticProbe("a FHIR R4 server that takes data", _exchanges)


def _wrong(answer: Answer, *, transactions: bool) -> ProbeWarning | str | None:
    if answer.status in _HIDDEN:
        return ProbeWarning(
            f"send: the server refused its metadata ({answer.status}), so its capabilities could not be checked"
        )
    try:
        statement = msgspec.json.decode(answer.body, type=dict[str, Any]) if answer.says_json else {}
    except UNREADABLE:
        statement = {}
    if statement.get("resourceType") != "CapabilityStatement":
        return "answered something that is not a CapabilityStatement"
    if not str(statement.get("fhirVersion", "")).startswith("4.0."):
        return "answered a CapabilityStatement that is not of FHIR 4.0"
    rests = _objects(statement.get("rest"))
    if any(_operations(rest) & _OTHERS for rest in rests):
        return "offered an operation of another service of the pipeline"
    if not any(_objects(rest.get("resource")) for rest in rests):
        return "reported that it holds no resources"
    offered = {str(one.get("code")) for rest in rests for one in _objects(rest.get("interaction"))}
    if not transactions:
        return None
    if offered and "transaction" not in offered:
        return "reported that it accepts no transactions"
    return None if offered else ProbeWarning("send: the server does not report whether it accepts transactions")


def _operations(rest: dict[str, Any]) -> set[str]:
    """Return the operations of a server and of its resource types, in one spelling."""
    owners = [rest, *_objects(rest.get("resource"))]
    return {
        str(one.get("name", "")).lstrip("$").lower() for owner in owners for one in _objects(owner.get("operation"))
    }


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list from another program."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# The input


@dataclass(frozen=True)
class SentFile:
    """A file to be sent: its path below the input directory, size and SHA-256 (hex) of its stored bytes."""

    path: Path
    name: str
    size: int
    sha256: str


def compare(context: StepContext) -> list[SentFile]:
    """Compare the input with the approved inventory, else with the recorded one; return its files, ``core`` first.

    Raises ``DataError``: ``send-input-differs``, with the files that differ; ``send-no-input``.
    """
    directory, recorded, meter = context.input_dir, context.input.approved or context.input.recorded, context.meter
    meter.begin("checking what is to be sent")
    meter.expect(bytes=stored_bytes(finished_files(directory)))
    now = take_inventory(context.job_dir, [directory], stop=context.stop, read=lambda size: meter.add(bytes=size))
    if recorded is not None and now.digest != recorded.digest:
        before = recorded.load()
        listed = differences(before, now) if before is not None else ["the list of its files is gone or was changed"]
        raise DataError(
            "send-input-differs",
            f"send: {directory.name}/ differs from what step {recorded.position}, {recorded.step}, recorded",
            context="\n  ".join(listed),
            hint="nothing was sent by this run: put the files back as they were and continue the job, or run the step "
            f"that wrote them again: {context.again(recorded.position)}",
        )
    meter.begin("sending")
    found = ((context.job_dir / one.name, one) for one in now.entries)
    files = [SentFile(path, path.relative_to(directory).as_posix(), one.size, one.sha256) for path, one in found]
    if not files:
        raise DataError("send-no-input", "send: there is nothing to send", context=str(directory))
    return sorted(files, key=lambda file: (base_name(file.name).lower() != CORE, file.name))
