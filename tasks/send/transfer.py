"""``transfer_load``: the input as one zip in a FHIR store, announced by a DocumentReference (docs/services.md).

The receiving process takes the first hit of a search by the project identifier. So the step searches first, stores the
zip as a Binary, and last the DocumentReference, under the id of the first hit if there is one. Other ids are derived
from project and organization, so a repeated send replaces.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from tasks.send import FHIR, HEADERS, STATE
from tasks.send.checks import SentFile, fhir_url, service
from tasks.send.transfer_zip import plain_names, write_zip
from tasks.shared.errors import NetworkError, ServiceError, storage_errors
from tasks.shared.fhir.resource import ID, UNREADABLE
from tasks.shared.file_work import digest
from tasks.shared.files.kept_answers import FailedAnswers
from tasks.shared.http.answer import Answer
from tasks.shared.http.client import Call, ServiceClient
from tasks.shared.http.errors import DEFAULT_TRANSIENT, RequestContext, wrong_answer
from tasks.shared.report import StepReport
from tasks.shared.step import StepContext

PROJECT: Final = "http://medizininformatik-initiative.de/sid/project-identifier"
ORGANIZATION: Final = "http://dsf.dev/sid/organization-identifier"
RAW_ABOVE: Final = 64 << 20
"""Bytes above which a zip is sent raw instead of as Base64 in JSON."""

_ZIP: Final = "application/zip"
_UPLOAD_RATE: Final = 256 << 10  # bytes a second of a line of 2 Mbit/s: a large upload may take longer
_MAX_SIZE: Final = 2**31 - 1  # of attachment.size, an unsignedInt of R4; a larger zip goes without it
_SEVERAL: Final = (
    "the server has {} DocumentReferences for this project; the first one, which the receiving process takes, now "
    "points to this zip, the others stay as they are"
)
_SEARCH: Final = "search DocumentReference"
_PIECE: Final = 3 << 16  # a multiple of 3, so that the Base64 of pieces is that of the whole

Document = dict[str, Any]


def run(context: StepContext, files: list[SentFile]) -> StepReport:
    """Send everything in the input directory as one zip."""
    send = context.config.services.send
    project, organization = str(send.transfer.project_identifier), str(send.transfer.organization_identifier)
    members = plain_names(files)
    directory = context.state(STATE)
    path = directory / f"transfer-{digest(*(f'{file.name} {file.sha256}' for file in files))}.zip"
    client = context.client(service(context.config))
    with FailedAnswers(directory).begin().saving_answers(), client:
        store = _Store(client, fhir_url(context.config), context, project)
        found = store.find()
        _pack(context, members, path)
        wanted = _document(project, organization, path)
        identity = found[0]["id"] if found else _id(project, organization, "DocumentReference")
        there = bool(found) and all(found[0].get(name) == value for name, value in wanted.items())
        if not there:
            store.put_binary(_id(project, organization, "Binary"), path)
            store.put_document(identity, wanted)
    report = StepReport(
        files=len(files),
        bytes_in=sum(file.size for file in files),
        bytes_out=path.stat().st_size,
        warnings=(_SEVERAL.format(len(found)),) if len(found) > 1 else (),
        details={
            "document": f"DocumentReference/{identity}",
            "binary": wanted["content"][0]["attachment"]["url"],
            "already_there": there,
            "requests": context.meter.requests,
        },
    )
    _remove_zips(directory)
    return report


def _id(project: str, organization: str, kind: str) -> str:
    """Return the id of a resource of the transfer: UUIDv5 of project and organization."""
    space = uuid.uuid5(uuid.NAMESPACE_URL, f"{PROJECT}|{project}")
    return str(uuid.uuid5(uuid.uuid5(space, f"{ORGANIZATION}|{organization}"), kind))


def _pack(context: StepContext, files: Mapping[str, Path], path: Path) -> None:
    """Make the zip, unless an earlier run has left it."""

    def packed(size: int) -> None:
        context.stop.check()
        context.meter.add(bytes=size)

    if not path.exists():
        context.meter.begin("packing the zip")
        _remove_zips(path.parent)
        write_zip(files, path, packed=packed)


def _remove_zips(directory: Path) -> None:
    with storage_errors(directory):
        for path in directory.glob("transfer-*.zip"):
            path.unlink(missing_ok=True)


def _document(project: str, organization: str, path: Path) -> Document:
    """Return the DocumentReference of a zip, without its id and date. Raises ``StorageError``."""
    with storage_errors(path), path.open("rb") as file:
        sha1, size = hashlib.file_digest(file, "sha1").digest(), path.stat().st_size
    attachment: dict[str, Any] = {
        "contentType": _ZIP,
        "url": f"Binary/{_id(project, organization, 'Binary')}",
        "hash": base64.b64encode(sha1).decode(),
        "title": f"{project}.zip",
    }
    if size <= _MAX_SIZE:
        attachment["size"] = size
    return {
        "masterIdentifier": {"system": PROJECT, "value": project},
        "status": "current",
        "docStatus": "final",
        "author": [{"type": "Organization", "identifier": {"system": ORGANIZATION, "value": organization}}],
        "content": [{"attachment": attachment}],
    }


class _Store:
    """The FHIR store at the URL ``base``, which ends with ``/fhir``."""

    def __init__(self, client: ServiceClient, base: str, context: StepContext, project: str) -> None:
        self._client = client
        self._base = base
        self._context = context
        self._project = project

    def find(self) -> list[Document]:
        """Return the documents that the receiving process would find, in its order. Raises ``ServiceError``
        (``transfer-answer``) for any other answer: overwriting the document of another project would hide its data."""
        value = self._project
        for sign in "\\,|$":  # FHIR R4, search: these separate values
            value = value.replace(sign, "\\" + sign)
        url = f"{self._base}/DocumentReference?{urlencode({'identifier': f'{PROJECT}|{value}'})}"
        # Otherwise HAPI may answer with a cached result of the last minute.
        headers = {"Accept": FHIR, "Cache-Control": "no-cache"}
        answer = self._client.send(Call("GET", url, _SEARCH, headers=headers))
        found = _read_documents(answer)
        if found is None or not all(_concerns(one, self._project) for one in found):
            where = RequestContext("send", _SEARCH, "GET", url)
            what = "with something other than a result" if found is None else "with documents of another project"
            hint = "is services.send.url the root of a FHIR server?"
            raise wrong_answer(answer, where, what, reference="transfer-answer", hint=hint)
        return found

    def put_binary(self, identity: str, path: Path) -> None:
        """Upload the zip. Raises ``ServiceError``: ``transfer-too-large`` for 413, ``transfer-store-full`` for 507."""
        size = path.stat().st_size
        self._context.meter.begin("uploading the zip")
        self._context.meter.expect(bytes=size)
        body = _Body(path, size, self._context, identity if size <= RAW_ABOVE else None)
        headers = HEADERS | ({} if size <= RAW_ABOVE else {"Content-Type": _ZIP}) | {"Content-Length": str(body.length)}
        try:
            self._put(f"Binary/{identity}", "upload Binary", body, headers, body.length)
        except (ServiceError, NetworkError) as error:
            limits = f"the limits for a request of {body.length:,} bytes on the server and on any proxy before it"
            if error.answered == 413:
                error.reference, error.hint = "transfer-too-large", f"raise {limits}"
            elif error.answered == 507:
                error.reference, error.hint = "transfer-store-full", "free space on the server, then continue the job"
            elif error.reference == "connection-broken":
                # If the server answers 413 and closes the connection during the upload, the answer is lost.
                error.hint = f"{error.hint}; if it breaks off every time, see {limits}"
            raise

    def put_document(self, identity: str, wanted: Document) -> None:
        """Store the DocumentReference, which announces the zip."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        document = {"resourceType": "DocumentReference", "id": identity, **wanted, "date": date}
        operation = "store DocumentReference"
        self._put(f"DocumentReference/{identity}", operation, msgspec.json.encode(document), HEADERS, 0)

    def _put(self, path: str, operation: str, body: Any, headers: Mapping[str, str], size: int) -> None:
        timeout = self._context.config.services.send.timeout.total_seconds() + size / _UPLOAD_RATE
        url, transient = f"{self._base}/{path}", DEFAULT_TRANSIENT | {409}
        self._client.send(Call("PUT", url, operation, body, headers, timeout, transient=transient))


