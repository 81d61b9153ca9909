"""The effective CRTDL, which all steps of a job use (docs/steps.md).

Without rules it is ``crtdl.json``, a byte-for-byte copy. With at least one rule it is ``enriched-crtdl.json``: the same
document with the attributes and groups that the rules add. Other values keep their spelling: only the groups and their
attributes are decoded.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from config import EnrichmentRule
from tasks.shared.errors import InputError
from tasks.shared.fhir.crtdl import document_findings, parse_document, read_content
from tasks.shared.files.part_file import write_whole

COPY = "crtdl.json"
ENRICHED = "enriched-crtdl.json"

_Object = dict[str, Any]
"""A JSON object. Its values are raw text, or lists that were decoded."""


@dataclass(frozen=True)
class Enriched:
    """An enriched document, the warnings about the rules, and all errors."""

    content: bytes
    warnings: tuple[str, ...] = ()
    findings: tuple[InputError, ...] = ()


def findings(path: Path, rules: Sequence[EnrichmentRule] = ()) -> list[InputError]:
    """Return all errors of a CRTDL after the rules are applied."""
    try:
        return list(enrich(read_content(path), rules, path).findings)
    except InputError as error:
        return [error]


def idle_rules(path: Path, rules: Sequence[EnrichmentRule]) -> tuple[str, ...]:
    """Return a warning for each rule that does nothing; none if the CRTDL itself has errors."""
    try:
        return enrich(read_content(path), rules, path).warnings
    except InputError:
        return ()


def effective_file(job_dir: Path) -> Path | None:
    """Return the path of the effective CRTDL in the job directory; ``None`` before it is written."""
    return next((path for name in (ENRICHED, COPY) if (path := job_dir / name).is_file()), None)


def write_effective(source: Path, job_dir: Path, rules: Sequence[EnrichmentRule]) -> tuple[Path, tuple[str, ...]]:
    """Write the effective CRTDL of ``source``; return its path and the warnings.

    Raises ``InputError`` when the document cannot be used, ``StorageError``.
    """
    enriched = enrich(read_content(source), rules, source)
    for problem in enriched.findings:
        raise problem
    name, other = (ENRICHED, COPY) if rules else (COPY, ENRICHED)
    path = job_dir / name
    write_whole(path, enriched.content)
    (job_dir / other).unlink(missing_ok=True)
    return path, enriched.warnings


def write_copy(source: Path, job_dir: Path) -> Path:
    """Copy a CRTDL that no step of the job reads, without a check. Raises ``InputError`` and ``StorageError``."""
    path = job_dir / COPY
    write_whole(path, read_content(source))
    return path


def enrich(content: bytes, rules: Sequence[EnrichmentRule], path: Path) -> Enriched:
    """Apply the rules in order; without rules, return the content unchanged. Errors name ``path``.

    A rule changes the first group with its ``groupReference``. A new attribute gets all values of the rule. In an
    existing one, ``must_have`` can only become true, and linked groups of the rule replace the old ones. Linked groups
    are profile URLs, which become group ids after the last rule.

    A profile that no group has is a finding (``enrichment-linked-group``). Raises ``InputError``.
    """
    problems = document_findings(parse_document(content, path), path)
    if problems or not rules:
        return Enriched(content, findings=tuple(problems))
    try:
        groups = _Groups(content)
        warnings = [text for number, rule in enumerate(rules, 1) if (text := groups.apply(rule, number)) is not None]
        problems = groups.resolve_links(path)
        result = groups.content()
    except msgspec.MsgspecError:
        # Half a surrogate pair in an escape: Python's json reads it, msgspec does not.
        message = "the CRTDL contains text that is not valid Unicode"
        raise InputError("crtdl-not-json", message, context=str(path)) from None
    problems = problems or document_findings(parse_document(result, path), path)
    return Enriched(result, tuple(warnings), tuple(problems))


class _Groups:
    """A CRTDL taken apart down to the attributes of its groups."""

    def __init__(self, content: bytes) -> None:
        self._document = _open(content)
        self._extraction = _open(self._document["dataExtraction"])
        self._groups = [
            group | {"attributes": _open_list(group["attributes"])}
            for group in _open_list(self._extraction["attributeGroups"])
        ]
        self._links: list[tuple[_Object, tuple[str, ...], int]] = []

    def apply(self, rule: EnrichmentRule, number: int) -> str | None:
        """Apply one rule; return a warning if it did nothing. ``number`` counts rules from 1."""
        group = self._find(rule.group_reference)
        if group is None:
            if rule.create_if_not_exists is None:
                missing = f"the CRTDL has no group {rule.group_reference}, and the rule does not create it"
                return f"enrichment rule {number} did nothing: {missing}"
            group = {
                "id": _raw(self._new_id(rule.group_reference)),
                "name": _raw(rule.create_if_not_exists.group_name),
                "groupReference": _raw(rule.group_reference),
                "attributes": [],
            }
            self._groups.append(group)
        for wanted in rule.attributes_to_add:
            attributes: list[_Object] = group["attributes"]
            attribute = next((one for one in attributes if _value(one, "attributeRef") == wanted.attribute_ref), None)
            if attribute is None:
                attribute = {"attributeRef": _raw(wanted.attribute_ref), "mustHave": _raw(wanted.must_have)}
                attributes.append(attribute)
            elif wanted.must_have:
                attribute["mustHave"] = _raw(True)
            if wanted.linked_groups:
                self._links.append((attribute, wanted.linked_groups, number))
        return None

    def resolve_links(self, path: Path) -> list[InputError]:
        """Replace the profiles of linked groups by group ids; return an error for each profile that no group has."""
        problems: list[InputError] = []
        for attribute, profiles, number in self._links:
            ids: list[str] = []
            for profile in profiles:
                group = self._find(profile)
                if group is None:
                    what = f"enrichment rule {number} links to {profile}, and no group has this profile"
                    hint = "add a rule that creates the group, or correct the profile URL"
                    problems.append(InputError("enrichment-linked-group", what, context=str(path), hint=hint))
                else:
                    ids.append(str(_value(group, "id")))
            attribute["linkedGroups"] = _raw(list(dict.fromkeys(ids)))
        return problems

    def content(self) -> bytes:
        """Return the reassembled document, indented."""
        extraction = self._extraction | {"attributeGroups": self._groups}
        document = self._document | {"dataExtraction": extraction}
        return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"

    def _find(self, reference: str) -> _Object | None:
        return next((group for group in self._groups if _value(group, "groupReference") == reference), None)

    def _new_id(self, reference: str) -> str:
        """Return an id derived from the profile URL: the same input gives the same id."""
        taken = {_value(group, "id") for group in self._groups}
        number = 1
        while (made := str(uuid.uuid5(uuid.NAMESPACE_URL, reference + "#" * (number - 1)))) in taken:
            number += 1
        return made


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _value(parent: _Object, key: str) -> Any:
    return msgspec.json.decode(parent[key])


def _open(content: bytes | msgspec.Raw) -> _Object:
    opened: _Object = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    return opened


def _open_list(content: msgspec.Raw) -> list[_Object]:
    opened: list[_Object] = msgspec.json.decode(content, type=list[dict[str, msgspec.Raw]])
    return opened
