"""What HAPI JPA and Blaze answer differently to the same request (document 3 §7)."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from deployments.sandbox.common.request import FhirProblem

MannersName = Literal["hapi", "blaze"]
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_REASONS = {200: "OK", 201: "Created", 204: "No Content"}


class Manners:
    """The habits of HAPI JPA with referential integrity on write and on delete."""

    name: MannersName = "hapi"
    numeric_ids = False
    """Whether a client may give a purely numeric id to a new resource."""
    strict_search = True
    """Whether an unknown search parameter is refused."""

    def numeric_id(self, value: str) -> FhirProblem:
        """A client gives a purely numeric id to a new resource."""
        return FhirProblem(
            400,
            "processing",
            f"HAPI-0960: Can not create resource with ID[{value}], no resource with this ID exists"
            " and clients may only assign IDs which contain at least one non-numeric character",
        )

    def missing_reference(self, target: str, path: str) -> FhirProblem:
        """A resource refers to one that is not there: 400, with the reference and the path in ``diagnostics``."""
        text = f"HAPI-1094: Resource {target} not found, specified in path: {path}"
        return FhirProblem(400, "processing", text)

    def unresolved_urn(self, target: str, path: str) -> FhirProblem | None:
        """A ``urn:`` reference that no entry of the transaction stands for: 400; None lets it pass."""
        kind, _, element = path.partition(".")
        text = f"HAPI-0541: Unable to satisfy placeholder ID {target} found in element named '{element}'"
        return FhirProblem(400, "processing", f"{text} within resource of type: {kind}")

    def still_referenced(self, target: str, source: str) -> FhirProblem:
        """A resource is to be deleted while another refers to it: 409."""
        text = f"HAPI-0550: Unable to delete {target} because at least one resource has a reference to"
        return FhirProblem(409, "processing", f"{text} this resource. First reference found was resource {source}")

    def duplicate(self, key: str) -> FhirProblem:
        """A transaction names the same resource twice: 400."""
        return FhirProblem(
            400, "processing", f"HAPI-0535: Transaction bundle contains multiple resources with ID: {key}"
        )

    def version_conflict(self, key: str, wanted: str, current: int) -> FhirProblem:
        """``If-Match`` does not name the current version: 409."""
        text = f"HAPI-0989: Trying to update {key}/_history/{wanted} but this is not the current version"
        return FhirProblem(409, "conflict", text)

    def entry_response(self, base: str, key: str, version: int, status: int, modified: str) -> dict[str, Any]:
        """The ``response`` of a Bundle's entry: status with its phrase, relative location, bare version as etag."""
        line = f"{status} {_REASONS[status]}"
        if status == 204:
            return {"status": line}
        return {
            "status": line,
            "location": f"{key}/_history/{version}",
            "etag": str(version),
            "lastModified": modified,
        }

    def new_id(self, sequence: int) -> str:
        """An id for a created resource: numbers, counted up."""
        return str(sequence)


class Blaze(Manners):
    """Blaze with its default of enforced referential integrity."""

    name: MannersName = "blaze"
    numeric_ids = True
    strict_search = False

    def missing_reference(self, target: str, path: str) -> FhirProblem:
        """409."""
        text = f"Referential integrity violated. Resource `{target}` doesn't exist."
        return FhirProblem(409, "conflict", text, details="Referential integrity violated.")

    def unresolved_urn(self, target: str, path: str) -> FhirProblem | None:
        """Stored as it is."""
        return None

    def still_referenced(self, target: str, source: str) -> FhirProblem:
        """409."""
        text = f"Resource `{target}` should be deleted but is referenced from `{source}`."
        violated = "Referential integrity violated."
        return FhirProblem(409, "conflict", f"{violated} {text}", details=violated)

    def duplicate(self, key: str) -> FhirProblem:
        """400."""
        return FhirProblem(400, "invalid", f"Duplicate resource `{key}`.")

    def version_conflict(self, key: str, wanted: str, current: int) -> FhirProblem:
        """412."""
        return FhirProblem(412, "conflict", f'Precondition `W/"{wanted}"` failed on `{key}`, which is at {current}.')

    def entry_response(self, base: str, key: str, version: int, status: int, modified: str) -> dict[str, Any]:
        """Bare status, weak etag, absolute location for created resources."""
        if status == 204:
            return {"status": "204"}
        response = {"status": str(status), "etag": f'W/"{version}"', "lastModified": modified}
        return response | ({"location": f"{base}/{key}/_history/{version}"} if status == 201 else {})

    def new_id(self, sequence: int) -> str:
        """Sixteen characters of base 32."""
        return "".join(secrets.choice(_BASE32) for _ in range(16))


MANNERS: dict[str, Manners] = {"hapi": Manners(), "blaze": Blaze()}