def _read_documents(answer: Answer) -> list[Document] | None:
    """Return the DocumentReferences of a searchset in order; ``None`` if the answer is not one."""
    try:
        bundle = msgspec.json.decode(answer.body, type=dict[str, Any])
        resources = [entry["resource"] for entry in bundle.get("entry") or ()]
        # An OperationOutcome may be about the search.
        found = [one for one in resources if one["resourceType"] == "DocumentReference"]
        identified = all(ID.fullmatch(one["id"]) for one in found)  # it becomes part of a URL
    except (*UNREADABLE, KeyError, TypeError):
        return None
    is_searchset = bundle.get("resourceType") == "Bundle" and bundle.get("type") == "searchset"
    return found if is_searchset and identified and answer.status == 200 and answer.says_json else None


def _concerns(document: Document, project: str) -> bool:
    """Return whether the document is about this project and thus a result of the search for it."""
    others = document.get("identifier")
    found = [document.get("masterIdentifier"), *(others if isinstance(others, list) else [])]
    return any(isinstance(one, dict) and (one.get("system"), one.get("value")) == (PROJECT, project) for one in found)


class _Body:
    """A zip as the content of a request: raw, or, with an ``identity``, as the JSON of a Binary, encoded while it is
    sent. The meter counts the bytes sent."""

    def __init__(self, path: Path, size: int, context: StepContext, identity: str | None) -> None:
        self._path = path
        self._context = context
        self._encode: Callable[[bytes], bytes] = bytes if identity is None else base64.b64encode
        head = f'{{"resourceType":"Binary","id":"{identity}","contentType":"{_ZIP}","data":"'
        self._around = (b"", b"") if identity is None else (head.encode(), b'"}')
        self.length = size if identity is None else sum(map(len, self._around)) + (size + 2) // 3 * 4

    def __iter__(self) -> Iterator[bytes]:
        yield self._around[0]
        with storage_errors(self._path), self._path.open("rb") as file:
            while piece := file.read(_PIECE):
                self._context.stop.check()
                yield self._encode(piece)
                self._context.meter.add(bytes=len(piece))
        yield self._around[1]
