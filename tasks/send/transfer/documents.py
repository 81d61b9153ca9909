"""The two resources of a transfer, Binary and DocumentReference, and the ids that make a repeated send replace.

Document 3 §7: the receiving process searches the DocumentReference by the project identifier, takes the first hit and
its first attachment. So a first hit of somebody else's is replaced, with a warning, and its Binary stays: it is not
ours to delete. One that differs in its time only is left alone: sending twice leaves what sending once did.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from tasks.send.transfer.archive import Archive
from tasks.shared.fhir.reading import ID, UNREADABLE, RepeatedKeyError, check_utf8, unique_members
from tasks.shared.http.body import FileBody

PROJECT: Final = "http://medizininformatik-initiative.de/sid/project-identifier"
ORGANIZATION: Final = "http://dsf.dev/sid/organization-identifier"
ZIP: Final = "application/zip"
MAX_SIZE: Final = 2**31 - 1
"""Largest value of ``attachment.size``, an unsignedInt of R4; a larger zip goes without it."""


@dataclass(frozen=True)
class Hit:
    """A DocumentReference that the server has for the project."""

    id: str
    document: dict[str, Any]

    def binaries(self, base: str) -> list[str]:
        """Ids of the Binary resources of the server at ``base`` that its attachments name."""
        found: list[str] = []
        contents = self.document.get("content")
        for content in contents if isinstance(contents, list) else []:
            attachment = content.get("attachment") if isinstance(content, dict) else None
            url = attachment.get("url") if isinstance(attachment, dict) else None
            if isinstance(url, str):
                kind, _, rest = url.removeprefix(f"{base}/").partition("/")
                identity = rest.partition("/_history/")[0]
                if kind == "Binary" and identity and "/" not in identity:
                    found.append(identity)
        return found


@dataclass(frozen=True)
class Transfer:
    """The project and the organization of the data (document 1, services.send.transfer)."""

    project: str
    organization: str

    @property
    def document_id(self) -> str:
        """Id of the DocumentReference: UUIDv5 of project and organization."""
        return str(uuid.uuid5(self._namespace, "DocumentReference"))

    def binary_id(self, archive: Archive) -> str:
        """Id of the Binary: UUIDv5 of project, organization and content."""
        return str(uuid.uuid5(self._namespace, f"Binary {archive.sha256}"))

    @property
    def _namespace(self) -> uuid.UUID:
        project = uuid.uuid5(uuid.NAMESPACE_URL, f"{PROJECT}|{self.project}")
        return uuid.uuid5(project, f"{ORGANIZATION}|{self.organization}")

    @property
    def query(self) -> str:
        """The search that the receiving process makes, behind the ``?``."""
        value = self.project
        for sign in "\\,|$":  # FHIR R4, search: these separate values
            value = value.replace(sign, "\\" + sign)
        return urlencode({"identifier": f"{PROJECT}|{value}"})

    def document(self, identity: str, archive: Archive, date: str) -> bytes:
        """Return the DocumentReference that commits the transfer, with the id ``identity``. ``date`` has a zone."""
        fields = {"resourceType": "DocumentReference", "id": identity, **self._fields(archive), "date": date}
        return msgspec.json.encode(fields)

    def stands(self, hit: Hit, archive: Archive) -> bool:
        """Return whether the document on the server already has this content, apart from its date."""
        return all(hit.document.get(name) == value for name, value in self._fields(archive).items())

    def concerns(self, hit: Hit) -> bool:
        """Return whether the document is about this project and thus a result of the search for it."""
        others = hit.document.get("identifier")
        found = [hit.document.get("masterIdentifier"), *(others if isinstance(others, list) else [])]
        return any(
            isinstance(one, dict) and one.get("system") == PROJECT and one.get("value") == self.project for one in found
        )

    def arrived(self, hit: Hit, archive: Archive, base: str) -> bool:
        """Return whether the receiving process, which uses the first attachment, gets this zip unchanged: from this
        organization, final, with this url, type, size and hash. A server may add elements and write the url in full."""
        if hit.binaries(base)[:1] != [self.binary_id(archive)] or not self.owns(hit):
            return False
        wanted = self._fields(archive)
        (put,) = wanted["content"]
        attachment = hit.document["content"][0]["attachment"]
        return all(hit.document.get(name) == wanted[name] for name in ("status", "docStatus")) and all(
            attachment.get(name) == put["attachment"].get(name) for name in ("contentType", "size", "hash")
        )

    def owns(self, hit: Hit) -> bool:
        """Return whether the document names this organization as an author."""
        authors = hit.document.get("author")
        wanted = self._author["identifier"]
        return isinstance(authors, list) and any(
            isinstance(author, dict) and author.get("identifier") == wanted for author in authors
        )

    @property
    def _author(self) -> dict[str, Any]:
        return {"type": "Organization", "identifier": {"system": ORGANIZATION, "value": self.organization}}

    def _fields(self, archive: Archive) -> dict[str, Any]:
        attachment: dict[str, Any] = {
            "contentType": ZIP,
            "url": f"Binary/{self.binary_id(archive)}",
            "hash": base64.b64encode(bytes.fromhex(archive.sha1)).decode(),
            "title": f"{self.project}.zip",
        }
        if archive.size <= MAX_SIZE:
            attachment["size"] = archive.size
        return {
            "masterIdentifier": {"system": PROJECT, "value": self.project},
            "status": "current",
            "docStatus": "final",
            "author": [self._author],
            "content": [{"attachment": attachment}],
        }


_entries = msgspec.json.Decoder(list[msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, Any])
_NO_ENTRIES: Final = msgspec.Raw(b"[]")


class BinaryJson:
    """A Binary in its FHIR form, Base64 in JSON, made from the file while it is sent: a ``Body``."""

    def __init__(self, identity: str, content: FileBody) -> None:
        self._content = content
        self._head = b'{"resourceType":"Binary","id":"%s","contentType":"%s","data":"' % (
            identity.encode(),
            ZIP.encode(),
        )
        self._tail = b'"}'

    @property
    def length(self) -> int:
        """Bytes of the JSON."""
        return len(self._head) + (self._content.length + 2) // 3 * 4 + len(self._tail)

    def pieces(self) -> Iterator[bytes]:
        """Yield the JSON from its start."""
        yield self._head
        rest = b""
        for piece in self._content.pieces():
            data = rest + piece if rest else piece
            whole = len(data) // 3 * 3
            yield base64.b64encode(data[:whole])
            rest = data[whole:]
        yield base64.b64encode(rest) + self._tail


def read_hits(body: bytes) -> list[Hit] | None:
    """Return the DocumentReferences of a searchset in order; ``None`` if the answer is not one or is ambiguous."""
    try:
        check_utf8(body)
        members = unique_members(body)
        found = [unique_members(entry).get("resource") for entry in _entries.decode(members.pop("entry", _NO_ENTRIES))]
        resources = [_object.decode(msgspec.json.encode(unique_members(raw))) for raw in found if raw is not None]
        bundle = _object.decode(msgspec.json.encode(members))
    except (*UNREADABLE, RepeatedKeyError):
        return None
    if bundle.get("resourceType") != "Bundle" or bundle.get("type") != "searchset":
        return None
    hits: list[Hit] = []
    for resource in resources:
        if resource.get("resourceType") != "DocumentReference":
            continue  # an OperationOutcome about the search
        identity = resource.get("id")
        if not isinstance(identity, str) or not ID.fullmatch(identity):
            return None  # it becomes part of a URL
        hits.append(Hit(identity, resource))
    return hits
