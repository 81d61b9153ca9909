"""Differences between the answers of HAPI JPA and Blaze to the same request (document 3 §7)."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from deployments.sandbox.common.request import FhirProblem

MannersName = Literal["hapi", "blaze"]
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_REASONS = {200: "OK", 201: "Created", 204: "No Content"}


class Manners:
    """Behaviour of HAPI JPA with referential integrity on write and on delete."""

    name: MannersName = "hapi"
    numeric_ids = False
    """True if clients can give a purely numeric id to a new resource."""
    strict_search = True
    """True if an unknown search parameter is refused."""

    def numeric_id(self, value: str) -> FhirProblem:
        """Return the problem for a client's purely numeric id of a new resource."""
        return FhirProblem(
            400,
            "processing",
            f"HAPI-0960: Can not create resource with ID[{value}], no resource with this ID exists"
            " and clients may only assign IDs which contain at least one non-numeric character",
        )

    def missing_reference(self, target: str, path: str) -> FhirProblem:
        """Return the 400 for a reference to a missing resource, with reference and path in ``diagnostics``."""
        text = f"HAPI-1094: Resource {target} not found, specified in path: {path}"
        return FhirProblem(400, "processing", text)

    def unresolved_urn(self, target: str, path: str) -> FhirProblem | None:
        """Return the 400 for a ``urn:`` reference that no entry of the transaction resolves; None accepts it."""
        kind, _, element = path.partition(".")
        text = f"HAPI-0541: Unable to satisfy placeholder ID {target} found in element named '{element}'"
        return FhirProblem(400, "processing", f"{text} within resource of type: {kind}")

    def still_referenced(self, target: str, source: str) -> FhirProblem:
        """Return the 409 for deleting a resource to which another refers."""
        text = f"HAPI-0550: Unable to delete {target} because at least one resource has a reference to"
        return FhirProblem(409, "processing", f"{text} this resource. First reference found was resource {source}")

    def duplicate(self, key: str) -> FhirProblem:
        """Return the 400 for a transaction with the same resource twice."""
        return FhirProblem(
            400, "processing", f"HAPI-0535: Transaction bundle contains multiple resources with ID: {key}"
        )

    def version_conflict(self, key: str, wanted: str, current: int) -> FhirProblem:
        """Return the 409 for an ``If-Match`` that is not the current version."""
        text = f"HAPI-0989: Trying to update {key}/_history/{wanted} but this is not the current version"
        return FhirProblem(409, "conflict", text)

    def entry_response(self, base: str, key: str, version: int, status: int, modified: str) -> dict[str, Any]:
        """Return the ``response`` of a Bundle's entry: status with phrase, relative location, bare version as etag."""
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
        """Return the id of a created resource: consecutive numbers."""
        return str(sequence)


class Blaze(Manners):
    """Behaviour of Blaze with its default referential integrity."""

    name: MannersName = "blaze"
    numeric_ids = True
    strict_search = False

    def missing_reference(self, target: str, path: str) -> FhirProblem:
        """Return 409."""
        text = f"Referential integrity violated. Resource `{target}` doesn't exist."
        return FhirProblem(409, "conflict", text, details="Referential integrity violated.")

    def unresolved_urn(self, target: str, path: str) -> FhirProblem | None:
        """Return None: the reference is stored unchanged."""
        return None

    def still_referenced(self, target: str, source: str) -> FhirProblem:
        """Return 409."""
        text = f"Resource `{target}` should be deleted but is referenced from `{source}`."
        violated = "Referential integrity violated."
        return FhirProblem(409, "conflict", f"{violated} {text}", details=violated)

    def duplicate(self, key: str) -> FhirProblem:
        """Return 400."""
        return FhirProblem(400, "invalid", f"Duplicate resource `{key}`.")

    def version_conflict(self, key: str, wanted: str, current: int) -> FhirProblem:
        """Return 412."""
        return FhirProblem(412, "conflict", f'Precondition `W/"{wanted}"` failed on `{key}`, which is at {current}.')

    def entry_response(self, base: str, key: str, version: int, status: int, modified: str) -> dict[str, Any]:
        """Return a bare status, weak etag, and absolute location for created resources."""
        if status == 204:
            return {"status": "204"}
        response = {"status": str(status), "etag": f'W/"{version}"', "lastModified": modified}
        return response | ({"location": f"{base}/{key}/_history/{version}"} if status == 201 else {})

    def new_id(self, sequence: int) -> str:
        """Return sixteen characters of base 32."""
        return "".join(secrets.choice(_BASE32) for _ in range(16))


MANNERS: dict[str, Manners] = {"hapi": Manners(), "blaze": Blaze()}
