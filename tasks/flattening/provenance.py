"""What a Provenance says about attribute groups (document 3 §2, "Extraction semantics").

Its ``entity`` names the group, by an identifier of the naming system ``attribute_group``; its ``target`` the resources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

PROVENANCE: Final = "Provenance"
MARK: Final = b'"Provenance"'
"""What the text of a line holds if there is a Provenance on it."""

_SYSTEM: Final = "attribute_group"


@dataclass(frozen=True, slots=True, repr=False)
class Grouping:
    """The resources (``Type/id``) of groups (ids of the CRTDL)."""

    groups: tuple[str, ...]
    targets: tuple[str, ...]


class _Part(msgspec.Struct):
    target: list[dict[str, Any]] | None = None
    entity: list[dict[str, Any]] | None = None


_decoder = msgspec.json.Decoder(_Part)


def grouping(raw: bytes | msgspec.Raw) -> Grouping | None:
    """What this Provenance says of groups; ``None`` when it is about something else, or not what FHIR says."""
    try:
        part = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    groups = [value for entity in part.entity or () if (value := _group(entity)) is not None]
    if not groups:
        return None
    references = [target.get("reference") for target in part.target or ()]
    return Grouping(tuple(dict.fromkeys(groups)), tuple([key for one in references if (key := key_of(one))]))


def key_of(reference: object) -> str | None:
    """``Type/id`` of a literal reference: relative or absolute, of a version or not."""
    if not isinstance(reference, str):
        return None
    if reference.count("/") == 1:
        return reference
    parts = reference.partition("/_history/")[0].rsplit("/", 2)
    return "/".join(parts[-2:]) if len(parts) > 1 else None


def _group(entity: dict[str, Any]) -> str | None:
    what = entity.get("what")
    identifier = what.get("identifier") if isinstance(what, dict) else None
    if not isinstance(identifier, dict):
        return None
    system, value = identifier.get("system"), identifier.get("value")
    named = isinstance(system, str) and system.rpartition("/")[2] == _SYSTEM
    return value if named and isinstance(value, str) else None
