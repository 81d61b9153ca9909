"""Check an answer against the resource that was sent, while both are in memory (docs/services.md).

A wrong answer ends the step: another kind of resource, missing entries, types in another order, ids that no server
accepts. Weaknesses of the rules are counted by path, for the warnings of the step and the release report.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from tasks.pseudonymizer.leaks import dates_of, is_sampled, leaks_of, values_in
from tasks.shared.errors import DataError
from tasks.shared.fhir.bundles import Bundle, open_bundle, skim
from tasks.shared.fhir.persons import Identifying
from tasks.shared.fhir.resource import ID, head_of, references_in, target_of
from tasks.shared.http.answer import Answer

_TYPED: Final = re.compile(r"(.*/)?[A-Z][A-Za-z]+(/|\?)")


class _Bare(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """A resource with nothing but type, id and meta; its contained resources are alike."""

    resource_type: Raw
    id: Raw = Raw()
    meta: Raw = Raw()
    contained: list[_Bare] = []


class _Told(_Bare, rename="camel", forbid_unknown_fields=True, gc=False):
    """A resource with only a narrative besides, so it is no loss that rules empty it."""

    text: Raw = Raw()


_told = msgspec.json.Decoder(_Told)
_bare = msgspec.json.Decoder(_Bare)


class WrongAnswerError(Exception):
    """An answer that is not the pseudonymized resource. The message continues "the service gave …"."""

    def __init__(self, reference: str, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.reference = reference
        self.hint = hint


@dataclass(frozen=True, slots=True, repr=False)
class Outline:
    """A resource or Bundle: its text, and bytes, type and id of each resource in it. The type is blank for an entry
    without a resource. ``bundle_type`` is ``Bundle.type`` as JSON, or ``None``."""

    text: bytes
    is_bundle: bool
    bundle_type: Raw | None
    resources: list[Raw | None] | list[bytes]
    types: list[str]
    ids: list[str | None]

    def values(self) -> tuple[Identifying, ...]:
        """Return the identifying values in it."""
        return values_in(self.text, self.types, self.resources)

    def opened(self) -> Bundle:
        """Return the opened Bundle. Raises ``DataError``."""
        bundle = open_bundle(self.text)
        assert bundle is not None  # noqa: S101 - for the type checker: it is one
        return bundle


def outline_of(text: bytes) -> Outline:
    """Return the outline of a resource or Bundle. Raises ``DataError`` for anything else."""
    kind, own_id = head_of(text)
    if kind != "Bundle":
        return Outline(text, False, None, [text], [kind], [own_id])
    resources, bundle_type = skim(text)
    heads = [head_of(raw) if raw is not None else ("", None) for raw in resources]
    return Outline(text, True, bundle_type, resources, [head[0] for head in heads], [head[1] for head in heads])


@dataclass(slots=True)
class Findings:
    """Findings in the answers of a line or a file. ``tallies`` is kind → path or type → number of lines."""

    tallies: dict[str, Counter[str]] = field(default_factory=dict)
    emptied: int = 0
    """Resources that came back with nothing but type, id and meta."""

    def add(self, kind: str, names: set[str]) -> None:
        """Count a line for each of these names."""
        if names:
            self.tallies.setdefault(kind, Counter()).update(names)

    def update(self, other: Findings) -> None:
        """Add the findings of another line or file."""
        self.emptied += other.emptied
        for kind, tally in other.tallies.items():
            self.tallies.setdefault(kind, Counter()).update(tally)

    def merge(self, other: Findings) -> None:
        """Add the findings of another part of the same line, which counts once for each name."""
        self.emptied += other.emptied
        for kind, tally in other.tallies.items():
            self.tallies.setdefault(kind, Counter()).update(tally.keys() - self.tallies[kind].keys())


def check(
    answer: Answer, sent: Outline, *, removes: bool, line: int, values: tuple[Identifying, ...] | None = None
) -> tuple[Outline, Findings]:
    """Return the outline of an answer, without line breaks, and the findings in it.

    ``removes``: the rules may remove entries. ``line`` is the number of the line, for the sample of dates; ``values``
    are the identifying values of the whole line if ``sent`` is a part of it. Raises ``WrongAnswerError``.
    """
    if not answer.says_json:
        raise WrongAnswerError("answer-not-json", "no JSON", "is the URL that of the service?")
    # In JSON text a literal line break is only ever white space between tokens.
    text = answer.body.translate(None, b"\r\n") if b"\n" in answer.body or b"\r" in answer.body else answer.body
    try:
        received = outline_of(text)
    except DataError:
        raise WrongAnswerError("answer-not-a-resource", "no FHIR resource") from None
    _check_shape(sent, received, removes=removes)
    if any(new is not None and ID.fullmatch(new) is None for new in received.ids):
        hint = "check the method or truncateToMaxLength of the rule for ids: no FHIR server takes such an id"
        raise WrongAnswerError("ids-invalid", "ids that are no FHIR ids (more than 64, or other, characters)", hint)
    findings = Findings()
    if sent.types == received.types:
        emptied = _emptied(sent, received)
        findings.emptied = len(emptied)
        findings.add("emptied", set(emptied))
        same = zip(sent.types, sent.ids, received.ids, strict=True)
        findings.add("ids kept", {kind for kind, old, new in same if old is not None and old == new})
        lost, dangling = _references(sent, received)
        findings.add("references without type", lost)
        findings.add("references that no longer resolve", dangling)
        if is_sampled(line):
            moved, stayed = dates_of((sent.text, received.text), sent.resources, received.resources)
            findings.add("dates", moved)
            findings.add("dates that stayed", stayed)
    found = leaks_of(sent.values() if values is None else values, sent.text, received.resources, received.text)
    findings.add("leaks", {"|".join(leak) for leak in found})
    return received, findings


def _check_shape(sent: Outline, received: Outline, *, removes: bool) -> None:
    if sent.is_bundle != received.is_bundle:
        raise WrongAnswerError("answer-other-kind", "a different kind of resource than it was sent")
    if "" in received.types and "" not in sent.types:
        raise WrongAnswerError("answer-entries", "entries without a resource")
    if sent.types == received.types or (removes and not Counter(received.types) - Counter(sent.types)):
        return
    if len(sent.types) != len(received.types):
        what = f"{len(received.types)} entries for {len(sent.types)}"
        raise WrongAnswerError("answer-entries", what, "a rule that removes resources has the method remove")
    raise WrongAnswerError("answer-types", "resources of other types, or in another order")


def _emptied(sent: Outline, received: Outline) -> list[str]:
    """Return the types of the resources that came back with nothing but type, id and meta."""
    pairs = zip(sent.types, sent.resources, received.resources, strict=True)
    return [kind for kind, old, new in pairs if new and old and _is(_bare, new) and not _is(_told, old)]


def _is(kind: msgspec.json.Decoder[Any], raw: Raw | bytes) -> bool:
    try:
        kind.decode(raw)
    except msgspec.ValidationError:
        return False
    return True


def _references(sent: Outline, received: Outline) -> tuple[set[str], set[str]]:
    """Return the paths of references that lost their type, and of those that no longer resolve in the Bundle.

    Paths are searched only if the numbers of such references differ before and after, which is rare.
    """
    before, after = references_in(sent.text), references_in(received.text)
    here, there = _keys(sent), _keys(received)
    untyped = sum(map(_is_untyped, after)) > sum(map(_is_untyped, before))
    dangling = sum(target_of(one) in there for one in after) < sum(target_of(one) in here for one in before)
    lost, gone = set(), set()
    for old, new in zip(sent.resources, received.resources, strict=True) if untyped or dangling else ():
        if old is not None and new is not None:
            for path, was, now in _pairs(msgspec.json.decode(old), msgspec.json.decode(new), ""):
                if not _is_untyped(was) and _is_untyped(now):
                    lost.add(path)
                elif target_of(was) in here and target_of(now) not in there:
                    gone.add(path)
    return lost, gone


def _keys(outline: Outline) -> set[str]:
    return {f"{kind}/{own}" for kind, own in zip(outline.types, outline.ids, strict=True)}


def _is_untyped(reference: str) -> bool:
    return not reference.startswith(("#", "urn:")) and _TYPED.match(reference) is None


def _pairs(old: Any, new: Any, path: str) -> list[tuple[str, str, str]]:
    """Return (path, before, after) of each reference that both sides have."""
    found: list[tuple[str, str, str]] = []
    if isinstance(old, dict) and isinstance(new, dict):
        path = path or str(old.get("resourceType"))
        for key in old.keys() & new.keys():
            was, now = old[key], new[key]
            if key == "reference" and isinstance(was, str) and isinstance(now, str):
                found.append((f"{path}.{key}", was, now))
            else:
                found += _pairs(was, now, f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for was, now in zip(old, new, strict=True):
            found += _pairs(was, now, path)
    return found
