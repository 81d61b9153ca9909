"""The FHIR server's interactions: one synchronous method for each, over one store.

All methods run in one thread, so none sees the partial changes of another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from deployments.sandbox.common.request import FhirProblem
from deployments.sandbox.fhir.bundle import Bundle, Operation
from deployments.sandbox.fhir.manners import Manners
from deployments.sandbox.fhir.resource import ReceivedResource, check_id, read_new_resource, read_resource, resolve
from deployments.sandbox.fhir.store import ResourceStore, StoredVersion

_ETAG = re.compile(r'(?:W/)?"?([^"]+)"?')


@dataclass(frozen=True)
class IntegrityRules:
    """Integrity rules and dialect of the server."""

    manners: Manners
    references: bool = True
    """True if every literal reference must resolve."""
    numeric_ids: bool = False
    """True if clients can choose purely numeric ids."""


@dataclass(frozen=True)
class Change:
    """Result of an interaction: the current version, and the status of the response."""

    status: int
    stored: StoredVersion
    obsolete: str | None = None
    """File of raw content that the change replaced."""


class FhirEngine:
    """Interactions on a store under rules. Every method raises ``FhirProblem`` to refuse a request."""

    def __init__(self, store: ResourceStore, rules: IntegrityRules) -> None:
        self.store = store
        self._rules = rules

    def read(self, kind: str, identity: str) -> StoredVersion:
        """Return the current version; 404 if there never was one, 410 if it was deleted."""
        stored = self.store.get(kind, identity)
        if stored is None:
            raise FhirProblem(404, "not-found", f"{kind}/{identity} does not exist.")
        if stored.deleted:
            raise FhirProblem(410, "deleted", f"{kind}/{identity} was deleted.")
        return stored

    def update(self, kind: str, identity: str, body: bytes, if_match: str | None, base: str) -> Change:
        """Run ``PUT Type/id``."""
        with self.store.transaction():
            change, resource, targets = self._put(kind, identity, body, if_match, base)
            self._check(resource, {target for target in targets if not target.startswith("urn:")}, base)
        return change

    def create(self, kind: str, body: bytes, base: str) -> Change:
        """Run ``POST Type``."""
        with self.store.transaction():
            change, resource, targets = self._create(kind, self._new_id(kind), body, base)
            self._check(resource, {target for target in targets if not target.startswith("urn:")}, base)
        return change

    def delete(self, kind: str, identity: str, if_match: str | None) -> StoredVersion | None:
        """Run ``DELETE Type/id``; return the deleted version, or None if there was nothing to delete."""
        with self.store.transaction():
            before = self._delete(kind, identity, if_match)
            self._check_unreferenced(f"{kind}/{identity}")
        return before

    def put_binary(
        self, identity: str, content_type: str, blob: str, if_match: str | None, *, server_chose: bool
    ) -> Change:
        """Run ``PUT Binary/id`` with raw content in the file ``blob``."""
        with self.store.transaction():
            before = self.store.get("Binary", identity)
            if not server_chose:
                self._check_target("Binary", identity, if_match, before)
            stored = self.store.put_blob(identity, content_type, blob, before)
        return Change(_status(before), stored, before.blob if before else None)

    def new_binary_id(self) -> str:
        """Return an id for ``POST Binary``."""
        with self.store.transaction():
            return self._new_id("Binary")

    def process(self, bundle: Bundle, base: str, *, representation: bool) -> bytes:
        """Run a transaction (all or nothing) or a batch (each entry alone); return the response Bundle as JSON."""
        if bundle.type == "transaction":
            entries = self._transaction(bundle, base, representation)
        else:
            entries = [self._batch_entry(item, base, representation) for item in bundle.operations]
        response = {"resourceType": "Bundle", "type": f"{bundle.type}-response", "entry": entries}
        return msgspec.json.encode(response)

    def _transaction(self, bundle: Bundle, base: str, representation: bool) -> list[Any]:
        operations = bundle.in_processing_order()
        seen: set[str] = set()
        for operation in operations:
            if operation.id is not None and operation.method != "GET":
                if operation.key in seen:
                    raise self._rules.manners.duplicate(operation.key)
                seen.add(operation.key)
        entries: list[Any] = [None] * len(operations)
        with self.store.transaction():
            ids = {
                operation.index: operation.id or self._new_id(operation.type)
                for operation in operations
                if operation.method in ("POST", "PUT")
            }
            full_urls = {
                operation.full_url: f"{operation.type}/{ids[operation.index]}"
                for operation in operations
                if operation.full_url is not None and operation.index in ids
            }
            written: list[tuple[ReceivedResource, set[str]]] = []
            for operation in operations:
                if operation.method == "GET":
                    continue
                if operation.method == "DELETE":
                    self._delete(operation.type, operation.id or "", operation.if_match)
                    entries[operation.index] = self._entry(operation.key, None, 204, base, representation)
                    continue
                body = resolve(operation.body or b"", full_urls)
                change, resource, targets = self._write(operation, ids[operation.index], body, base)
                written.append((resource, targets))
                entries[operation.index] = self._entry(resource.key, change.stored, change.status, base, representation)
            for operation in operations:
                if operation.method == "DELETE":
                    self._check_unreferenced(operation.key)
            self._check_all(written, base)
            for operation in operations:
                if operation.method == "GET":
                    stored = self.read(operation.type, operation.id or "")
                    entries[operation.index] = self._entry(operation.key, stored, 200, base, representation=True)
        return entries

    def _batch_entry(self, item: Operation | FhirProblem, base: str, representation: bool) -> dict[str, Any]:
        try:
            if isinstance(item, FhirProblem):
                raise item
            if item.method == "GET":
                stored = self.read(item.type, item.id or "")
                return self._entry(item.key, stored, 200, base, representation=True)
            if item.method == "DELETE":
                self.delete(item.type, item.id or "", item.if_match)
                return self._entry(item.key, None, 204, base, representation)
            if item.method == "POST":
                change = self.create(item.type, item.body or b"", base)
            else:
                change = self.update(item.type, item.id or "", item.body or b"", item.if_match, base)
        except FhirProblem as problem:
            return {"response": {"status": str(problem.status), "outcome": msgspec.Raw(problem.outcome())}}
        key = f"{change.stored.type}/{change.stored.id}"
        return self._entry(key, change.stored, change.status, base, representation)

    def _entry(
        self, key: str, stored: StoredVersion | None, status: int, base: str, representation: bool
    ) -> dict[str, Any]:
        version, modified = (stored.version, stored.modified) if stored else (0, "")
        response = self._rules.manners.entry_response(base, key, version, status, modified)
        if representation and stored is not None and stored.body is not None:
            return {"fullUrl": f"{base}/{key}", "resource": msgspec.Raw(stored.body), "response": response}
        return {"response": response}

    def _write(
        self, operation: Operation, identity: str, body: bytes, base: str
    ) -> tuple[Change, ReceivedResource, set[str]]:
        try:
            if operation.method == "POST":
                return self._create(operation.type, identity, body, base)
            return self._put(operation.type, identity, body, operation.if_match, base)
        except FhirProblem as problem:
            where = f"Bundle.entry[{operation.index}]: {problem.diagnostics[0]}"
            raise FhirProblem(problem.status, problem.code, where, details=problem.details) from None

    def _put(
        self, kind: str, identity: str, body: bytes, if_match: str | None, base: str
    ) -> tuple[Change, ReceivedResource, set[str]]:
        check_id(identity)
        resource = read_resource(body, kind, identity)
        before = self.store.get(kind, identity)
        self._check_target(kind, identity, if_match, before)
        targets = resource.targets(base)
        stored = self.store.put(resource, targets, before)
        obsolete = before.blob if before else None
        return Change(_status(before), stored, obsolete), resource, targets

    def _create(self, kind: str, identity: str, body: bytes, base: str) -> tuple[Change, ReceivedResource, set[str]]:
        resource = read_new_resource(body, kind, identity)
        targets = resource.targets(base)
        return Change(201, self.store.put(resource, targets, None)), resource, targets

    def _delete(self, kind: str, identity: str, if_match: str | None) -> StoredVersion | None:
        before = self.store.get(kind, identity)
        if if_match is not None:
            self._check_version(f"{kind}/{identity}", if_match, before)
        if before is None or before.deleted:
            return None
        self.store.delete(before)
        return before

    def _check_target(self, kind: str, identity: str, if_match: str | None, before: StoredVersion | None) -> None:
        check_id(identity)
        if before is None and identity.isdigit() and not self._rules.numeric_ids:
            raise self._rules.manners.numeric_id(identity)
        if if_match is not None:
            self._check_version(f"{kind}/{identity}", if_match, before)

    def _check_version(self, key: str, if_match: str, before: StoredVersion | None) -> None:
        tag = _ETAG.fullmatch(if_match.strip())
        wanted = tag[1] if tag else if_match
        current = before.version if before is not None else 0
        if wanted != str(current):
            raise self._rules.manners.version_conflict(key, wanted, current)

    def _check_all(self, written: list[tuple[ReceivedResource, set[str]]], base: str) -> None:
        if not self._rules.references:
            return
        known: set[str] = {resource.key for resource, _ in written}
        for resource, targets in written:
            missing = targets - known
            self._check(resource, missing, base)
            known |= missing

    def _check(self, resource: ReceivedResource, targets: set[str], base: str) -> None:
        if not self._rules.references:
            return
        for target in sorted(targets):
            if target.startswith("urn:"):
                problem = self._rules.manners.unresolved_urn(target, resource.path_to(target, base))
                if problem is not None:
                    raise problem
            elif not self.store.exists(target):
                raise self._rules.manners.missing_reference(target, resource.path_to(target, base))

    def _check_unreferenced(self, key: str) -> None:
        if not self._rules.references:
            return
        source = self.store.referrer(key)
        if source is not None:
            raise self._rules.manners.still_referenced(key, source)

    def _new_id(self, kind: str) -> str:
        while True:
            chosen = self._rules.manners.new_id(self.store.next_number())
            if self.store.get(kind, chosen) is None:
                return chosen


def _status(before: StoredVersion | None) -> int:
    return 201 if before is None or before.deleted else 200
