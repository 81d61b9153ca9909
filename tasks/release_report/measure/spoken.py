"""Decide whether a rule of the anonymization file covers a path; a rule covers an element with everything below it.

A rule's FHIRPath is read as the pseudonymization service reads it: ``Patient.birthDate``, ``Resource.id``,
``nodesByType('date')``, ``Patient.contact.nodesByName('family')``, ``where(…)``, ``extension('url')``, ``ofType(T)``,
``as T``, ``descendants()``, ``children()`` and alternatives behind ``|``. A criterion is taken to hold, but for that of
an extension's URL. A rule that cannot be read speaks of nothing: a place too many is better than one that is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tasks.release_report.measure import kinds
from tasks.shared.fhir.r4 import PERSONS

_TOKEN: Final = re.compile(r"\s*(?:\.\s*)?`?([A-Za-z]\w*)`?\s*")
_AS: Final = re.compile(r"\s*as\s+(?:FHIR\.)?`?(\w+)`?\s*")
_TEXT: Final = re.compile(r"\s*'([^']*)'\s*|\s*(?:FHIR\.)?(\w+)\s*")
_URL: Final = re.compile(r"\s*(?:\$this\.)?url\s*=\s*'([^']*)'\s*")
_ALL: Final = frozenset({"Resource", "DomainResource"})
_EXTENSIONS: Final = ("extension", "modifierExtension")
_BELOW: Final = {"descendants": "below", "children": "next"}
_READ: Final = {"nodesByType": "below-type", "nodesByName": "below-name", "ofType": "type", "as": "type"}


@dataclass(frozen=True)
class PathElement:
    """An element of a path: its name, the name of its choice (``value`` of ``valueString``), its type, its URL."""

    name: str
    choice: str
    type: str
    url: str = ""


Step = tuple[str, str]
"""What a step does (``member``, ``next``, ``below``, ``below-type``, ``below-name``, ``type``, ``url``), and with which
name."""


class Spoken:
    """All rules of a file by their FHIRPath. ``complete`` says that each could be read."""

    def __init__(self, rules: Iterable[str]) -> None:
        chains = [_chain(text.strip()) for rule in rules for text in _split(rule)]
        self._chains = [chain for chain in chains if chain is not None]
        # What a rule takes from a Bundle's resources stands at no path of a Bundle.
        self.complete = None not in chains and not any(_in_bundle(chain) for chain in self._chains)

    def of(self, path: str) -> bool:
        """Return whether a rule covers a path or one above it."""
        return any(_ends(chain, nodes) for nodes in _resources(path) for chain in self._chains)


def is_of_person(path: str) -> bool:
    """Return whether a path belongs to a person, also in a contained resource."""
    return any(nodes[0].name in PERSONS for nodes in _resources(path))


def _resources(path: str) -> Iterator[list[PathElement]]:
    """Yield the elements of a path from its resource inwards; a contained resource has its own rules."""
    parts = [(part[1], part[2][1:-1]) for part in kinds.PART.finditer(path)]
    nodes: list[PathElement] = []
    for at, (name, url) in enumerate(parts):
        if not nodes:
            nodes.append(PathElement(name, "", name))
            continue
        own, choice = kinds.element(nodes[-1].type, name, is_object=at + 1 < len(parts))
        if name in _EXTENSIONS:
            own = "Extension"
        nodes.append(PathElement(name, choice, own, url))
        if name == "contained" and at + 1 < len(parts):
            yield nodes
            nodes = []
    if nodes:
        yield nodes


def _ends(chain: tuple[Step, ...], nodes: list[PathElement]) -> bool:
    """Return whether a chain of steps leads from a resource to one of its elements along a path."""
    at = {0}
    for what, name in chain:
        match what:
            case "member":
                at = {
                    one + 1 for one in at if one + 1 < len(nodes) and name in (nodes[one + 1].name, _choice(nodes, one))
                }
            case "next":
                at = {one + 1 for one in at if one + 1 < len(nodes)}
            case "below":
                at = {deep for one in at for deep in range(one + 1, len(nodes))}
            case "below-type":
                at = {deep for one in at for deep in range(one, len(nodes)) if _is(nodes[deep], name)}
            case "below-name":
                at = {deep for one in at for deep in range(one, len(nodes)) if nodes[deep].name == name}
            case "type":
                at = {one for one in at if nodes[one].type == name or (one == 0 and name in _ALL)}
            case _:
                at = {one for one in at if nodes[one].url in ("", name)}
    return bool(at)


def _is(node: PathElement, kind: str) -> bool:
    """Return whether an element has a type; types defined in a resource are named like ``Observation_Component``."""
    return node.type == kind or (kind == "BackboneElement" and "_" in node.type)


def _choice(nodes: list[PathElement], above: int) -> str:
    """Return the FHIRPath name of a choice element: ``value`` for ``valueString``."""
    node = nodes[above + 1]
    return node.choice.removesuffix("[x]") or ("value" if re.match(r"value[A-Z]", node.name) else node.name)


def _in_bundle(chain: tuple[Step, ...]) -> bool:
    """Return whether steps lead from a Bundle into its resources."""
    return chain[0] == ("type", "Bundle") and ("member", "resource") in chain


def _chain(text: str) -> tuple[Step, ...] | None:
    """Return the path of a rule, without alternatives, as steps; ``None`` if it cannot be read."""
    steps: list[Step] = []
    while text:
        if steps and (kind := _AS.match(text)) is not None:
            steps.append(("type", kind[1]))
            text = text[kind.end() :]
            continue
        token = _TOKEN.match(text)
        if token is None:
            return None
        name, text = token[1], text[token.end() :]
        if not text.startswith("("):
            steps.append(("type" if name[:1].isupper() else "member", name))
            continue
        end = _closing(text)
        if end < 0:
            return None
        inside, text = text[1:end], text[end + 1 :]
        if (step := _function(name, inside)) is None:
            return None
        steps += step
    return tuple(steps) or None


def _function(name: str, inside: str) -> list[Step] | None:
    """Return the steps of a function; none for a criterion that is ignored."""
    if name == "where":
        url = _URL.fullmatch(inside)
        return [("url", url[1])] if url else []
    if name in _BELOW and not inside.strip():
        return [(_BELOW[name], "")]
    argument = _TEXT.fullmatch(inside)
    if argument is None:
        return None
    value = argument[1] or argument[2] or ""
    if name == "extension":
        return [("member", "extension"), ("url", value)]
    return [(_READ[name], value)] if name in _READ else None


def _closing(text: str) -> int:
    """Return the index of the bracket that closes the first one; -1 if there is none."""
    depth, quoted = 0, False
    for at, sign in enumerate(text):
        quoted ^= sign == "'"
        depth += 0 if quoted else (sign == "(") - (sign == ")")
        if not depth:
            return at
    return -1


def _split(rule: str) -> list[str]:
    """Alternatives: what stands between the ``|`` outside of brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for sign in rule:
        quoted ^= sign == "'"
        depth += 0 if quoted else (sign == "(") - (sign == ")")
        if sign == "|" and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += sign
    return parts
