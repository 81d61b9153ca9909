"""A resource as a tree of nodes, one for each element, for finding and changing elements.

To change a node, change its value or its object. ``ElementNode.json`` writes the tree: an unchanged element is written
as it came, and an object that is empty after a change is omitted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from deployments.sandbox.common.json_text import JsonValue
from deployments.sandbox.common.r4 import CONCRETE_TYPES
from deployments.sandbox.pseudonymization.method import Label, add_labels
from deployments.sandbox.pseudonymization.model import ElementKind, FhirElement, child, resource_element
from deployments.sandbox.pseudonymization.problem import MalformedResourceError

JsonObject = dict[str, JsonValue]


class ElementNode:
    """An element of a resource: a value, an object, or a resource by itself."""

    __slots__ = ("changed", "element", "fields", "gone", "handled", "name", "parent", "resource", "source", "value")

    def __init__(
        self, element: FhirElement, parent: ElementNode | None, source: JsonObject | None, value: JsonValue = None
    ) -> None:
        self.element = element
        self.name = element.name
        """Name in the parent element."""
        self.parent = parent
        self.source = source
        """The object in JSON; for a primitive its id and extensions (``_birthDate``), or None."""
        self.value = value
        """Value of a primitive."""
        self.fields: dict[str, list[ElementNode]] = {}
        """Child nodes by JSON key, one for each item of a list."""
        self.handled = False
        """True if a rule has handled the node and all its descendants."""
        self.changed = False
        """True if the node or any of its descendants has changed."""
        self.gone = False
        if parent is not None:
            self.resource: ResourceNode = parent.resource
            self.resource.note_node(self)

    def children(self, name: str) -> Iterator[ElementNode]:
        """Yield the children with that name."""
        for nodes in self.fields.values():
            if nodes[0].name == name:
                yield from nodes

    def within(self) -> Iterator[ElementNode]:
        """Yield the node and all its descendants in the same resource, from the top down."""
        yield self
        for nodes in self.fields.values():
            for node in nodes:
                if not isinstance(node, ResourceNode):
                    yield from node.within()

    def of_type(self, wanted: str) -> Iterable[ElementNode]:
        """Return the nodes of that type in ``within``."""
        return (node for node in self.within() if node.element.type == wanted)

    def of_name(self, wanted: str) -> Iterable[ElementNode]:
        """Return the nodes of that name in ``within``."""
        return (node for node in self.within() if node.element.name == wanted)

    def change(self) -> None:
        """Mark the node as changed."""
        node: ElementNode | None = self
        while node is not None and not node.changed:
            node.changed = True
            node = node.parent

    def remove(self) -> None:
        """Remove the node with all its descendants, including resources."""
        self.change()
        waiting: list[ElementNode] = [self]
        while waiting:
            node = waiting.pop()
            node.gone = node.handled = True
            node.value = None
            waiting += (below for nodes in node.fields.values() for below in nodes)

    def replace(self, source: JsonObject | None, value: JsonValue = None) -> None:
        """Replace the node's object or value and its descendants."""
        self.remove()
        self.gone = source is None and value is None
        self.source, self.value, self.fields = source, value, {}

    def json(self, *, handled_only: bool = False) -> JsonObject | None:
        """Return the current object, for a primitive the part beside its value; None for nothing.

        With ``handled_only`` the parts that rules have handled so far.
        """
        whole = self.handled or not handled_only
        if self.gone or self.source is None:
            return None
        if whole and not self.changed:
            return self.source
        made: JsonObject = {}
        for key, old in self.source.items():
            nodes = self.fields.get(key.removeprefix("_"))
            new = old if nodes is None else _written(nodes, key, handled_only=not whole, is_list=type(old) is list)
            if new is not None and new != []:
                made[key] = new
        return made or None


