"""Pair the ids and references of an answer with those of the request, for the map of identities.

Resources are paired by where they stand. References are paired by their order in the text, which costs nothing; where
that leaves a doubt (a rule took one away, or the service writes elements in another order) by their paths.

Original ids that are still there are counted (``survivors``), never named. Rules may keep ids on purpose (of an
Organization, of a Medication), so what is found is a warning and not an error. It catches rules that treat ids and
references differently, and a service that runs without the rules it was meant to have. An id is original when a
resource of the request has it or a reference of the request ends in it. ``fullUrl``, ``request.url`` and references of
the answer are compared by their last segment, whatever stands before it. Within one request that is exact and takes no
memory for the job.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

import msgspec

from tasks.pseudonymizer.answer_check import Members, OutlineError, ResourceSummary, outline_of
from tasks.pseudonymizer.identity import Loose, Pair
from tasks.shared.fhir.reading import RESOURCE_TYPE
from tasks.shared.fhir.references import ReferenceTarget, id_named_by, spelled_references, target_of
from tasks.shared.fhir.sources import names_foreign_patient

PLACES: Final = ("id", "fullUrl", "request.url", "reference")
"""Where ids can survive, as in the counts."""

_URN: Final = "urn:uuid:"

_ESCAPED_KEY: Final = re.compile(rb'"[A-Za-z]*\\u00[4-7][0-9A-Fa-f][^"]*"\s*:')
_STRING: Final = re.compile(rb'"%b"\s*:\s*"' % b"".join(rb"(?:%c|\\u00(?i:%02x))" % (one, one) for one in b"reference"))
"""A reference, also one whose key or value has an escape."""
_MAYBE: Final = b'"reference"'
_any: Final = msgspec.json.Decoder(float_hook=str)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of an answer: ids (``Type/id``) of those that were paired, which of what was sent they are by
    index, and of those that were not the ``loose`` ids."""

    originals: Sequence[str]
    news: Sequence[str]
    indexes: Sequence[tuple[int, int]] | None = None
    """``None``: each is where it was."""
    loose: Sequence[Loose] = ()


@dataclass(slots=True)
class PairedReferences:
    """The references of an answer that were paired, and of the others what they can be."""

    pairs: set[Pair] = field(default_factory=set)
    loose: list[Loose] = field(default_factory=list)


def paired_resources(given: ResourceSummary, received: ResourceSummary) -> Resources:
    """Pair the resources. Where a rule removed some, those of a type of which none is missing are paired in order."""
    if not given.is_bundle:
        both = bool(given.id and received.id)
        return Resources([f"{given.type}/{given.id}"] * both, [f"{received.type}/{received.id}"] * both)
    if given.types == received.types:
        if given.ids == received.ids:
            same = _named(given.types, given.ids)
            return Resources(same, same)
        known = [
            (kind, old, new) for kind, old, new in zip(given.types, given.ids, received.ids, strict=True) if old and new
        ]
        return Resources([f"{kind}/{old}" for kind, old, _ in known], [f"{kind}/{new}" for kind, _, new in known])
    before, after = _by_type(given.types), _by_type(received.types)
    indexes: list[tuple[int, int]] = []
    loose: list[Loose] = []
    for kind, places in after.items():
        if len(places) == len(before[kind]):
            indexes += zip(before[kind], places, strict=True)
        else:
            originals = frozenset(f"{kind}/{given.ids[place]}" for place in before[kind])
            loose += [
                Loose(originals, f"{kind}/{received.ids[place]}", False) for place in places if received.ids[place]
            ]
    some = [(old, new) for old, new in indexes if given.ids[old] and received.ids[new]]
    return Resources(
        [f"{given.types[old]}/{given.ids[old]}" for old, _ in some],
        [f"{received.types[new]}/{received.ids[new]}" for _, new in some],
        indexes,
        loose,
    )


def paired_urls(given: ResourceSummary, received: ResourceSummary) -> Iterator[tuple[str, str]]:
    """Yield each changed ``fullUrl`` that does not match the new id of its resource."""
    if given.full_urls == received.full_urls or not len(given.full_urls) == len(received.full_urls) == len(
        received.ids
    ):
        return
    for old, new, own in zip(given.full_urls, received.full_urls, received.ids, strict=True):
        if old and new and old != new and not (own and new.endswith(f"/{own}")):
            yield old, new


