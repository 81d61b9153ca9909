"""A resource as a tree of typed elements, and the paths of rules through it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from deployments.sandbox.fhirpath import R4, compiled

Json = dict[str, Any]
Step = tuple[str, str | None]
"""Name of an element, or of a function and its argument."""

_TYPES: Final[dict[str, str]] = R4["path2Type"]
_ELSEWHERE: Final[dict[str, str]] = R4["pathsDefinedElsewhere"]
_CHOICES: Final = {
    f"{base}{kind}": (base.rpartition(".")[2], kind[0].lower() + kind[1:])
    for base, kinds in R4["choiceTypePaths"].items()
    for kind in kinds
}
RESOURCES: Final = frozenset(kind for kind, parent in R4["type2Parent"].items() if parent.endswith("Resource"))
_STEP: Final = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
_FUNCTIONS: Final = frozenset({"where", "nodesByType", "nodesByName", "extension"})


@dataclass(eq=False)
class Node:
    """An element: its place ``holder[key]``, its name, its type, and the path at which FHIR defines its children.

    The children of a primitive are those of its sibling (``_birthDate``). A resource has ``is_resource``.
    """

    holder: Any
    key: Any
    name: str
    kind: str
    path: str
    is_resource: bool = False
    is_handled: bool = False
    children: list[Node] = field(default_factory=list)

    @property
    def value(self) -> Any:
        """Return the value, or None."""
        return self.holder.get(self.key) if isinstance(self.holder, dict) else self.holder[self.key]

    def set(self, value: Any) -> None:
        """Replace the value; ``None`` removes it."""
        if value is None and isinstance(self.holder, dict):
            self.holder.pop(self.key, None)
        else:
            self.holder[self.key] = value

    def below(self) -> Iterator[Node]:
        """Yield the node and all below it in the same resource."""
        yield self
        for child in self.children:
            if not child.is_resource:
                yield from child.below()

    def nested(self) -> Iterator[Node]:
        """Yield the nearest resources below the node."""
        for child in self.children:
            yield from (child,) if child.is_resource else child.nested()


def resource_node(holder: Any, key: Any, name: str = "") -> Node:
    """Return the tree of the resource ``holder[key]``."""
    kind = str(holder[key].get("resourceType"))
    node = Node(holder, key, name or kind, kind, kind, is_resource=True)
    node.children = [*_children(holder[key], kind)]
    return node


def _children(members: Json, path: str) -> Iterator[Node]:
    for key in dict.fromkeys(key.removeprefix("_") for key in members if key != "resourceType"):
        name, kind, full = _definition(path, key)
        beside = members.get(f"_{key}")
        value = members.get(key, [None] * len(beside) if isinstance(beside, list) else None)
        places: list[tuple[Any, Any]] = (
            [(value, at) for at in range(len(value))] if isinstance(value, list) else [(members, key)]
        )
        for holder, at in places:
            item = holder[at] if isinstance(holder, list) else value
            if kind == "Resource" and isinstance(item, dict):
                yield resource_node(holder, at, name)
                continue
            node = Node(holder, at, name, kind, full if not kind else "Element" if kind[0].islower() else kind)
            extra = beside[at] if isinstance(beside, list) and at < len(beside) else beside
            inner = item if isinstance(item, dict) else extra
            node.children = [*_children(inner, node.path)] if isinstance(inner, dict) else []
            yield node


def _definition(path: str, key: str) -> tuple[str, str, str]:
    """Return element name, type and defined path of a member."""
    full = _ELSEWHERE.get(f"{path}.{key}", f"{path}.{key}")
    name, kind = _CHOICES.get(full, (key, ""))
    kind = _TYPES.get(full, kind)
    if kind == "System.String":
        kind = "uri" if key == "url" else "id" if path in RESOURCES else "string"
    return name, kind, full


def without_empty(value: Any) -> Any:
    """Return a value without empty parts; an empty resource stays."""
    if isinstance(value, list):
        return [item for item in map(without_empty, value) if item not in (None, {}, [])]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        other = key[1:] if key.startswith("_") else f"_{key}"
        if isinstance(item, list) and isinstance(value.get(other), list):  # both lists belong together
            made = [without_empty(one) or None for one in item]
            made = made if any(one is not None for one in made) else []
        else:
            made = without_empty(item)
        if made not in (None, {}, []):
            kept[key] = made
    return kept


def read_path(path: str) -> tuple[str, list[Step]]:
    """Return the resource type of a rule's path (empty: every type) and its steps. Raises ``ValueError``."""
    first, *rest = _split(path)
    kind, texts = (first, rest) if first[:1].isupper() else ("", [first, *rest])
    return kind, [_step(text) for text in texts]


def _split(path: str) -> list[str]:
    """Split a path at the dots outside parentheses."""
    parts, depth = [""], 0
    for sign in path:
        depth += (sign == "(") - (sign == ")")
        if sign == "." and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _step(text: str) -> Step:
    match = _STEP.fullmatch(text)
    if match is None or (match[2] is not None and match[1] not in _FUNCTIONS):
        known = ", ".join(sorted(_FUNCTIONS))
        raise ValueError(f"{text!r} is not supported: element names and the functions {known} are")
    name, argument = match[1], match[2]
    if name == "where" and argument is not None:
        try:
            compiled(f"where({argument})")
        except ValueError:
            raise ValueError(f"the condition in {text!r} cannot be read") from None
        return name, argument
    return name, None if argument is None else argument.strip("'\"")


def matching(steps: list[Step], resource: Node) -> list[Node]:
    """Return the elements of one resource at the end of a path."""
    found = [resource]
    for name, argument in steps:
        match name if argument is not None else "":
            case "":
                found = [child for node in found for child in node.children if child.name == name]
            case "where":
                holds = compiled(f"where({argument})")
                found = [node for node in found if holds(without_empty(node.value))]
            case "extension":
                extensions = (child for node in found for child in node.children if child.name == "extension")
                found = [each for each in extensions if each.value.get("url") == argument]
            case _:
                below = dict.fromkeys(each for node in found for each in node.below())
                found = [each for each in below if argument == (each.kind if name == "nodesByType" else each.name)]
    return found