class ResourceNode(ElementNode):
    """A resource; rules are applied to each resource separately."""

    __slots__ = ("_by_name", "_by_type", "is_labelled", "labels", "nested")

    def __init__(self, element: FhirElement, parent: ElementNode | None, source: JsonObject, name: str) -> None:
        self._by_type: defaultdict[str, list[ElementNode]] = defaultdict(list)
        self._by_name: defaultdict[str, list[ElementNode]] = defaultdict(list)
        super().__init__(element, None, source)
        self.name, self.parent, self.resource = name, parent, self
        self.note_node(self)
        self.nested: list[ResourceNode] = []
        """Nested resources: contained ones and those of entries."""
        self.labels: set[Label] = set()
        """Labels for the changes to this resource."""
        self.is_labelled = False
        """True if the labels must be written."""

    def note_node(self, node: ElementNode) -> None:
        """Register a node of this resource for lookup by type and name."""
        self._by_type[node.element.type].append(node)
        self._by_name[node.element.name].append(node)

    def of_type(self, wanted: str) -> Iterable[ElementNode]:
        """Return the nodes of that type in the resource."""
        return self._by_type.get(wanted, ())

    def of_name(self, wanted: str) -> Iterable[ElementNode]:
        """Return the nodes of that name in the resource."""
        return self._by_name.get(wanted, ())

    def json(self, *, handled_only: bool = False) -> JsonObject | None:
        """Return the current resource, or None with ``handled_only`` if nothing in it was handled."""
        if self.gone or handled_only:
            return None
        made = super().json() or {}
        if self.is_labelled:
            add_labels(made, self.labels)
        return made


def read_resource(source: JsonValue, parent: ElementNode | None = None, name: str = "") -> ResourceNode:
    """Return the tree of a resource. Raises ``MalformedResourceError`` for an invalid FHIR R4 resource."""
    kind = source.get("resourceType") if isinstance(source, dict) else None
    if not isinstance(kind, str) or kind not in CONCRETE_TYPES:
        raise MalformedResourceError("There is a resource without a resourceType of FHIR R4.")
    node = ResourceNode(resource_element(kind), parent, source, name)
    if parent is not None:
        parent.resource.nested.append(node)
    _fill(node, source)
    return node


def _fill(node: ElementNode, source: JsonObject) -> None:
    """Create the nodes for the elements of an object."""
    for key in source:
        name = key.removeprefix("_")
        if key == "resourceType" or name in node.fields:
            continue
        element = child(node.element.path, name)
        if element is None or (element.kind is not ElementKind.PRIMITIVE and f"_{name}" in source):
            raise MalformedResourceError(f"{node.element.path} has an element that FHIR R4 does not know.")
        value = source.get(name)
        if element.kind is not ElementKind.PRIMITIVE:
            found = list(_objects(value, element, node))
        elif f"_{name}" in source or isinstance(value, list | dict):
            found = list(_values(value, source.get(f"_{name}"), element, node))
        else:
            found = [ElementNode(element, node, None, value)]
        if found:
            node.fields[name] = found


def _objects(given: JsonValue, element: FhirElement, parent: ElementNode) -> Iterator[ElementNode]:
    for item in given if isinstance(given, list) else [given]:
        if element.kind is ElementKind.RESOURCE:
            yield read_resource(item, parent, element.name)
        else:
            yield _node(element, parent, item)


def _values(values: JsonValue, extras: JsonValue, element: FhirElement, parent: ElementNode) -> Iterator[ElementNode]:
    """Yield the values of a primitive element, each with its companion (``_given``)."""
    if not isinstance(values, list) and not isinstance(extras, list):
        values, extras = [values], [extras]
    values, extras = values or [], extras or []
    if not isinstance(values, list) or not isinstance(extras, list):
        raise MalformedResourceError(f"{element.location} must be a list in both properties or in neither.")
    length = max(len(values), len(extras))
    for value, extra in zip(_padded(values, length), _padded(extras, length), strict=True):
        if isinstance(value, dict | list):
            raise MalformedResourceError(f"{element.location} is not a value.")
        yield ElementNode(element, parent, None, value) if extra is None else _node(element, parent, extra, value)


def _node(element: FhirElement, parent: ElementNode, source: JsonValue, value: JsonValue = None) -> ElementNode:
    if not isinstance(source, dict):
        raise MalformedResourceError(f"{element.location} is not an object.")
    node = ElementNode(element, parent, source, value)
    _fill(node, source)
    return node


def _padded(values: list[JsonValue], length: int) -> list[JsonValue]:
    return values + [None] * (length - len(values))


def _written(nodes: list[ElementNode], key: str, *, handled_only: bool, is_list: bool) -> JsonValue:
    """Return the JSON value for these nodes of one key, or None."""
    pairs = [
        (node.value if node.handled or not handled_only else None, node.json(handled_only=handled_only))
        for node in nodes
    ]
    is_value = nodes[0].element.kind is ElementKind.PRIMITIVE and not key.startswith("_")
    left = [value if is_value else item for value, item in pairs if (value, item) != (None, None)]
    if all(each is None for each in left):
        return None
    return left if is_list else left[0]
