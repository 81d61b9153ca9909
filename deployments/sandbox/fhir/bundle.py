"""Transaction and batch Bundles of ``POST /fhir``, split into entries without parsing the resources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import msgspec

from deployments.sandbox.common.r4 import RESOURCE_TYPES
from deployments.sandbox.common.request import FhirProblem

Method = Literal["GET", "POST", "PUT", "DELETE"]
_ORDER: dict[Method, int] = {"DELETE": 0, "POST": 1, "PUT": 2, "GET": 3}
_URL = re.compile(r"(?P<type>[A-Za-z]+)(?:/(?P<id>[^/?]+))?(?P<query>\?.*)?")


class _Request(msgspec.Struct, rename="camel"):
    method: str
    url: str
    if_match: str | None = None
    if_none_exist: str | None = None


class _ReceivedEntry(msgspec.Struct, rename="camel"):
    request: _Request | None = None
    full_url: str | None = None
    resource: msgspec.Raw = msgspec.Raw()


class _Bundle(msgspec.Struct, rename="camel"):
    resource_type: str
    type: str | None = None
    entry: list[_ReceivedEntry] = []


_DECODER = msgspec.json.Decoder(_Bundle)


@dataclass(frozen=True, slots=True)
class Operation:
    """The operation of one entry. ``id`` is None for POST."""

    index: int
    method: Method
    type: str
    id: str | None
    if_match: str | None
    full_url: str | None
    body: bytes | None

    @property
    def key(self) -> str:
        """``Type/id``."""
        return f"{self.type}/{self.id}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A Bundle to process. ``operations`` are in the order of its entries."""

    type: Literal["transaction", "batch"]
    operations: list[Operation | FhirProblem]
    """For an invalid entry its problem: a transaction fails, a batch answers it in the entry."""

    def in_processing_order(self) -> list[Operation]:
        """Return operations by DELETE, POST, PUT, GET (FHIR, transaction processing). Raises the first problem."""
        sound: list[Operation] = []
        for item in self.operations:
            if isinstance(item, FhirProblem):
                raise item
            sound.append(item)
        return sorted(sound, key=lambda operation: _ORDER[operation.method])

    def counts(self) -> dict[str, int]:
        """Return the number of entries by type."""
        found: dict[str, int] = {}
        for item in self.operations:
            if isinstance(item, Operation):
                found[item.type] = found.get(item.type, 0) + 1
        return found


def read_bundle(body: bytes) -> Bundle:
    """Split a Bundle. Raises ``FhirProblem`` 400 if it is invalid or of a type that is not processed."""
    try:
        raw = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8, or nested too deeply"
        raise FhirProblem(400, "structure", f"The body is not a Bundle in JSON: {text}") from None
    if raw.resource_type != "Bundle":
        raise FhirProblem(400, "invalid", "The base URL accepts only Bundles.")
    if raw.type == "transaction":
        return Bundle("transaction", [_operation(index, entry) for index, entry in enumerate(raw.entry)])
    if raw.type == "batch":
        return Bundle("batch", [_operation(index, entry) for index, entry in enumerate(raw.entry)])
    raise FhirProblem(400, "value", "A Bundle sent to the base URL must be of type transaction or batch.")


def _operation(index: int, entry: _ReceivedEntry) -> Operation | FhirProblem:
    where = f"Bundle.entry[{index}]"
    request = entry.request
    if request is None:
        return FhirProblem(400, "required", f"{where} has no request.")
    if request.method not in _ORDER:
        return FhirProblem(400, "not-supported", f"{where}: the method must be one of {', '.join(_ORDER)}.")
    url = _URL.fullmatch(request.url)
    if url is None or request.if_none_exist is not None or url["query"] is not None:
        return FhirProblem(
            400, "not-supported", f"{where}: the URL must be Type or Type/id; conditions are not supported."
        )
    if url["type"] not in RESOURCE_TYPES:
        return FhirProblem(400, "not-supported", f"{where}: the resource type is unknown.")
    if (url["id"] is None) != (request.method == "POST"):
        return FhirProblem(400, "value", f"{where}: POST goes to Type, every other method to Type/id.")
    body = bytes(entry.resource) or None
    if (body is None) != (request.method in ("GET", "DELETE")):
        return FhirProblem(400, "structure", f"{where}: POST and PUT need a resource, GET and DELETE have none.")
    method: Method = request.method
    return Operation(index, method, url["type"], url["id"], request.if_match, entry.full_url, body)