def has_foreign_patient(received: ResourceSummary) -> bool:
    """Return whether a Bundle holds one Patient and a resource in it names another one."""
    if received.types.count("Patient") != 1:
        return False
    own = f"Patient/{received.ids[received.types.index('Patient')]}"
    targets = map(target_of, map(bytes.decode, {*received.references}))
    # Nearly always no reference at all is to another Patient; else it matters which element has it.
    others = any(target is not None and target.kind == "Patient" and target.key != own for target in targets)
    return (others or _has_escapes(received)) and names_foreign_patient(received.text)


def survivors(sent: ResourceSummary, received: ResourceSummary) -> Counter[str]:
    """Count the original ids of a request that are in its answer, by place."""
    # This runs for every request: comprehensions and sets, nothing per entry that could be done once.
    originals = {sent.id, *sent.ids, *map(id_named_by, set(sent.references))}
    originals -= {None, ""}
    places = received.full_urls, received.request_urls, [received.id, *received.ids]
    if any(_URN in "\n".join(filter(None, texts)) for texts in places):
        originals |= {f"{_URN}{one}" for one in originals}
    is_original = originals.__contains__
    references = Counter(received.references)
    return Counter(
        {
            "id": sum(map(is_original, received.ids)) + is_original(received.id),
            "fullUrl": sum(map(is_original, _last_segments(received.full_urls))),
            "request.url": sum(map(is_original, _last_segments(received.request_urls))),
            "reference": sum(n for one, n in references.items() if is_original(id_named_by(one))),
        }
    )


def _last_segments(urls: Iterable[str]) -> Iterator[str]:
    return map(itemgetter(2), map(str.rpartition, urls, repeat("/")))


def by_text(sent: ResourceSummary, received: ResourceSummary, urls: Collection[tuple[str, str]]) -> set[Pair] | None:
    """Pair references by their order in the text; ``None`` when they cannot be."""
    if _has_escapes(sent) or _has_escapes(received):
        return None
    olds, news = sent.references, received.references
    couples = set(zip(olds, news, strict=True)) if len(olds) == len(news) else _couples(sent.text, received.text)
    if couples is None:
        return None
    pairs = (_pair(old, new) for old, new in {(old.decode(), new.decode()) for old, new in couples} | {*urls})
    return {pair for pair in pairs if pair is not None}


def _has_escapes(resource: ResourceSummary) -> bool:
    """Return whether a text can contain references that were not found, because some writers escape each slash."""
    text = resource.text
    # One byte is found ten times as fast as several, and most texts have none.
    if b"\\" not in text:
        return False
    unread = text.count(_MAYBE) != len(resource.references)
    return unread or (b"\\u00" in text and _ESCAPED_KEY.search(text) is not None)


def _couples(sent: bytes, received: bytes) -> set[tuple[bytes, bytes]] | None:
    """References of a text from which some are gone, resource by resource: where one is gone, those are paired that
    are the only ones of their kind. ``None`` where there are several."""
    before, after = sent.split(RESOURCE_TYPE), received.split(RESOURCE_TYPE)
    if len(before) != len(after):
        return None
    couples: set[tuple[bytes, bytes]] = set()
    for olds, news in zip(map(spelled_references, before), map(spelled_references, after), strict=True):
        if len(olds) == len(news):
            couples.update(zip(olds, news, strict=True))
            continue
        kinds = {old: _kind(old) for old in olds}
        for new in news:
            same = [old for old, kind in kinds.items() if kind == _kind(new)]
            if len(same) != 1:
                return None
            couples.add((same[0], new))
    return couples


def _kind(reference: bytes) -> str | None:
    target = target_of(reference.decode())
    return None if target is None else target.kind


