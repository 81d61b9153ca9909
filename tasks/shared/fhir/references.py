"""References of FHIR: what one names, and which patient a resource belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from tasks.shared.fhir.r4 import is_type

FOREIGN: Final = "the Bundle holds one Patient, and a resource in it names another one as its own"
"""What ``BundlePatient.has_foreign`` means, for a person."""

CONTAINED: Final = "#"
URN: Final = "urn"
SEARCH: Final = "?"

_SPELLED: Final = re.compile(rb'reference"(?<="reference")\s*:\s*"([^"\\]+)"')
"""Begins with the name: each byte that a match can begin with is looked at, and the quotes are many."""
_LITERAL: Final = re.compile(r"(?:[^?#]*/)?([A-Z][A-Za-z]+)/([^/?#|\s]+)(?:/_history/[^/?#]*)?(?:#.*)?")
_SEARCH: Final = re.compile(r"(?:[^?#]*/)?([A-Z][A-Za-z]+)\?(.*)", re.DOTALL)
_BY_ID: Final = re.compile(r"_id=([^&|,\s]+)")
_ENOUGH: Final = 2


def spelled_references(text: bytes) -> list[bytes]:
    """Return the references in JSON text, in their order: those without an escape, as nearly all are."""
    return _SPELLED.findall(text)


class ReferenceTarget(NamedTuple):
    """Target of a reference. ``kind`` is a resource type, ``"#"`` (contained), ``"urn"``, or a type with a ``"?"``
    (a search); ``key`` is ``Type/id`` for a resource, else the text that tells it from others of its kind."""

    kind: str
    key: str


def target_of(reference: str) -> ReferenceTarget | None:
    """Return the target of a reference: relative, absolute, with a version, contained, ``urn:``, a search.

    The server's address and the version make no difference. ``None`` for any other text.
    """
    if reference[:1] == CONTAINED:
        return ReferenceTarget(CONTAINED, reference)
    if reference[:4] == "urn:":
        return ReferenceTarget(URN, reference)
    if found := _LITERAL.fullmatch(reference):
        kind, own = found.groups()
        return ReferenceTarget(kind, f"{kind}/{own}") if is_type(kind) else None
    if (found := _SEARCH.fullmatch(reference)) and is_type(found[1]):
        kind, query = found.groups()
        by_id = _BY_ID.fullmatch(query)
        return (
            ReferenceTarget(kind, f"{kind}/{by_id[1]}") if by_id else ReferenceTarget(kind + SEARCH, f"{kind}?{query}")
        )
    return None


def id_named_by(reference: bytes) -> str | None:
    """Return the id in a reference: relative, absolute, with a version, or a ``urn:``.

    ``None`` when there is none: a contained resource, a search.
    """
    text = reference.decode()
    if text[:1] == "#" or "?" in text:
        return None
    place = text.partition("/_history/")[0].rpartition("/")[2]
    return place.rpartition(":")[2] or None


class Reference(msgspec.Struct, gc=False):
    """A Reference: the text that says what it refers to."""

    reference: str | None = None


class Owned(msgspec.Struct, rename="camel", gc=False):
    """Elements of a resource that name its patient in R4."""

    resource_type: Any = None
    id: Any = None
    subject: Reference | list[Reference | None] | None = None
    patient: Reference | list[Reference | None] | None = None
    beneficiary: Reference | list[Reference | None] | None = None
    contained: list[Owned] | None = None


_resource: Final = msgspec.json.Decoder(Owned)
_any: Final = msgspec.json.Decoder(float_hook=str)


class BundlePatient:
    """The Patient of one Bundle and the patients that its resources name, as its entries come (``add``)."""

    def __init__(self) -> None:
        self._patients: set[str] = set()
        self._named: set[str] = set()

    def add(self, resources: Iterable[Owned]) -> None:
        """Read some resources of the Bundle. Memory is that of two references, whatever the Bundle holds."""
        references: set[str | None] = set()
        for one in resources:
            if one.resource_type == "Patient" and len(self._patients) < _ENOUGH:
                self._patients.add(f"Patient/{one.id}" if one.id.__class__ is str else "")
            if isinstance(subject := one.subject, Reference):
                references.add(subject.reference)
            if isinstance(subject, list) or one.patient or one.beneficiary or one.contained:
                references.update(_named_in(one))
        # Two are enough: one of them is foreign whoever the Patient is.
        for reference in references:
            if len(self._named) >= _ENOUGH:
                break
            target = target_of(reference) if reference is not None else None
            if target is not None and target.kind == "Patient":
                self._named.add(target.key)

    @property
    def has_foreign(self) -> bool:
        """Return whether there is one Patient, and a ``subject``, ``patient`` or ``beneficiary`` names another one."""
        return len(self._patients) == 1 and "" not in self._patients and not self._named <= self._patients


def _named_in(resource: Owned) -> Iterator[str]:
    """Yield the references of a resource, and of those it contains, to its patient."""
    for element in (resource.subject, resource.patient, resource.beneficiary):
        for one in element if isinstance(element, list) else (element,):
            if one is not None and isinstance(one.reference, str):
                yield one.reference
    for inside in resource.contained or ():
        yield from _named_in(inside)


def read_owned(text: bytes | msgspec.Raw) -> Owned:
    """Return what a resource says about its patient. Raises what msgspec raises for a text that is no object."""
    try:
        return _resource.decode(text)
    except msgspec.ValidationError:
        whole: dict[str, Any] = _any.decode(text)
        return _owned(whole)


def _owned(resource: dict[str, Any]) -> Owned:
    return Owned(
        resource.get("resourceType"),
        resource.get("id"),
        subject=_references_in(resource.get("subject")),
        patient=_references_in(resource.get("patient")),
        beneficiary=_references_in(resource.get("beneficiary")),
        contained=[_owned(one) for one in objects_in(resource.get("contained"))],
    )


def _references_in(value: Any) -> list[Reference | None]:
    texts = (one.get("reference") for one in objects_in(value))
    return [Reference(text) for text in texts if isinstance(text, str)]


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects of a list, or the only one; none of anything else."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]
