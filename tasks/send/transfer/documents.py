"""The two resources of a transfer, Binary and DocumentReference, and the ids that make a repeated send replace.

Document 3 §7: the receiving process searches the DocumentReference by the project identifier, takes the first hit and
its first attachment. So a first hit of somebody else's is replaced, with a warning.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec

from tasks.send.transfer.archive import Archive
from tasks.shared.fhir.reading import ID, UNREADABLE
from tasks.shared.http_old.body import FileBody

PROJECT: Final = "http://medizininformatik-initiative.de/sid/project-identifier"
ORGANIZATION: Final = "http://dsf.dev/sid/organization-identifier"
ZIP: Final = "application/zip"
MAX_SIZE: Final = 2**31 - 1
"""Largest value of ``attachment.size``, an unsignedInt of R4; a larger zip goes without it."""

Document = Mapping[str, Any]
"""A DocumentReference that the server has."""


@dataclass(frozen=True)
class Transfer:
    """The project and the organization of the data (document 1, services.send.transfer)."""

    project: str
    organization: str

    @property
    def document_id(self) -> str:
        """Id of the DocumentReference: UUIDv5 of project and organization."""
        return str(uuid.uuid5(self._namespace, "DocumentReference"))

    @property
    def binary_id(self) -> str:
        """Id of the Binary: UUIDv5 of project and organization."""
        return str(uuid.uuid5(self._namespace, "Binary"))

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

    def stands(self, document: Document, archive: Archive) -> bool:
        """Return whether the document on the server already has this content, apart from its date."""
        return all(document.get(name) == value for name, value in self._fields(archive).items())

    def points_to(self, document: Document, archive: Archive) -> bool:
        """Return whether the receiving process, which takes the first attachment, would expect this zip."""
        wanted = self._fields(archive)["content"][0]["attachment"]["hash"]
        contents = document.get("content")
        first = contents[0] if isinstance(contents, list) and contents else None
        attachment = first.get("attachment") if isinstance(first, dict) else None
        return isinstance(attachment, dict) and attachment.get("hash") == wanted

    def concerns(self, document: Document) -> bool:
        """Return whether the document is about this project and thus a result of the search for it."""
        others = document.get("identifier")
        found = [document.get("masterIdentifier"), *(others if isinstance(others, list) else [])]
        return {"system": PROJECT, "value": self.project} in [
            {"system": one.get("system"), "value": one.get("value")} for one in found if isinstance(one, dict)
        ]

    def owns(self, document: Document) -> bool:
        """Return whether the document names this organization as an author."""
        authors = document.get("author")
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
            "url": f"Binary/{self.binary_id}",
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


def read_documents(body: bytes) -> list[Document] | None:
    """Return the DocumentReferences of a searchset in order; ``None`` if the answer is not one."""
    try:
        bundle = msgspec.json.decode(body, type=dict[str, Any])
        resources = [entry["resource"] for entry in bundle.get("entry") or ()]
        # An OperationOutcome may be about the search.
        found = [one for one in resources if one["resourceType"] == "DocumentReference"]
        identified = all(ID.fullmatch(one["id"]) for one in found)  # it becomes part of a URL
    except (*UNREADABLE, KeyError, TypeError):
        return None
    is_searchset = bundle.get("resourceType") == "Bundle" and bundle.get("type") == "searchset"
    return found if is_searchset and identified else None