def by_path(
    sent: ResourceSummary, received: ResourceSummary, resources: Resources, urls: Collection[tuple[str, str]]
) -> PairedReferences:
    """Pair references by the path at which they stand. Raises what ``all_members`` does, and ``OutlineError`` where one
    stands twice in an element: readers take the first or the last."""
    before, after = _trees(outline_of(sent.text)), _trees(received)
    if _unread(received.text, after) > _unread(sent.text, before):
        raise OutlineError("has a key twice, so what it holds is ambiguous")
    found = PairedReferences({pair for old, new in urls if (pair := _pair(old, new)) is not None})
    everything = _Candidates(sent, before)
    if resources.indexes is None:
        couples = [*zip(before, after, strict=True)]
    else:
        # A Bundle's own elements come first.
        couples = [(before[0], after[0]), *((before[old + 1], after[new + 1]) for old, new in resources.indexes)]
        paired = {new for _, new in resources.indexes}
        couples += [(None, tree) for index, tree in enumerate(after[1:]) if index not in paired]
    for old, new in couples:
        _pair_trees(old, new, found, everything)
    return found


class _Candidates:
    """The targets in the request, by kind, that a reference at a new path can refer to."""

    def __init__(self, outline: ResourceSummary, trees: Sequence[Any]) -> None:
        self._outline = outline
        self._trees = trees

    def of(self, kind: str) -> set[ReferenceTarget]:
        """Return the candidates of a kind."""
        return {target for target in self._targets if target.kind == kind}

    @cached_property
    def _targets(self) -> set[ReferenceTarget]:
        outline = self._outline
        named = zip([*outline.types, outline.type], [*outline.ids, outline.id], strict=True)
        targets = {ReferenceTarget(kind, f"{kind}/{own}") for kind, own in named if kind and own}
        return targets | {target for text in _texts(self._trees) if (target := target_of(text)) is not None}


def _pair_trees(sent: Any, received: Any, found: PairedReferences, everything: _Candidates) -> None:
    if isinstance(received, str):
        if isinstance(sent, str):
            if (pair := _pair(sent, received)) is not None:
                found.pairs.add(pair)
        elif (new := target_of(received)) is not None:
            candidates = everything.of(new.kind)
            if len(candidates) == 1:
                found.pairs.add((candidates.pop(), new))
            else:
                found.loose.append(Loose(frozenset(one.key for one in candidates), new.key, True))
    elif isinstance(received, dict):
        for key, value in received.items():
            _pair_trees(sent.get(key) if isinstance(sent, dict) else None, value, found, everything)
    elif isinstance(received, list):
        same = isinstance(sent, list) and len(sent) == len(received)
        for index, value in enumerate(received):
            _pair_trees(sent[index] if same else None, value, found, everything)


def _pair(old: str, new: str) -> Pair | None:
    before, after = target_of(old), target_of(new)
    return None if before is None or after is None else (before, after)


def _trees(resource: ResourceSummary) -> list[Any]:
    """Return the references of each resource with their paths; the elements of a Bundle itself come first."""
    return [_tree(members) for _, members in resource.all_members()]


def _tree(members: Members) -> Any:
    raws: Mapping[str, bytes] = {name: bytes(raw) for name, raw in members.items()}
    return _pruned({name: _any.decode(raw) for name, raw in raws.items() if _MAYBE in raw or b"\\u00" in raw})


def _unread(text: bytes, trees: Sequence[Any]) -> int:
    """Return the number of references of a text that are not in its resources."""
    return len(_STRING.findall(text)) - sum(1 for _ in _texts(trees))


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        inside = {
            key: one if key == "reference" and isinstance(one, str) else _pruned(one) for key, one in value.items()
        }
        return {key: one for key, one in inside.items() if one is not None} or None
    if isinstance(value, list):
        pruned = [_pruned(one) for one in value]
        return pruned if any(one is not None for one in pruned) else None
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _named(types: Sequence[str | None], ids: Sequence[str | None]) -> list[str]:
    return [f"{kind}/{own}" for kind, own in zip(types, ids, strict=True) if own]


def _by_type(types: Sequence[str | None]) -> defaultdict[str | None, list[int]]:
    places: defaultdict[str | None, list[int]] = defaultdict(list)
    for index, kind in enumerate(types):
        places[kind].append(index)
    return places
