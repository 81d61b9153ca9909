"""The codes of R4's required bindings: which may stand at an element, by type and element.

A value set counts when it names its codes, or whole code systems that name theirs. What is left are value sets over
languages, units, media types and the like, whose codes the specification does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tests.tools.definitions.build import Json, SourceError

_KINDS = ("resource", "complex-type")
_ABSTRACT = ("abstract", "notSelectable")


def code_lists(
    structures: Iterable[Json], value_sets: Iterable[Json], code_systems: Iterable[Json]
) -> tuple[Json, list[str]]:
    """``bindings``: path to value set; ``value_sets``: codes by system; and what has no list, with the reason.

    ``unlisted`` holds the paths of the latter by value set. Raises ``SourceError``.
    """
    sets = {each["url"]: each for each in value_sets}
    systems = {each["url"]: each for each in code_systems if "url" in each}
    bindings = {
        path: url.partition("|")[0]
        for structure in structures
        if structure["kind"] in _KINDS and structure.get("derivation") != "constraint" and not structure["abstract"]
        for path, url in _required(structure)
    }
    listed: dict[str, Json] = {}
    unlisted: dict[str, str] = {}
    for url in sorted(set(bindings.values())):
        try:
            listed[url] = _codes(url, sets, systems)
        except SourceError as error:
            unlisted[url] = str(error)
    without = {url: sorted(path for path, bound in bindings.items() if bound == url) for url in unlisted}
    kept = {path: url for path, url in sorted(bindings.items()) if url in listed}
    said = [f"the codes of {url} ({len(without[url])} elements): {why}" for url, why in unlisted.items()]
    return {"bindings": kept, "value_sets": listed, "unlisted": without}, said


def _required(structure: Json) -> Iterator[tuple[str, str]]:
    for element in structure["snapshot"]["element"]:
        binding = element.get("binding", {})
        if binding.get("strength") == "required":
            yield element["path"], binding["valueSet"]


def _codes(url: str, sets: Mapping[str, Json], systems: Mapping[str, Json]) -> Json:
    """Return the codes of a value set by their systems. Raises ``SourceError`` when it does not name them."""
    if url not in sets:
        raise SourceError("the package has no such value set")
    composed = sets[url]["compose"]
    if "exclude" in composed:
        raise SourceError("it excludes codes")
    found: dict[str, set[str]] = {}
    for part in composed["include"]:
        if "filter" in part:
            raise SourceError("it filters codes")
        if "concept" in part:
            found.setdefault(part["system"], set()).update(each["code"] for each in part["concept"])
        elif "system" in part:
            found.setdefault(part["system"], set()).update(_all(part["system"], systems))
        for other in part.get("valueSet", ()):
            if "system" in part:
                raise SourceError("it intersects value sets")
            for system, codes in _codes(other.partition("|")[0], sets, systems).items():
                found.setdefault(system, set()).update(codes)
    return {system: sorted(codes) for system, codes in sorted(found.items())}


def _all(url: str, systems: Mapping[str, Json]) -> Iterator[str]:
    """Yield the codes of a system except those that only group others. Raises ``SourceError`` when it names none."""
    system = systems.get(url.partition("|")[0], {})
    if system.get("content") != "complete" or not system.get("concept"):
        raise SourceError(f"the package does not hold the codes of {url}")
    waiting = list(system["concept"])
    while waiting:
        concept = waiting.pop()
        if not any(each["code"] in _ABSTRACT and each.get("valueBoolean") for each in concept.get("property", ())):
            yield concept["code"]
        waiting += concept.get("concept", ())
