"""Apply a rule file to a resource, rule by rule (document 3 §4).

The rules for Bundles handle a Bundle's own elements, the rules for each type the entries' resources, and so on for
contained resources. If several rules match an element, or one above it in the same resource, only the first in the file
handles it. A criterion evaluates its element after the changes of earlier rules.
"""

from __future__ import annotations

from collections.abc import Mapping

from deployments.sandbox.common.fhirpath import EvaluationError
from deployments.sandbox.common.json_text import JsonValue, encode
from deployments.sandbox.common.r4 import CONCRETE_TYPES
from deployments.sandbox.pseudonymization.dates import Calendar
from deployments.sandbox.pseudonymization.method import Label, Method, Reach
from deployments.sandbox.pseudonymization.methods import Substitute, keys_of, method_of
from deployments.sandbox.pseudonymization.model import ElementKind, applies_to, is_a
from deployments.sandbox.pseudonymization.node import ElementNode, JsonObject, ResourceNode, read_resource
from deployments.sandbox.pseudonymization.path import (
    ByNameStep,
    ByTypeStep,
    Chain,
    MemberStep,
    OfTypeStep,
    RuleExpression,
    RulePath,
    WhereStep,
    read_path,
)
from deployments.sandbox.pseudonymization.problem import (
    MalformedResourceError,
    ProcessingFailureError,
    RuleFileError,
)
from deployments.sandbox.pseudonymization.rulefile import RuleFile

Rules = tuple[tuple[tuple[Chain, ...], Method], ...]
"""The paths and the method of each rule."""


class DeIdentifier:
    """The rules of one file, ready to be applied."""

    def __init__(self, rules: RuleFile, calendar: Calendar | None = None) -> None:
        """Prepare the rules. Raises ``RuleFileError`` with the number of an invalid rule."""
        keys = keys_of(rules)
        self.is_lasting = keys.is_lasting
        """True if the same rules always use the same keys."""
        rows: list[tuple[RulePath, Method]] = []
        for number, rule in enumerate(rules.fhir_path_rules):
            try:
                method = method_of(rule, rules.parameters, keys, calendar or Calendar())
                rows.append((read_path(rule.path), method))
            except RuleFileError as error:
                raise RuleFileError(f"fhirPathRules.{number}: {error}") from None
        self._rules = {
            kind: tuple((path.chains, method) for path, method in rows if applies_to(path.resource_type, kind))
            for kind in CONCRETE_TYPES
        }

    def process(self, resource: JsonObject) -> JsonObject:
        """Return the resource after the rules.

        Raises ``MalformedResourceError`` for an invalid R4 resource, ``ProcessingFailureError`` for a value that
        a method cannot handle.
        """
        try:
            root = read_resource(resource)
            _RuleRun(self._rules, root).apply_to(root)
            return root.json() or {}
        except RecursionError:
            raise MalformedResourceError("The resource is nested too deeply.") from None


class _RuleRun:
    """One application of the rules to a resource."""

    def __init__(self, rules: Mapping[str, Rules], root: ResourceNode) -> None:
        self._rules = rules
        self._root = root
        self._current = root
        self._outcomes: dict[tuple[RuleExpression, str, bytes], bool] = {}

    def note(self, label: Label) -> None:
        """Add a label for the change to the current element."""
        self._current.labels.add(label)

    def seed(self) -> str:
        """Return the current id of the resource that was sent."""
        found = next((node.value for node in self._root.children("id")), None)
        return found if isinstance(found, str) else ""

    def apply_to(self, resource: ResourceNode) -> None:
        """Apply all rules to a resource, then to the resources in it, and write its labels."""
        for chains, method in self._rules[resource.element.type]:
            for node in [node for chain in chains for node in self._matches(chain, resource)]:
                self._handle(node, method)
        for nested in resource.nested:
            if not nested.gone:
                self.apply_to(nested)
                resource.labels |= nested.labels
        if resource.labels and resource.name != "contained":
            resource.is_labelled = True
            resource.change()

    def _matches(self, chain: Chain, resource: ResourceNode) -> list[ElementNode]:
        """Return the nodes at a path."""
        found: list[ElementNode] = [resource]
        for step in chain:
            match step:
                case MemberStep(name):
                    found = [below for node in found for below in node.children(name)]
                case ByTypeStep(name):
                    found = [below for node in found for below in node.of_type(name)]
                case ByNameStep(name):
                    found = [below for node in found for below in node.of_name(name)]
                case OfTypeStep(name):
                    found = [node for node in found if is_a(node.element.type, name)]
                case WhereStep(criterion):
                    found = [node for node in found if self._holds(criterion, node)]
        return found

    def _holds(self, criterion: RuleExpression, node: ElementNode) -> bool:
        is_value = node.element.kind is ElementKind.PRIMITIVE
        view: JsonValue = node.value if is_value else node.json()
        # Handled nodes count only as a path into another resource.
        if view is None or (node.handled and not node.resource.nested):
            return False
        key = (criterion, node.element.type, encode(view))
        if key not in self._outcomes:
            try:
                self._outcomes[key] = criterion.holds(view, node.element.type if is_value else node.element.path)
            except EvaluationError as error:
                raise ProcessingFailureError("where", node.element.location, str(error)) from None
        return self._outcomes[key]

    def _handle(self, node: ElementNode, method: Method) -> None:
        if node.handled:
            return
        self._current = node.resource
        if isinstance(node, ResourceNode):
            self._handle_resource(node, method)
        elif method.reach is Reach.ELEMENT:
            node.remove()
            self.note("REDACTED")
        elif isinstance(method, Substitute):
            self._substitute(node, method)
        else:
            self._handle_values(node, method)

    def _handle_resource(self, node: ResourceNode, method: Method) -> None:
        """Handle all elements of a resource. The sent resource itself cannot be removed."""
        if method.reach is Reach.SUBSTITUTE:
            raise ProcessingFailureError("substitute", node.element.location, "a whole resource")
        if method.reach is Reach.ELEMENT and node.parent is not None:
            node.remove()
            self._current = node.parent.resource
            self.note("REDACTED")
            return
        node.handled = True
        for below in [below for nodes in node.fields.values() for below in nodes]:
            if not isinstance(below, ResourceNode):
                self._handle(below, method)

    def _substitute(self, node: ElementNode, method: Substitute) -> None:
        """Replace the content of an element, except for parts that earlier rules handled."""
        kept = node.json(handled_only=True)
        if node.element.kind is ElementKind.COMPLEX:
            node.replace(method.content(kept, node.element, self))
        else:
            node.replace(kept, None if node.value is None else method.value(node.value, node.element, self))

    def _handle_values(self, node: ElementNode, method: Method) -> None:
        """Handle every value at and below an element that no earlier rule handled."""
        for each in node.within():
            if each.handled:
                continue
            each.handled = True
            if each.value is None:
                continue
            new = method.value(each.value, each.element, self)
            if new is not each.value:
                each.value = new
                each.change()
