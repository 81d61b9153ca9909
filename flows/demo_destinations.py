"""Where the demo sends to: the settings of each mode of ``send``, and what arrived.

Settings are ``APP_*`` variables of the demo's own process: a secret must not be a parameter of the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx

from deployments.sandbox import objectstore
from deployments.sandbox.common.serve import SandboxStartError
from tasks.shared.errors import TerminalError
from tasks.shared.units import human_bytes

PROJECT = "Demo-Project"
PROJECT_SYSTEM = "http://medizininformatik-initiative.de/sid/project-identifier"

Arrived = Callable[[], list[str]]
"""Lines that say what is at the destination now."""


@contextmanager
def destination(mode: str, fhir: str) -> Iterator[Arrived]:
    """Set up where to send to: the sandbox FHIR server at ``fhir``, or an object store that ends with the block.

    Raises:
        TerminalError: the object store did not start.
    """
    if mode == "s3":
        with _store() as store:
            yield lambda: _objects(store)
        return
    if mode == "transfer":
        _set(
            SEND_AS="transfer_load",
            TRANSFER_PROJECT_IDENTIFIER=PROJECT,
            TRANSFER_ORGANIZATION_IDENTIFIER="demo-hospital.example",
        )
        yield lambda: _documents(fhir)
        return
    yield list


@contextmanager
def _store() -> Iterator[objectstore.ObjectStoreChild]:
    try:
        started = objectstore.start_object_store()
    except SandboxStartError as error:
        raise TerminalError("sandbox", f"the object store did not start: {error}") from None
    with started as store:
        _set(
            SEND_AS="s3_upload",
            S3_ENDPOINT=store.url,
            S3_BUCKET=objectstore.BUCKET,
            S3_REGION=objectstore.REGION,
            S3_ACCESS_KEY_ID=objectstore.ACCESS_KEY_ID,
            S3_SECRET_ACCESS_KEY=objectstore.SECRET_ACCESS_KEY,
            S3_USE_PATH_STYLE="true",
        )
        yield store


def _objects(store: objectstore.ObjectStoreChild) -> list[str]:
    found = store.objects()
    return [
        f"objects in the bucket {objectstore.BUCKET}:",
        *(f"  {key}  {human_bytes(found[key].size)}  {found[key].content_type}" for key in sorted(found)),
    ]


def _documents(fhir: str) -> list[str]:
    """What the receiving process of a transfer finds by its search."""
    query = {"identifier": f"{PROJECT_SYSTEM}|{PROJECT}"}
    answer = httpx.get(f"{fhir}/fhir/DocumentReference", params=query, trust_env=False).raise_for_status()
    attachments = [entry["resource"]["content"][0]["attachment"] for entry in answer.json().get("entry", ())]
    return [
        f"DocumentReference of project {PROJECT}:",
        *(f"  {one['url']}  {human_bytes(one['size'])}  {one['contentType']}" for one in attachments),
    ]


def _set(**settings: str) -> None:
    os.environ.update({f"APP_SERVICES_SEND_{name}": value for name, value in settings.items()})
