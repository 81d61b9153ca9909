"""Changes of a FHIR server: transactions of PUT entries, all or nothing. References must lead to stored resources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn

import msgspec

from deployments.sandbox.extraction.tree import references
from deployments.sandbox.fhir.store import ResourceStore, Stored
from deployments.sandbox.r4 import ID, local_key, resource_types
from deployments.sandbox.service import FhirProblem, Json

Manners = Literal["hapi", "blaze"]
_URL: Final = re.compile(r"([A-Z]\w*)/([^/?#]+)")
MEDIA: Final = "application/fhir+json"
_document: Final = msgspec.json.Decoder(dict[str, Any], float_hook=str)


class _Request(msgspec.Struct):
    method: str = ""
    url: str = ""


class _Entry(msgspec.Struct):
    request: _Request | None = None
    resource: msgspec.Raw = msgspec.Raw()


class _Bundle(msgspec.Struct, rename="camel"):
    resource_type: str = ""
    type: str = ""
    entry: list[_Entry] = []


@dataclass(frozen=True)
class Received:
    """A resource ready to be stored: its bytes stay as they are."""

    type: str
    id: str
    body: bytes
    document: Json

    @property
    def key(self) -> str:
        """Return ``Type/id``."""
        return f"{self.type}/{self.id}"

    def tokens(self) -> list[str]:
        """Return its identifiers as search tokens, of a DocumentReference also the master identifier."""
        values = [self.document.get("identifier"), [self.document.get("masterIdentifier")]]
        listed = [each for value in values if isinstance(value, list) for each in value if isinstance(each, dict)]
        pairs = [(each.get("system") or "", each["value"]) for each in listed if each.get("value")]
        return [token for system, value in pairs for token in (str(value), f"{system}|{value}")]


def read_resource(body: bytes, kind: str, identity: str, manners: Manners) -> Received:
    """Read a resource that is to be stored as ``kind/identity``. Raises ``FhirProblem`` 400."""
    try:
        document = _document.decode(body)
    except (ValueError, RecursionError):
        raise FhirProblem(400, "structure", "The resource is not a JSON object.") from None
    if kind not in resource_types() or document.get("resourceType") != kind:
        raise FhirProblem(400, "invalid", f"The resource is not of the type in the URL, {kind}.")
    if not ID.fullmatch(identity) or document.get("id") != identity:
        raise FhirProblem(400, "invalid", "The id of the resource and that in the URL must be equal, and valid.")
    if manners == "hapi" and identity.isdigit():
        text = "clients may only assign IDs which contain at least one non-numeric character"
        raise FhirProblem(400, "processing", f"HAPI-0960: Can not create resource with ID[{identity}], {text}")
    return Received(kind, identity, body, document)


@dataclass(frozen=True)
class Changes:
    """Writes to a store under its rules."""

    store: ResourceStore
    manners: Manners

    def transaction(self, body: bytes) -> tuple[int, Json]:
        """Do a transaction; return the number of its entries and the answer. Raises ``FhirProblem``."""
        received = self._read(body)
        with self.store.transaction():
            made = [self._stored(each) for each in received]
            self._check(received)
        entries = [{"response": self._response(*each)} for each in made]
        return len(received), {"resourceType": "Bundle", "type": "transaction-response", "entry": entries}

    def put(self, resource: Received) -> tuple[Stored, bool]:
        """Store one resource; return it, and whether it is new. Raises ``FhirProblem``."""
        with self.store.transaction():
            made = self._stored(resource)
            self._check([resource])
        return made

    def _stored(self, resource: Received) -> tuple[Stored, bool]:
        return self.store.put(resource.type, resource.id, resource.body, MEDIA, resource.tokens())

    def _read(self, body: bytes) -> list[Received]:
        try:
            bundle = msgspec.json.decode(body, type=_Bundle)
        except (ValueError, RecursionError):
            raise FhirProblem(400, "structure", "The body is not a Bundle in JSON.") from None
        if (bundle.resource_type, bundle.type) != ("Bundle", "transaction"):
            raise FhirProblem(400, "not-supported", "The sandbox takes a Bundle of type transaction.")
        received: dict[str, Received] = {}
        for number, entry in enumerate(bundle.entry):
            request = entry.request or _Request()
            url = _URL.fullmatch(request.url)
            if request.method != "PUT" or url is None or not bytes(entry.resource):
                text = f"Bundle.entry[{number}]: the sandbox takes entries with a resource and a request PUT Type/id."
                raise FhirProblem(400, "not-supported", text)
            try:
                resource = read_resource(bytes(entry.resource), url[1], url[2], self.manners)
            except FhirProblem as problem:
                raise FhirProblem(400, problem.code, f"Bundle.entry[{number}]: {problem.diagnostics[0]}") from None
            if resource.key in received:
                text = f"HAPI-0535: Transaction bundle contains multiple resources with ID: {resource.key}"
                raise FhirProblem(400, "processing", text)
            received[resource.key] = resource
        return list(received.values())

    def _check(self, received: list[Received]) -> None:
        """Raise ``FhirProblem`` for a reference to a resource that does not exist now."""
        known: set[str] = set()
        for resource in received:
            for reference in (each["reference"] for each in references(resource.document)):
                target = local_key(reference)
                if target is None and reference.startswith("urn:") and self.manners == "hapi":
                    text = f"HAPI-0541: Unable to satisfy placeholder ID {reference} found in {resource.type}"
                    raise FhirProblem(400, "processing", text)
                if target is None or target in known:
                    continue
                if not self.store.exists(target):
                    self._missing(target, resource.type)
                known.add(target)

    def _missing(self, target: str, path: str) -> NoReturn:
        if self.manners == "blaze":
            text = f"Referential integrity violated. Resource `{target}` doesn't exist."
            raise FhirProblem(409, "conflict", text)
        raise FhirProblem(400, "processing", f"HAPI-1094: Resource {target} not found, specified in path: {path}")

    def _response(self, stored: Stored, is_new: bool) -> Json:
        place = f"{stored.type}/{stored.id}/_history/{stored.version}"
        status = "201 Created" if is_new else "200 OK"
        return {"status": status, "location": place, "etag": str(stored.version)}
